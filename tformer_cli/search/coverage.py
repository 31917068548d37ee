"""A coverage penalty: a translation ranks lower for source tokens that it hardly looks at."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tformer_cli.search.alignment import Aligner
from tformer_cli.search.request import Hypothesis, Request


def log_coverage(attention: Tensor) -> float:
    """Return the sum of log(min(coverage, 1)) over source tokens (Wu et al. 2016, section 7).

    The coverage of a source token is the attention that it gets in all; as in CTranslate2, one
    that gets none at all does not count.

    Args:
        attention: (T, S), of a translation's tokens to source tokens, both end tokens among them.
    """
    coverage = attention.sum(dim=0)
    return float(coverage[coverage > 0].clamp(max=1.0).log().sum())


def ranked_by_coverage(
    aligner: Aligner,
    eos: int,
    requests: Sequence[Request],
    results: Sequence[list[Hypothesis]],
    *,
    penalty: float,
    nbest: int,
) -> list[list[Hypothesis]]:
    """Return the `nbest` best translations of each request, where what they cover counts.

    As in CTranslate2, their scores gain penalty * log coverage, after the length penalty.

    Args:
        aligner: says what they look at.
        eos: what a finished translation ends with.
        requests: one for each list of translations.
        results: all that a search has stored, best first.
        penalty: weight of the logarithms.
        nbest: how many are kept.
    """
    ranked = [hypotheses[:nbest] for hypotheses in results]
    written = [
        [(*one.token_ids, eos) if one.finished else one.token_ids for one in hypotheses]
        for hypotheses in results
    ]
    sources = (request.source for request in requests)
    for number, maps in aligner.attention(list(zip(sources, written, strict=True))):
        scored = [
            replace(one, score=one.score + penalty * log_coverage(attention))
            for one, attention in zip(results[number], maps, strict=True)
        ]
        ranked[number] = sorted(scored, key=lambda one: one.score, reverse=True)[:nbest]
    return ranked
