"""A phrase-lookup baseline: what memory alone is worth.

Word alignments by IBM model 1 (Brown et al., 1993, section 4.2), run both ways and joined;
phrases read off them (Koehn et al., 2003, section 3.1); translation left to right, the longest
known phrase first, each by its most frequent translation. No reordering, no language model.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import sacrebleu

Words = Sequence[str]

_NUM_ITERATIONS = 5
_MAX_PHRASE_WORDS = 6


def tokenize(sentence: str) -> list[str]:
    """Words and punctuation marks; the first word loses its capital."""
    words = re.sub(r"([,.?]|'s)", r" \1", sentence).split()
    return [words[0][0].lower() + words[0][1:], *words[1:]]


def detokenize(words: Words) -> str:
    """The sentence for the words."""
    text = re.sub(r" ([,.?]|'s)", r"\1", " ".join(words))
    return text[:1].upper() + text[1:]


class PhraseTable:
    """Phrase translations learnt by counting."""

    def __init__(self, source: Sequence[str], target: Sequence[str]) -> None:
        pairs = [
            (tokenize(one), tokenize(other)) for one, other in zip(source, target, strict=True)
        ]
        forward = _lexical_table(pairs)
        backward = _lexical_table([(other, one) for one, other in pairs])
        counts: defaultdict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
        for one, other in pairs:
            links = _links(one, other, forward)
            links_back = {(i, j) for j, i in _links(other, one, backward)}
            for phrase, translation in _phrases(one, other, _joined(links, links_back)):
                counts[phrase][translation] += 1
        self._best = {phrase: found.most_common(1)[0][0] for phrase, found in counts.items()}

    def translate(self, sentence: str) -> str:
        """Translate by the longest phrases known; an unknown word stays as it is."""
        words = tokenize(sentence)
        result: list[str] = []
        start = 0
        while start < len(words):
            for end in range(min(start + _MAX_PHRASE_WORDS, len(words)), start, -1):
                translation = self._best.get(tuple(words[start:end]))
                if translation is not None:
                    break
            else:
                translation = (words[start],)
            result += translation
            start = end
        return detokenize(result)


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU (13a, cased) and the sacrebleu signature."""
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return score.score, str(metric.get_signature())


def _lexical_table(pairs: Sequence[tuple[Words, Words]]) -> dict[tuple[str, str], float]:
    """p(target | source) of IBM model 1, without the empty word."""
    table: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(_NUM_ITERATIONS):
        joint: defaultdict[tuple[str, str], float] = defaultdict(float)
        total: defaultdict[str, float] = defaultdict(float)
        for source, target in pairs:
            for word in target:
                weights = [table[origin, word] for origin in source]
                norm = sum(weights)
                for origin, weight in zip(source, weights, strict=True):
                    joint[origin, word] += weight / norm
                    total[origin] += weight / norm
        table = {key: value / total[key[0]] for key, value in joint.items()}
    return table


def _links(
    source: Words, target: Words, table: dict[tuple[str, str], float]
) -> set[tuple[int, int]]:
    """Each target word's best source word."""
    return {
        (max(range(len(source)), key=lambda i: table[source[i], word]), j)
        for j, word in enumerate(target)
    }


def _joined(forward: set[tuple[int, int]], backward: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Links found both ways, and then those next to them that reach a word without one."""
    links = forward & backward
    candidates = sorted(forward | backward)
    grown = True
    while grown:
        grown = False
        for i, j in candidates:
            alone = all(i != k for k, _ in links) or all(j != k for _, k in links)
            if alone and any(abs(i - k) <= 1 and abs(j - m) <= 1 for k, m in links):
                links.add((i, j))
                grown = True
    return links


def _phrases(
    source: Words, target: Words, links: set[tuple[int, int]]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The phrase pairs that no link leaves, with and without unlinked words at their edges."""
    found = []
    linked = {j for _, j in links}
    for start in range(len(source)):
        for end in range(start + 1, min(start + _MAX_PHRASE_WORDS, len(source)) + 1):
            inside = [j for i, j in links if start <= i < end]
            if not inside:
                continue
            low, high = min(inside), max(inside) + 1
            if any(low <= j < high and not start <= i < end for i, j in links):
                continue
            first, last = low, high
            while first > 0 and first - 1 not in linked:
                first -= 1
            while last < len(target) and last not in linked:
                last += 1
            found += [
                (tuple(source[start:end]), tuple(target[i:j]))
                for i in range(first, low + 1)
                for j in range(high, last + 1)
            ]
    return found
