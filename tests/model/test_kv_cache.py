"""Rows that go on from each other, sentences that come and go: all as if there were no cache."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.model.build import build_model
from tformer_cli.model.kv_cache import MIN_BATCHED_SLOTS
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
    """Sentences in places of a cache, and beside it all that their rows have written."""

    def __init__(self, model: Seq2Seq, sentences: list[list[int]], num_rows: int) -> None:
        self.model = model
        self.sentences = sentences
        self.num_rows = num_rows
        self.rows = [[[] for _ in range(num_rows)] for _ in sentences]
        self.cache = model.init_cache(len(sentences), num_rows)
        self.read(torch.arange(len(sentences)), sentences)

    def read(self, places: Tensor, sentences: list[list[int]]) -> None:
        source, mask = padded(sentences)
        self.cache.insert(places, self.model.prefill(source, mask), mask)

    def step(self) -> None:
        """Let each row write a token, and compare what follows with the model without a cache."""
        tokens = torch.randint(6, V, (len(self.sentences), self.num_rows))
        logits = self.model.decode_step(tokens, self.cache)
        for rows, chosen in zip(self.rows, tokens.tolist(), strict=True):
            for row, token in zip(rows, chosen, strict=True):
                row.append(token)
        torch.testing.assert_close(logits, self.expected())

    def expected(self) -> Tensor:
        """What follows each row, from all of its tokens at once; nothing follows its padding."""
        sources = [sentence for sentence in self.sentences for _ in range(self.num_rows)]
        targets = [row for rows in self.rows for row in rows]
        states = self.model.target_hidden_states(*padded(sources), padded(targets)[0])
        last = torch.tensor([len(target) - 1 for target in targets])
        logits = self.model.output(states[torch.arange(len(targets)), last])
        return logits.unflatten(0, (-1, self.num_rows))

    def reorder(self, generator: torch.Generator) -> None:
        shape = (len(self.sentences), self.num_rows)
        origins = torch.randint(self.num_rows, shape, generator=generator)
        self.cache.reorder(origins)
        self.rows = [
            [list(rows[origin]) for origin in chosen]
            for rows, chosen in zip(self.rows, origins.tolist(), strict=True)
        ]

    def admit(self, place: int, sentence: list[int]) -> None:
        self.read(torch.tensor([place]), [sentence])
        self.sentences[place], self.rows[place] = sentence, [[] for _ in range(self.num_rows)]

    def keep(self, places: list[int]) -> None:
        self.cache.select(torch.tensor(places))
        self.sentences = [self.sentences[place] for place in places]
        self.rows = [[list(row) for row in self.rows[place]] for place in places]


def sentences(generator: torch.Generator, count: int) -> list[list[int]]:
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return [torch.randint(6, V, (n,), generator=generator).tolist() for n in lengths]


# Each compares some twenty steps of up to dozens of rows.
@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(3, 3), (3, 1), (MIN_BATCHED_SLOTS + 2, 1), (MIN_BATCHED_SLOTS + 1, 2)]),
    events=st.text("sraket", min_size=15, max_size=30),
)
@torch.inference_mode()
def test_whatever_happens_rows_are_as_without_a_cache(model, seed, shape, events):
    generator = torch.Generator().manual_seed(seed)
    num_places, num_rows = shape
    written = Written(model, sentences(generator, num_places), num_rows)
    for event in events:
        written.step()
        count = len(written.sentences)
        place = int(torch.randint(count, (1,), generator=generator))
        if event == "r":
            written.reorder(generator)
        elif event == "a":
            written.admit(place, *sentences(generator, 1))
        elif event == "k" and count > 1:
            order = torch.randperm(count, generator=generator).tolist()
            written.keep([p for p in order if p != place])
        elif event == "t":
            written.keep([*range(count), place])
            written.admit(place, *sentences(generator, 1))


@torch.inference_mode()
def test_columns_that_nobody_sees_are_dropped(model):
    written = Written(model, [[7, 8], [9]], num_rows=3)
    for _ in range(60):
        written.step()
        # All rows go on from the first one, so only its tokens are seen.
        written.cache.reorder(torch.zeros(2, 3, dtype=torch.long))
        written.rows = [[list(rows[0]) for _ in rows] for rows in written.rows]
    assert 60 <= written.cache.length < 60 * 3


@torch.inference_mode()
def test_what_many_sentences_look_at_lies_without_gaps(model):
    """Gaps between them make a CPU several times as slow."""
    longest = [[7] * 30] + [[8, 9]] * (MIN_BATCHED_SLOTS + 3)
    written = Written(model, longest, num_rows=1)
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
            written.keep(list(range(1, MIN_BATCHED_SLOTS + 2)))
    assert own == {16, 24, 32, 40}
    assert sources == {32, 16}
