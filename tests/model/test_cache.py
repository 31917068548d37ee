"""Rows that go on from each other, sentences that come and go: all as if there were no cache."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.build import build_model
from tformer_cli.model.fusion import fused
from tformer_cli.model.network import Seq2Seq

V, K = 12, 3


@pytest.fixture(scope="module", params=["as trained", "fused"])
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=16, num_heads=2, feedforward_dim=24, num_encoder_layers=1, num_decoder_layers=2
    )
    trained = build_model(config, source_size=V, target_size=V, seed=3).double().eval()
    return fused(trained) if request.param == "fused" else trained


def padded(sentences: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, sentences))
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in sentences])
    return ids, ids != 0


class Written:
    """Sentences in places of a cache, and beside it all that their rows have written."""

    def __init__(self, model: Seq2Seq, sentences: list[list[int]]) -> None:
        self.model = model
        self.sentences = sentences
        self.rows = [[[] for _ in range(K)] for _ in sentences]
        self.cache = model.start(len(sentences), K)
        model.admit(*padded(sentences), torch.arange(len(sentences)), self.cache)

    def step(self) -> None:
        """Let each row write a token, and compare what follows with the model without a cache."""
        tokens = torch.randint(6, V, (len(self.sentences), K))
        logits = self.model.step(tokens, self.cache)
        for place, sentence in enumerate(self.sentences):
            for row, token in zip(self.rows[place], tokens[place].tolist(), strict=True):
                row.append(token)
            torch.testing.assert_close(logits[place], self.expected(place, sentence))

    def expected(self, place: int, sentence: list[int]) -> Tensor:
        target = torch.tensor(self.rows[place])
        return self.model.output(self.model.states(*padded([sentence] * K), target))[:, -1]

    def reorder(self, generator: torch.Generator) -> None:
        origins = torch.randint(K, (len(self.sentences), K), generator=generator)
        self.cache.reorder(origins)
        self.rows = [
            [list(rows[origin]) for origin in chosen]
            for rows, chosen in zip(self.rows, origins.tolist(), strict=True)
        ]

    def admit(self, place: int, sentence: list[int]) -> None:
        self.model.admit(*padded([sentence]), torch.tensor([place]), self.cache)
        self.sentences[place], self.rows[place] = sentence, [[] for _ in range(K)]

    def keep(self, places: list[int]) -> None:
        self.cache.keep(torch.tensor(places))
        self.sentences = [self.sentences[place] for place in places]
        self.rows = [self.rows[place] for place in places]


def sentences(generator: torch.Generator, count: int) -> list[list[int]]:
    lengths = torch.randint(1, 7, (count,), generator=generator).tolist()
    return [torch.randint(6, V, (n,), generator=generator).tolist() for n in lengths]


@given(seed=st.integers(0, 10_000), events=st.text("srake", min_size=15, max_size=30))
@torch.inference_mode()
def test_whatever_happens_rows_are_as_without_a_cache(model, seed, events):
    generator = torch.Generator().manual_seed(seed)
    written = Written(model, sentences(generator, 3))
    for event in events:
        written.step()
        count = len(written.sentences)
        place = int(torch.randint(count, (1,), generator=generator))
        if event == "r":
            written.reorder(generator)
        elif event == "a":
            written.admit(place, *sentences(generator, 1))
        elif event == "k" and count > 1:
            written.keep([p for p in reversed(range(count)) if p != place])


@torch.inference_mode()
def test_columns_that_nobody_sees_are_dropped(model):
    written = Written(model, [[7, 8], [9]])
    for _ in range(60):
        written.step()
        # All rows go on from the first one, so only its tokens are seen.
        written.cache.reorder(torch.zeros(2, K, dtype=torch.long))
        written.rows = [[list(rows[0]) for _ in rows] for rows in written.rows]
    assert 60 <= written.cache.used < 60 * K
