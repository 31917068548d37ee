import torch

from tformer_cli.training.amp import FIRST, PATIENCE, LossScale


def test_only_float16_needs_one():
    for precision in (torch.float32, torch.bfloat16):
        scale = LossScale.first(precision)
        assert scale.factor == 1.0
        assert not scale.can_be_lowered
        for _ in range(PATIENCE):
            scale = scale.stepped(precision)
        assert scale.factor == 1.0
    assert LossScale.first(torch.float16).factor == FIRST


def test_it_grows_after_many_steps_and_an_overflow_begins_the_count_again():
    scale = LossScale(8.0)
    for _ in range(PATIENCE - 1):
        scale = scale.stepped(torch.float16)
    assert scale == LossScale(8.0, PATIENCE - 1)
    assert scale.stepped(torch.float16) == LossScale(16.0, 0)
    assert scale.lowered() == LossScale(4.0, 0)
