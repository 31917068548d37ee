"""What a model looks at, all at once and token by token."""

import torch
from family import translating
from hypothesis import given
from model.test_family import lively
from search.test_engine import END, SPECIAL_TOKENS, START, V, native_engine, requests

from tformer_cli.model.build import build_model
from tformer_cli.model.inspection.attention_recorder import source_attention
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search import teacher_forcing
from tformer_cli.search.teacher_forcing import Aligner, linked_positions

CPU = torch.device("cpu")
SENTENCES = [
    (one.source, [[9, 7, 30, 8][: number % 5], [6 + number, END]])
    for number, one in enumerate(requests(7))
] + [([11, 12, END], [])]


def aligner(*models: Seq2Seq) -> Aligner:
    return Aligner(models, SPECIAL_TOKENS, device=CPU)


def models(count: int) -> list[Seq2Seq]:
    return [model for seed in range(count) for model in native_engine(seed).models]


@torch.no_grad()
def token_by_token(model: Seq2Seq, source: list[int], row: list[int]) -> torch.Tensor:
    """The last row of the map, for a target that grows."""
    read = torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool)
    rows = [torch.empty(0, len(source), dtype=torch.float64)]
    for length in range(1, len(row) + 1):
        target = torch.tensor([[START, *row][:length]])
        rows.append(source_attention(model, *read, target)[0, -1:])
    return torch.cat(rows)


def test_maps_are_what_each_step_sees_whatever_the_batch(monkeypatch):
    (model,) = models(1)
    expected = {
        number: [token_by_token(model, source, row) for row in rows]
        for number, (source, rows) in enumerate(SENTENCES)
        if source and rows
    }
    assert len(expected) < len(SENTENCES)
    for batch_tokens in (1, 20, 4096):
        monkeypatch.setattr(teacher_forcing, "BATCH_TOKENS", batch_tokens)
        found = dict(aligner(model).attention(SENTENCES))
        assert sorted(found) == sorted(expected)
        for number, maps in found.items():
            torch.testing.assert_close(maps, expected[number])


@given(translating)
def test_any_network_that_translates_can_be_asked(config):
    """A decoder alone too, of whose looks those at its source count."""
    model = lively(build_model(config, source_size=V, target_size=V, seed=7))
    some = SENTENCES[1:4]
    assert all(source for source, _ in some)
    for number, maps in aligner(model).attention(some):
        source, rows = some[number]
        expected = [token_by_token(model, source, row) for row in rows]
        torch.testing.assert_close(maps, expected)


def test_the_maps_of_an_ensemble_are_the_mean_of_those_of_its_models():
    first, second = models(2)
    alone = [dict(aligner(model).attention(SENTENCES)) for model in (first, second)]
    for number, maps in aligner(first, second).attention(SENTENCES):
        for both, one, other in zip(maps, alone[0][number], alone[1][number], strict=True):
            torch.testing.assert_close(both, (one + other) / 2)
    assert not torch.allclose(alone[0][number][0], alone[1][number][0])


def shares(maps: torch.Tensor) -> list[list[float]]:
    """Of each token in the look of each other side, multiplied."""
    rows = maps.tolist()
    totals = [sum(column) for column in zip(*rows, strict=True)]
    return [[look * look / total for look, total in zip(row, totals, strict=True)] for row in rows]


def test_a_link_is_the_position_of_the_greatest_share_but_never_eos():
    both = aligner(*models(1))
    links = both.align(SENTENCES)
    maps = dict(both.attention(SENTENCES))
    ends = 0
    for number, (source, rows) in enumerate(SENTENCES):
        assert len(links[number]) == len(rows)
        for index, row in enumerate(rows):
            if not source:
                assert links[number][index] == ()
                continue
            assert len(links[number][index]) == len(row)
            for link, looks in zip(links[number][index], shares(maps[number][index]), strict=True):
                assert looks[link] == max(looks[:-1])
                ends += max(looks) > looks[link]
    assert ends > 0, "an end token that nobody looks at shows little"


def test_tags_before_a_source_are_never_linked_to():
    both = aligner(*models(1))
    longer = [([6, 7, *source], rows) for source, rows in SENTENCES if source]
    links = both.align(longer, num_tags=2)
    maps = dict(both.attention(longer))
    tags = 0
    for number, (_, rows) in enumerate(longer):
        for index in range(len(rows)):
            for link, looks in zip(links[number][index], shares(maps[number][index]), strict=True):
                assert looks[2 + link] == max(looks[2:-1])
                tags += max(looks[:2]) > looks[2 + link]
    assert tags > 0, "tags that nobody looks at show little"


def test_the_first_tokens_of_a_translation_that_are_no_text_take_no_share():
    language = 12
    both = aligner(*models(1))
    longer = [(source, [[language, *row] for row in rows]) for source, rows in SENTENCES]
    links = both.align(longer, num_start=1)
    differing = 0
    for number, maps in both.attention(longer):
        plain = both.align([longer[number]])[0]
        for index, looks in enumerate(maps):
            first, *others = links[number][index]
            assert first is None
            for link, row in zip(others, shares(looks[1:]), strict=True):
                assert row[link] == max(row[:-1])
            differing += plain[index][1:] != tuple(others)
    assert differing > 0, "a language that looks at nothing shows little"


def test_a_source_token_that_all_look_at_is_linked_to_those_that_look_elsewhere_least():
    looks = torch.tensor([[0.5, 0.1, 0.4], [0.1, 0.45, 0.45], [0.1, 0.1, 0.8]])
    assert looks.argmax(dim=-1).tolist()[1] == 1
    assert linked_positions(looks) == (0, 1, 2)
    everywhere = torch.tensor([[0.4, 0.1, 0.5], [0.1, 0.4, 0.5], [0.1, 0.1, 0.8]])
    assert everywhere.argmax(dim=-1).tolist() == [2, 2, 2]
    assert linked_positions(everywhere) == (0, 1, 2)


def test_a_single_token_is_linked_to_what_it_looks_at():
    assert linked_positions(torch.tensor([[0.2, 0.5, 0.3]])) == (1,)


def test_a_source_token_that_nobody_looks_at_is_linked_to_nothing():
    assert linked_positions(torch.tensor([[0.0, 0.7], [0.0, 0.3]])) == (1, 1)
