"""What is true of every network, whatever its parts are."""

import torch
from family import masked_encoders, translating
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tformer_cli.device import autocast
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.model.build import build_model, build_network
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.padding import flat_positions

B, S, T, V = 3, 5, 7, 23
LENGTHS = torch.tensor([5, 3, 4])


def source() -> tuple[Tensor, Tensor]:
    mask = torch.arange(S) < LENGTHS[:, None]
    return torch.randint(6, V, (B, S)) * mask, mask


def lively(network: Network) -> Network:
    """Move all weights away from where they begin: there, biases and norms do nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return network.double().eval()


def member(config) -> Seq2Seq:
    network = lively(build_model(config, source_size=V, target_size=V, seed=7))
    assert isinstance(network, Seq2Seq)
    return network


def all_logits(model: Seq2Seq, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    return model.output(model.target_hidden_states(ids, mask, target))


@given(translating, st.integers(0, T - 2))
def test_future_target_tokens_never_change_the_past(config, index):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, T))
    changed = target.clone()
    changed[:, index + 1 :] = torch.randint(6, V, (B, T - index - 1))
    before, after = all_logits(model, ids, mask, target), all_logits(model, ids, mask, changed)
    torch.testing.assert_close(before[:, : index + 1], after[:, : index + 1])


@given(translating)
def test_padding_content_changes_nothing(config):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, T))
    noise = torch.where(mask, ids, torch.randint(6, V, (B, S)))
    torch.testing.assert_close(
        all_logits(model, ids, mask, target), all_logits(model, noise, mask, target)
    )


@given(translating)
def test_a_cut_token_has_a_position_and_no_content(config):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, T))
    kept = KeptTokens(mask & (torch.rand(B, S) < 0.6), torch.rand(B, T) < 0.6)
    found = model.output(model.target_hidden_states(ids, mask, target, kept))
    others = [torch.where(keep, x, x % 17 + 6) for x, keep in zip((ids, target), kept, strict=True)]
    same = model.output(model.target_hidden_states(others[0], mask, others[1], kept))
    torch.testing.assert_close(found, same)
    # The embedding of padding is zero too.
    for stack in model.stacks():
        torch.nn.init.zeros_(stack.embeddings.tokens.weight[0])
    empty = [x * keep for x, keep in zip((ids, target), kept, strict=True)]
    found = model.target_hidden_states(ids, mask, target, kept)
    torch.testing.assert_close(found, model.target_hidden_states(empty[0], mask, empty[1]))


@given(translating, st.permutations(range(B)))
def test_order_and_company_in_a_batch_change_nothing(config, order):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, T))
    together = all_logits(model, ids, mask, target)
    torch.testing.assert_close(
        all_logits(model, ids[order], mask[order], target[order]), together[order]
    )
    for row, length in enumerate(LENGTHS.tolist()):
        alone = all_logits(
            model, ids[row : row + 1, :length], mask[row : row + 1, :length], target[row : row + 1]
        )
        torch.testing.assert_close(together[row : row + 1], alone)


@given(translating, st.booleans())
def test_cached_decoding_equals_uncached_step_by_step(config, is_fused):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (B, 35))  # more than the cache has columns at first
    whole = all_logits(model, ids, mask, target)
    model = prepare_for_inference(model, torch.device("cpu")) if is_fused else model
    cache = model.init_cache(len(ids))
    cache.insert(torch.arange(len(ids)), model.prefill(ids, mask), model.attended_source(mask))
    for index in range(target.shape[1]):
        step = model.decode_step(target[:, index, None], cache)
        torch.testing.assert_close(step, whole[:, index, None])


@given(translating, st.sampled_from([torch.bfloat16, torch.float16]))
@torch.inference_mode()
def test_cached_decoding_in_fewer_digits_is_near_uncached(config, precision):
    """Norms stay in float32, so keys and values of one layer may come in two formats."""
    model, (ids, mask) = member(config).float(), source()
    target = torch.randint(6, V, (B, T))
    model = prepare_for_inference(model, torch.device("cpu"), precision)
    with autocast(torch.device("cpu"), precision):
        whole = all_logits(model, ids, mask, target)
        cache = model.init_cache(len(ids))
        cache.insert(torch.arange(len(ids)), model.prefill(ids, mask), model.attended_source(mask))
        for index in range(T):
            step = model.decode_step(target[:, index, None], cache)
            error = (step - whole[:, index, None]).norm() / whole[:, index].norm()
            assert float(error) < 0.05


@given(translating)
def test_rows_that_share_a_sentence_and_positions_that_change_it_equal_uncached(config):
    model, (ids, mask) = member(config), source()
    rows = torch.randint(6, V, (B, 2, T))
    cache = model.init_cache(B, 2)
    cache.insert(torch.arange(B), model.prefill(ids, mask), model.attended_source(mask))
    for index in range(T - 3):
        model.decode_step(rows[:, :, index], cache)
    # Both rows of the first sentence go on from its second; the last slot gets the first source.
    origins = torch.tensor([[1, 1], [0, 1], [0, 1]])
    cache.reorder(origins)
    rows[0, 0, : T - 3] = rows[0, 1, : T - 3].clone()
    first = model.prefill(ids[:1], mask[:1])
    cache.insert(torch.tensor([2]), first, model.attended_source(mask[:1]))
    for index in range(T - 3, T):
        step = model.decode_step(rows[:, :, index], cache)
        for row in range(2):
            old = all_logits(model, ids[:2], mask[:2], rows[:2, row, : index + 1])
            new = all_logits(model, ids[:1], mask[:1], rows[2:, row, T - 3 : index + 1])
            expected = torch.cat((old[:, -1], new[:, -1]))
            torch.testing.assert_close(step[:, row], expected)


@given(translating)
def test_gradients_reach_every_weight(config):
    model, (ids, mask) = member(config).train(), source()
    target = torch.randint(6, V, (B, T))
    model(ids, mask, target, torch.arange(target.numel())).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@given(masked_encoders)
def test_a_masked_encoder_knows_neither_padding_nor_company(config):
    network = lively(build_network(config, source_size=V, target_size=V, seed=7))
    ids, mask = source()
    together = network(ids, mask, ids, flat_positions(mask))
    noise = torch.where(mask, ids, torch.randint(6, V, (B, S)))
    torch.testing.assert_close(network(noise, mask, noise, flat_positions(mask)), together)
    alone = [
        network(*(part[row : row + 1, :length] for part in (ids, mask, ids)), torch.arange(length))
        for row, length in enumerate(LENGTHS.tolist())
    ]
    torch.testing.assert_close(torch.cat(alone), together)
