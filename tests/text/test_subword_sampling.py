"""Subword sampling beside the distributions that the papers define, by enumeration."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.text import subword_sampling
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import FIRST_TAG_ID, UNK_ID
from tformer_cli.text.subword import SubwordTokenizer, learn_subwords
from tformer_cli.text.subword_sampling import BpeDropout, State, SubwordSampler, UnigramSampling

LINES = [
    "the new lower tower is lowest",
    "newer towers are the widest",
    "a low wide tower showed the newest flower",
    "the lowest flowers were wider and newer than the tower",
] * 5
WORDS = ["tower", "newest", "lower", "the", "widest", "a"]
PLAIN = Normalizer(nfkc=False, lowercase=False)


def tokenizer(algorithm: str, size: int = 330) -> SubwordTokenizer:
    config = SubwordConfig(algorithm=algorithm, vocab_size=size)
    return SubwordTokenizer(learn_subwords(LINES, config), PLAIN, name="toy")


@pytest.fixture(scope="module")
def bpe() -> SubwordTokenizer:
    return tokenizer("bpe")


@pytest.fixture(scope="module")
def unigram() -> SubwordTokenizer:
    return tokenizer("unigram", 298)


def drawn(sampler: SubwordSampler, ids: list[int]) -> dict[tuple[int, ...], float]:
    """Return the probability of each segmentation of a word: all walks, by their thresholds."""
    probabilities: Counter[tuple[int, ...]] = Counter()

    def walk(state: State, probability: float) -> None:
        if not state.thresholds:
            probabilities[state.pieces] += probability
        for choice, (low, high) in enumerate(itertools.pairwise([0.0, *state.thresholds])):
            walk(
                state.followers[choice] or sampler._follow(state, choice),
                probability * (high - low),
            )

    walk(sampler._begin(tuple(ids)), 1.0)
    return dict(probabilities)


def bpe_dropout(tokenizer: SubwordTokenizer, word: str, p: float) -> dict[tuple[str, ...], float]:
    """Return the distribution of algorithm 1 of Provilkov et al., over all subsets of merges."""
    scores = dict(zip(tokenizer.tokens(range(tokenizer.size)), tokenizer.scores(), strict=True))
    done: Counter[tuple[str, ...]] = Counter()
    open_ones = {tuple(word): 1.0}
    while open_ones:
        after: Counter[tuple[str, ...]] = Counter()
        for pieces, probability in open_ones.items():
            merges = [at for at in range(len(pieces) - 1) if pieces[at] + pieces[at + 1] in scores]
            for kept in itertools.product([False, True], repeat=len(merges)):
                share = probability * math.prod((1 - p) if each else p for each in kept)
                left = [at for at, each in zip(merges, kept, strict=True) if each]
                if not left:
                    done[pieces] += share
                    continue
                at = max(left, key=lambda at: (scores[pieces[at] + pieces[at + 1]], -at))
                after[*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]] += share
        open_ones = dict(after)
    return dict(done)


def by_unigrams(
    tokenizer: SubwordTokenizer, word: str, alpha: float
) -> dict[tuple[str, ...], float]:
    """Return p(segmentation)^alpha over all segmentations, normalized."""
    scores = dict(zip(tokenizer.tokens(range(tokenizer.size)), tokenizer.scores(), strict=True))
    weights = {}
    for cuts in itertools.product([False, True], repeat=len(word) - 1):
        ends = [at for at, cut in enumerate(cuts, start=1) if cut]
        pieces = tuple(word[a:b] for a, b in itertools.pairwise([0, *ends, len(word)]))
        if all(piece in scores for piece in pieces):
            weights[pieces] = math.exp(alpha * sum(scores[piece] for piece in pieces))
    total = sum(weights.values())
    return {pieces: weight / total for pieces, weight in weights.items()}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("dropout", [0.1, 0.6])
def test_bpe_dropout_has_the_distribution_of_its_paper(bpe, word, dropout):
    probabilities = drawn(BpeDropout(bpe, dropout), bpe.encode(word))
    expected = bpe_dropout(bpe, f"\u2581{word}", dropout)
    found = {tuple(bpe.tokens(pieces)): share for pieces, share in probabilities.items()}
    assert found == pytest.approx(expected, abs=1e-12)
    assert len(found) > 1


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_sampling_has_the_distribution_of_its_paper(unigram, word, alpha):
    probabilities = drawn(UnigramSampling(unigram, alpha), unigram.encode(word))
    expected = by_unigrams(unigram, f"\u2581{word}", alpha)
    found = {tuple(unigram.tokens(pieces)): share for pieces, share in probabilities.items()}
    assert found == pytest.approx(expected, abs=1e-9)
    assert len(found) > 1


def test_a_long_word_takes_time_in_proportion_to_its_characters(unigram, monkeypatch):
    visited = []
    pieces_at = UnigramSampling._pieces_at

    def counted(self, word, start):
        visited.append(start)
        return pieces_at(self, word, start)

    monkeypatch.setattr(UnigramSampling, "_pieces_at", counted)
    sampler = UnigramSampling(unigram, 0.3)
    # As of a language without whitespace.
    ids = unigram.encode("thelowesttowerwasnewest" * 20)
    count = sum(sampler.num_characters[i] for i in ids)
    numbers = np.random.default_rng(3).random((2, count)).tolist()
    for round_number, row in enumerate(numbers, start=1):
        assert unigram.decode(sampler.sample(ids, iter(row))) == unigram.decode(ids)
        # Each position for the sums, and again where a piece begins.
        assert len(visited) <= 2 * count * round_number


def samplers(bpe: SubwordTokenizer, unigram: SubwordTokenizer):
    return [(bpe, BpeDropout(bpe, 0.3)), (unigram, UnigramSampling(unigram, 0.3))]


def test_a_sampled_sentence_has_the_text_of_its_ids(bpe, unigram):
    # Characters that training did not see are bytes.
    for line in [*LINES, "the \u00e9tower\u6f22newest  x1!"]:
        for own, sampler in samplers(bpe, unigram):
            ids = own.encode(line)
            numbers = np.random.default_rng(1).random((20, 200)).tolist()
            drawn_ids = [sampler.sample(ids, iter(row)) for row in numbers]
            assert {own.decode(each) for each in drawn_ids} == {own.decode(ids)}
            assert len({tuple(each) for each in drawn_ids}) > 1


def test_numbers_suffice_that_are_as_many_as_characters(bpe, unigram):
    for own, sampler in samplers(bpe, unigram):
        for line in LINES:
            ids = own.encode(line)
            count = sum(sampler.num_characters[i] for i in ids)
            for number in (0.0, 0.5, 1 - 2**-53):
                sampled = sampler.sample(ids, iter([number] * count))
                assert own.decode(sampled) == own.decode(ids)


def test_without_a_dropped_merge_the_segmentation_is_the_tokenizers(bpe):
    sampler = BpeDropout(bpe, 0.5)
    for line in LINES:
        assert sampler.sample(bpe.encode(line), itertools.repeat(0.0)) == bpe.encode(line)


def test_special_tokens_tags_and_bytes_stay(bpe, unigram):
    for own, sampler in samplers(bpe, unigram):
        fixed = [FIRST_TAG_ID, UNK_ID, *own.byte_ids[5:7]]
        ids = [*fixed, *own.encode("tower newest"), *fixed, *own.encode("lower")]
        numbers = np.random.default_rng(2).random((20, 100)).tolist()
        for row in numbers:
            sampled = sampler.sample(ids, iter(row))
            assert [i for i in sampled if not sampler.num_characters[i]] == fixed * 2
            assert sampled[:4] == fixed


def test_a_sampler_that_forgets_draws_the_same(bpe, monkeypatch):
    ids = bpe.encode(LINES[3])
    rows = np.random.default_rng(3).random((30, 200)).tolist()
    expected = [BpeDropout(bpe, 0.3).sample(ids, iter(row)) for row in rows]
    monkeypatch.setattr(subword_sampling, "MAX_STATES", 5)
    sampler = BpeDropout(bpe, 0.3)
    assert [sampler.sample(ids, iter(row)) for row in rows] == expected
    assert len(sampler._states) < 100
