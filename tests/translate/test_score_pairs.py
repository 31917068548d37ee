"""Windows, tokens and long lines, over a scorer that answers by a rule."""

import itertools
import math
from collections.abc import Callable, Sequence

import pytest

from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import DataError, UsageError
from tformer_cli.text.special_tokens import EOS_ID, UNK_ID
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.translate import score as score_module
from tformer_cli.translate.score import ScoredPair, score_pairs


class ByLength:
    """Gives every token of a target minus the length of its source; keeps what it was asked."""

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = max_length
        self.calls: list[list[tuple[list[int], list[int]]]] = []

    def score(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[float, ...]]:
        self.calls.append([(list(source), list(target)) for source, target in pairs])
        on_done(len(pairs))
        return [(-float(len(source)),) * (len(target) + 1) for source, target in pairs]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return build_tokenizers(CharConfig(shared=False), lambda: [("abcdef", "ABC DEF\t")] * 2, seed=1)


def test_each_pair_comes_with_its_tokens_and_the_end(tokenizers):
    scorer = ByLength()
    (first, second) = score_pairs(scorer, tokenizers, [("ab", "B A"), ("abc", "C")])
    assert first == ScoredPair("ab", "B A", ("B", " ", "A", "</s>"), (-3.0,) * 4)
    assert first.log_prob == -12.0
    assert second == ScoredPair("abc", "C", ("C", "</s>"), (-4.0,) * 2)
    encode = tokenizers.source.encode, tokenizers.target.encode
    assert scorer.calls == [
        [
            ([*encode[0]("ab"), EOS_ID], encode[1]("B A")),
            ([*encode[0]("abc"), EOS_ID], encode[1]("C")),
        ]
    ]


def test_lines_of_whitespace_keep_their_position(tokenizers):
    scorer = ByLength()
    found = list(score_pairs(scorer, tokenizers, [("", "A"), (" \t", ""), ("a", "  ")]))
    assert [pair.tokens for pair in found] == [("A", "</s>"), ("</s>",), ("</s>",)]
    assert [len(source) for source, _ in scorer.calls[0]] == [0, 0, 2]
    assert [(pair.source, pair.target) for pair in found] == [("", "A"), (" \t", ""), ("a", "  ")]


@pytest.mark.parametrize(("pair", "where"), [(("\udcfc", "A"), "a"), (("ab", "\ud800"), "b")])
def test_a_text_that_is_no_utf_8_is_named(tokenizers, pair, where):
    pairs = score_pairs(ByLength(), tokenizers, [("ab", "BA"), pair], names=("a", "b"))
    with pytest.raises(UsageError, match=f"^{where}:2: is not UTF-8"):
        list(pairs)


def test_the_language_of_a_translation_is_given(tokenizers):
    scorer, language = ByLength(), [9]
    pairs = [("ab", "BA"), ("ab", ""), ("", ""), ("", "A")]
    found = list(score_pairs(scorer, tokenizers, pairs, tags=[8], target_tags=language))
    assert [pair.tokens for pair in found] == [
        ("B", "A", "</s>"),
        ("</s>",),
        ("</s>",),
        ("A", "</s>"),
    ]
    assert [pair.token_log_probs for pair in found] == [(-4.0,) * 3, (-4.0,), (-0.0,), (-0.0,) * 2]
    encode = tokenizers.target.encode
    targets = [language + encode("BA"), language, [], encode("A")]
    assert [target for _, target in scorer.calls[0]] == targets


def test_what_is_unknown_is_shown_as_such(tokenizers):
    scorer = ByLength()
    (found,) = score_pairs(scorer, tokenizers, [("a", "AxB")])
    assert found.tokens == ("A", "<unk>", "B", "</s>")
    assert scorer.calls[0][0][1][1] == UNK_ID


def test_an_impossible_token_makes_the_whole_impossible():
    assert ScoredPair("a", "b", ("b", "</s>"), (-math.inf, -1.0)).log_prob == -math.inf


def test_windows_bound_what_is_read_ahead(tokenizers, monkeypatch):
    monkeypatch.setattr(score_module, "WINDOW_PAIRS", 3)
    scorer, counts = ByLength(), []
    endless = ((source, "A") for source in itertools.cycle(["a", "ab", "abc", "abcd"]))
    found = itertools.islice(score_pairs(scorer, tokenizers, endless, on_done=counts.append), 5)
    assert [pair.source for pair in found] == ["a", "ab", "abc", "abcd", "a"]
    assert counts == [3, 3]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("a", "A")] * 3 + [("abcd", "A")], "x.en:4: {} (5 tokens); {}"),
        ([("a", "A")] * 3 + [("abc", "ABCD")], "x.de:4: {} (5 tokens); {}"),
    ],
)
def test_a_line_beyond_learned_positions_is_named(tokenizers, monkeypatch, pairs, message):
    monkeypatch.setattr(score_module, "WINDOW_PAIRS", 2)
    with pytest.raises(DataError) as caught:
        list(score_pairs(ByLength(4), tokenizers, pairs, names=("x.en", "x.de")))
    assert str(caught.value) == message.format(
        "is longer than the 4 positions that the model has learned",
        "split it, or train with model.positions: {kind: sinusoidal}",
    )


def test_a_line_as_long_as_learned_positions_is_scored(tokenizers):
    (found,) = score_pairs(ByLength(4), tokenizers, [("abc", "ABC")])
    assert found.tokens == ("A", "B", "C", "</s>")
