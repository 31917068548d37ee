"""Tuning of a run's search: its beam size and length penalty, by the validation text alone."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace

from tformer_cli.config.load import as_plain, to_yaml
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.text import Bitext
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import DataError, Problem
from tformer_cli.evaluation.compare import SIGNIFICANCE_LEVEL, compare_systems
from tformer_cli.evaluation.metrics import Metric, Score
from tformer_cli.translate.options import SearchOptions
from tformer_cli.translate.translator import Translator

# Length penalties that are tried first, and the distances to the neighbors of the best one that are
# tried then.
GRID = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)
DISTANCES = (0.2, 0.1)
# Scores that are equal in so many decimals tie.
METRIC_DECIMALS = 2
# Keys that are shown even if they have their defaults.
TUNED_KEYS = ("kind", "beam_size", "length_penalty")


@dataclass(frozen=True, slots=True)
class Trial:
    """A search, and the score of its translations."""

    decoding: DecodingConfig
    score: Score


@dataclass(frozen=True, slots=True)
class Tuning:
    """Searches of a run, scored on its validation text.

    Attributes:
        text: the validation text.
        trials: each search with its score, the run's own first.
        best: the trial with the highest score; of a tie, the run's own.
        p_value: of the difference between the best and the run's own, by paired bootstrap
            resampling; None if the run's own is the best.
    """

    text: Bitext
    trials: tuple[Trial, ...]
    best: Trial
    p_value: float | None

    @property
    def own(self) -> Trial:
        """The search of the run's config."""
        return self.trials[0]

    @property
    def is_significant(self) -> bool:
        """Whether the best differs from the run's own by more than noise."""
        return self.p_value is not None and self.p_value < SIGNIFICANCE_LEVEL

    @property
    def yaml(self) -> str:
        """The lines of a config that set the best search; defaults are left out."""
        search = self.best.decoding
        plain = as_plain(search)
        tuned = {key: plain[key] for key in TUNED_KEYS if key in plain}
        others = {
            part.name: plain[part.name]
            for part in fields(search)
            if getattr(search, part.name) != part.default
        }
        return to_yaml({"decoding": tuned | others})

    def as_json(self) -> dict[str, object]:
        """Return all but the text as plain data."""
        return {
            "trials": [asdict(trial) for trial in self.trials],
            "best": asdict(self.best),
            "p_value": self.p_value,
            "is_significant": self.is_significant,
        }


def tune_search(
    translator: Translator,
    text: Bitext,
    metric: Metric,
    *,
    beam_sizes: Sequence[int] = (),
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Tuning:
    """Score the run's own search, and beam searches of some sizes with several length penalties.

    Without sizes, it is that of the run, or the default size if the run's search is another. Of
    each size the grid is refined twice around its best length penalty. Our own engine searches once
    for all length penalties but 0. `on_done` is called with the number of lines of each trial
    whenever some are done; `on_warning` as by a translator, once for each problem.
    """
    pairs = list(read_texts([text]))
    if not pairs:
        raise DataError(str(text.source_file), "no lines", remedy="name a file with text")
    sources, references = zip(*pairs, strict=True)
    cached = copy.copy(translator)
    cached.engine = translator.engine.with_cache()
    warnings: set[Problem] = set()

    def warn_once(problem: Problem) -> None:
        if problem not in warnings:
            warnings.add(problem)
            on_warning(problem)

    hypotheses: dict[DecodingConfig, list[str]] = {}
    trials: dict[DecodingConfig, Trial] = {}

    def try_all(searches: Iterable[DecodingConfig]) -> Trial:
        """Score searches, unless they are, and return the best of them."""
        tried = list(searches)
        for search in tried:
            if search not in trials:
                hypotheses[search] = cached.translate(
                    sources,
                    decoding=search,
                    name=str(text.source_file),
                    on_done=on_done,
                    on_warning=warn_once,
                )
                trials[search] = Trial(search, metric.score(hypotheses[search], references))
        return best_trial([trials[search] for search in tried])

    own = translator.config.decoding
    try_all([own])
    default = own.beam_size if isinstance(own, BeamConfig) else BeamConfig().beam_size
    for size in beam_sizes or (default,):
        search = SearchOptions(beam_size=size).apply(translator.config)
        if not isinstance(search, BeamConfig):
            try_all([search])
            continue
        best = try_all(replace(search, length_penalty=penalty) for penalty in GRID)
        for distance in DISTANCES:
            best = try_all([best.decoding, *_neighbors(best.decoding, distance)])
    best = best_trial(list(trials.values()))
    p_value = None
    if best.decoding != own:
        systems = {"own": hypotheses[own], "best": hypotheses[best.decoding]}
        statistics = metric.statistics(systems, [references])
        comparison = compare_systems(str(text.source_file), [statistics])
        _, scored = comparison.scores[metric.name]
        assert scored.contrast is not None, "the second system is compared with the first"
        p_value = scored.contrast.p_bootstrap
    return Tuning(text, tuple(trials.values()), best, p_value)


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest score; of a tie, the first."""
    return max(trials, key=lambda trial: round(trial.score.score, METRIC_DECIMALS))


def _neighbors(search: DecodingConfig, distance: float) -> Iterator[BeamConfig]:
    """Yield a beam search with a lower and with a higher length penalty."""
    assert isinstance(search, BeamConfig)
    for penalty in (search.length_penalty - distance, search.length_penalty + distance):
        if penalty >= 0:
            # A sum of decimal fractions has digits that nobody wrote.
            yield replace(search, length_penalty=round(penalty, 1))
