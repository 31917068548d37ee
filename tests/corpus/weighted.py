"""A store in memory whose pairs have weights of their own."""

from collections.abc import Iterable
from dataclasses import replace

from tformer_cli.corpus.store import PairWeights, TokenStore, build_store


def weighted_store(triples: Iterable[tuple[list[int], list[int], float]]) -> TokenStore:
    rows = list(triples)
    weights = PairWeights.of_runs([1] * len(rows), [weight for *_, weight in rows])
    return replace(build_store((source, target) for source, target, _ in rows), weights=weights)
