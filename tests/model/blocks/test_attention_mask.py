import torch

from tformer_cli.kernels.attention_mask import (
    causal_lm_mask,
    causal_mask,
    padding_mask,
    prefix_lm_mask,
)

YES, NO = True, False


def test_combined_mask_equals_the_matrix_written_by_hand():
    real = torch.tensor([[YES, YES, YES, NO], [YES, YES, NO, NO]])
    assert (padding_mask(real) & causal_mask(real.shape[1])).squeeze(1).tolist() == [
        [
            [YES, NO, NO, NO],
            [YES, YES, NO, NO],
            [YES, YES, YES, NO],
            [YES, YES, YES, NO],
        ],
        [
            [YES, NO, NO, NO],
            [YES, YES, NO, NO],
            [YES, YES, NO, NO],
            [YES, YES, NO, NO],
        ],
    ]


def test_padding_mask_lets_every_query_see_the_real_tokens():
    real = torch.tensor([[YES, YES, NO]])
    queries = torch.zeros(1, 1, 2, 1, dtype=torch.bool)
    assert (padding_mask(real) | queries).tolist() == [[[[YES, YES, NO], [YES, YES, NO]]]]


def test_causal_stream_equals_the_matrix_written_by_hand():
    assert causal_lm_mask(2, 3).tolist() == [
        [YES, NO, NO, NO, NO],
        [YES, YES, NO, NO, NO],
        [YES, YES, YES, NO, NO],
        [YES, YES, YES, YES, NO],
        [YES, YES, YES, YES, YES],
    ]


def test_prefix_stream_equals_the_matrix_written_by_hand():
    assert prefix_lm_mask(3, 2).tolist() == [
        [YES, YES, YES, NO, NO],
        [YES, YES, YES, NO, NO],
        [YES, YES, YES, NO, NO],
        [YES, YES, YES, YES, NO],
        [YES, YES, YES, YES, YES],
    ]


def test_streams_without_a_target_are_their_source():
    assert causal_lm_mask(2, 0).tolist() == [[YES, NO], [YES, YES]]
    assert prefix_lm_mask(2, 0).tolist() == [[YES, YES], [YES, YES]]
