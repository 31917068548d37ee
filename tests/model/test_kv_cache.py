"""Rows that go on from each other, sentences that come and go: all as if there were no cache."""

import inspect
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.kernels.attention import MIN_BATCHED_ROWS
from tformer_cli.model.build import build_model
from tformer_cli.model.kv_cache import KVCache
from tformer_cli.model.network import Seq2Seq

V = 12


@pytest.fixture(scope="module", params=["as trained", "fused"])
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=16, num_heads=2, feedforward_dim=24, num_encoder_layers=1, num_decoder_layers=2
    )
    trained = build_model(config, source_size=V, target_size=V, seed=3).double().eval()
    return (
        prepare_for_inference(trained, torch.device("cpu")) if request.param == "fused" else trained
    )


def padded(sentences: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, sentences))
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in sentences])
    return ids, ids != 0


class Written:
    """Sentences in slots of a cache, and beside it all that their rows have written."""

    def __init__(self, model: Seq2Seq, sentences: list[list[int]], num_beams: int) -> None:
        self.model = model
        self.sentences = sentences
        self.num_beams = num_beams
        self.rows = [[[] for _ in range(num_beams)] for _ in sentences]
        self.cache = model.init_cache(len(sentences), num_beams)
        self.insert_sources(torch.arange(len(sentences)), sentences)

    def insert_sources(self, slots: Tensor, sentences: list[list[int]]) -> None:
        source, mask = padded(sentences)
        self.cache.insert(slots, self.model.prefill(source, mask), mask)

    def step(self) -> None:
        """Let each row write a token, and compare what follows with the model without a cache."""
        tokens = torch.randint(6, V, (len(self.sentences), self.num_beams))
        logits = self.model.decode_step(tokens, self.cache)
        for rows, chosen in zip(self.rows, tokens.tolist(), strict=True):
            for row, token in zip(rows, chosen, strict=True):
                row.append(token)
        torch.testing.assert_close(logits, self.expected())

    def expected(self) -> Tensor:
        """What follows each row, from all of its tokens at once; nothing follows its padding."""
        sources = [sentence for sentence in self.sentences for _ in range(self.num_beams)]
        targets = [row for rows in self.rows for row in rows]
        states = self.model.target_hidden_states(*padded(sources), padded(targets)[0])
        last = torch.tensor([len(target) - 1 for target in targets])
        logits = self.model.output(states[torch.arange(len(targets)), last])
        return logits.unflatten(0, (-1, self.num_beams))

    def reorder(self, generator: torch.Generator) -> None:
        shape = (len(self.sentences), self.num_beams)
        beam_indices = torch.randint(self.num_beams, shape, generator=generator)
        self.cache.reorder(beam_indices)
        self.rows = [
            [list(rows[beam]) for beam in chosen]
            for rows, chosen in zip(self.rows, beam_indices.tolist(), strict=True)
        ]

    def insert(self, slot: int, sentence: list[int]) -> None:
        self.insert_sources(torch.tensor([slot]), [sentence])
        self.sentences[slot], self.rows[slot] = sentence, [[] for _ in range(self.num_beams)]

    def select(self, slots: list[int]) -> None:
        self.cache.select(torch.tensor(slots))
        self.sentences = [self.sentences[slot] for slot in slots]
        self.rows = [[list(row) for row in self.rows[slot]] for slot in slots]


def sentences(generator: torch.Generator, count: int) -> list[list[int]]:
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return [torch.randint(6, V, (n,), generator=generator).tolist() for n in lengths]


# Each compares some twenty steps of up to dozens of rows.
@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(3, 3), (3, 1), (MIN_BATCHED_ROWS + 2, 1), (MIN_BATCHED_ROWS + 1, 2)]),
    events=st.text("sraket", min_size=15, max_size=30),
)
@torch.inference_mode()
def test_whatever_happens_rows_are_as_without_a_cache(model, seed, shape, events):
    generator = torch.Generator().manual_seed(seed)
    num_slots, num_beams = shape
    written = Written(model, sentences(generator, num_slots), num_beams)
    for event in events:
        written.step()
        count = len(written.sentences)
        slot = int(torch.randint(count, (1,), generator=generator))
        if event == "r":
            written.reorder(generator)
        elif event == "a":
            written.insert(slot, *sentences(generator, 1))
        elif event == "k" and count > 1:
            order = torch.randperm(count, generator=generator).tolist()
            written.select([p for p in order if p != slot])
        elif event == "t":
            written.select([*range(count), slot])
            written.insert(slot, *sentences(generator, 1))


@torch.inference_mode()
def test_slots_that_become_many_see_their_earlier_tokens(model):
    generator = torch.Generator().manual_seed(1)
    written = Written(model, sentences(generator, MIN_BATCHED_ROWS - 1), num_beams=1)
    for _ in range(3):
        written.step()
    written.select([*range(MIN_BATCHED_ROWS - 1), 0])
    written.step()


@torch.inference_mode()
def test_the_cache_is_as_its_picture_shows(model):
    cache = model.init_cache(1, 2)
    source, mask = padded([[7, 8]])
    cache.insert(torch.arange(1), model.prefill(source, mask), mask)
    tokens = torch.tensor([[6, 7]])
    for _ in range(3):
        model.decode_step(tokens, cache)
    cache.reorder(torch.tensor([[0, 0]]))
    model.decode_step(tokens, cache)
    picture = inspect.getdoc(KVCache)
    seen = [re.findall("[x.]", picture.split(f"mask of beam {beam} ")[1][:34]) for beam in (0, 1)]
    assert (cache.mask()[0, 0] == 0).tolist() == [[sign == "x" for sign in row] for row in seen]
    positions = picture.split("position    ")[1].splitlines()[0].split()
    assert cache.key_positions()[0].tolist() == [int(position) for position in positions]


@torch.inference_mode()
def test_cells_that_no_beam_sees_are_dropped(model):
    written = Written(model, [[7, 8], [9]], num_beams=3)
    for _ in range(60):
        written.step()
        # All rows go on from the first one, so only its tokens are seen.
        written.cache.reorder(torch.zeros(2, 3, dtype=torch.long))
        written.rows = [[list(rows[0]) for _ in rows] for rows in written.rows]
    assert 60 <= written.cache.length < 60 * 3


@torch.inference_mode()
def test_what_many_sentences_look_at_lies_without_gaps(model):
    """Gaps between them make a CPU several times as slow."""
    longest = [[7] * 30] + [[8, 9]] * (MIN_BATCHED_ROWS + 3)
    written = Written(model, longest, num_beams=1)
    own, sources = set(), set()
    for number in range(40):
        written.step()
        layer = written.cache.layers[0]
        assert layer.read_length == layer.keys.shape[2]
        own.add(layer.read_length)
        assert layer.source.keys.mT.is_contiguous()
        assert layer.source.values.is_contiguous()
        sources.add(layer.source.keys.shape[2])
        if number == 5:
            written.select(list(range(1, MIN_BATCHED_ROWS + 2)))
    assert own == {16, 24, 32, 40}
    assert sources == {32, 16}
