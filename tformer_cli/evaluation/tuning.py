"""Tuning of a run's search by the validation text alone.

Its beam size and length penalty are chosen, and whether n-grams may occur more than once.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from tformer_cli.choices import TuningMetric
from tformer_cli.config.load import as_plain, to_yaml
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.text import Bitext
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import DataError, Problem, UsageError
from tformer_cli.evaluation.compare import SIGNIFICANCE_LEVEL, mean_p_value
from tformer_cli.evaluation.metrics import Metric, Score, build_metric
from tformer_cli.search.engine import OnDone, OnWarning
from tformer_cli.translate.options import SearchOptions
from tformer_cli.translate.translator import Translator

# Length penalties that are tried first, and the distances to the neighbors of the best one that are
# tried then.
GRID = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)
DISTANCES = (0.2, 0.1)
# Sizes of n-grams that may occur once only, tried with the best length penalty; 0 is no limit.
# A model that has learned too little repeats itself in long sentences.
NGRAM_SIZES = (0, 3, 4)
# Scores that are equal in so many decimals tie.
METRIC_DECIMALS = 2
# Keys that are shown even if they have their defaults.
TUNED_KEYS = ("kind", "beam_size", "length_penalty", "no_repeat_ngram_size")


@dataclass(frozen=True, slots=True)
class Trial:
    """A search, and the score of its translations, the mean of several texts."""

    decoding: DecodingConfig
    score: Score


@dataclass(frozen=True, slots=True)
class Tuning:
    """Searches of a run, scored on its validation text.

    Attributes:
        texts: the validation text, or several of them.
        trials: each search with its score, the run's own first.
        best: the trial with the highest score; of a tie, the run's own.
        p_value: of the difference between the best and the run's own, by paired bootstrap
            resampling; None if the run's own is the best.
    """

    texts: tuple[Bitext, ...]
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
        """Return all but the texts as plain data."""
        return {
            "trials": [asdict(trial) for trial in self.trials],
            "best": asdict(self.best),
            "p_value": self.p_value,
            "is_significant": self.is_significant,
        }


@dataclass(frozen=True, slots=True)
class _ValidationText:
    """A validation text, and what translates and scores it in its direction."""

    text: Bitext
    translator: Translator
    metric: Metric
    sources: Sequence[str]
    references: Sequence[str]

    @classmethod
    def read(cls, text: Bitext, translator: Translator, metric: TuningMetric) -> Self:
        """Read a text.

        Raises:
            DataError: it has no lines.
        """
        pairs = list(read_texts([text]))
        if not pairs:
            raise DataError(str(text.source_file), "no lines", remedy="name a file with text")
        config = translator.config
        source, target = config.data.direction_of(text)
        into = translator.into(target, source)
        built = build_metric(metric, config.evaluation, target)
        return cls(text, into, built, *zip(*pairs, strict=True))

    def translate(
        self, search: DecodingConfig, on_done: OnDone, on_warning: OnWarning
    ) -> list[str]:
        """Return the translations by a search."""
        return self.translator.translate(
            self.sources,
            decoding=search,
            name=str(self.text.source_file),
            on_done=on_done,
            on_warning=on_warning,
        )


def tune_search(
    translator: Translator,
    texts: Sequence[Bitext],
    metric: TuningMetric,
    *,
    beam_sizes: Sequence[int] = (),
    on_done: OnDone = lambda count: None,
    on_warning: OnWarning = lambda problem: None,
) -> Tuning:
    """Score the run's own search, and beam searches of some sizes with several length penalties.

    Without sizes, it is that of the run, or the default size if the run's search is another. Of
    each size the grid is refined twice around its best length penalty. With that one, n-grams of
    some sizes may occur once only, if the engine can; where that is better, its length penalty is
    refined again. Our own engine searches once for all length penalties but 0. `on_done` is called
    with the number of lines of each trial whenever some are done; `on_warning` as by a translator,
    once for each problem.
    """
    own = translator.config.decoding
    default = own.beam_size if isinstance(own, BeamConfig) else BeamConfig().beam_size
    # A size that the other keys of the search forbid is refused before the first trial.
    searches = [
        SearchOptions(beam_size=size).apply(translator.config) for size in beam_sizes or (default,)
    ]
    cached = copy.copy(translator)
    cached.engine = translator.engine.with_cache()
    read = [_ValidationText.read(text, cached, metric) for text in texts]
    warnings: set[Problem] = set()

    def warn_once(problem: Problem) -> None:
        if problem not in warnings:
            warnings.add(problem)
            on_warning(problem)

    hypotheses: dict[DecodingConfig, list[list[str]]] = {}
    trials: dict[DecodingConfig, Trial] = {}

    def try_all(searches: Iterable[DecodingConfig]) -> Trial:
        """Score searches, unless they are, and return the best of them."""
        tried = list(searches)
        for search in tried:
            if search not in trials:
                translated = [text.translate(search, on_done, warn_once) for text in read]
                pairs = zip(read, translated, strict=True)
                scores = [text.metric.score(lines, text.references) for text, lines in pairs]
                hypotheses[search], trials[search] = translated, Trial(search, Score.mean(scores))
        return best_trial([trials[search] for search in tried])

    def is_possible(search: DecodingConfig) -> bool:
        """Return whether the engine has a search; an export has no limits of repetition."""
        try:
            translator.engine.check((), search, 1)
        except UsageError:
            return False
        return True

    def refine(search: BeamConfig) -> Trial:
        """Return the best of some length penalties."""
        best = try_all(replace(search, length_penalty=penalty) for penalty in GRID)
        for distance in DISTANCES:
            best = try_all([best.decoding, *_neighbors(best.decoding, distance)])
        return best

    try_all([own])
    for search in searches:
        refined = refine(search) if isinstance(search, BeamConfig) else try_all([search])
        limits = (replace(refined.decoding, no_repeat_ngram_size=size) for size in NGRAM_SIZES)
        limited = try_all([refined.decoding, *filter(is_possible, limits)])
        if limited is not refined and isinstance(limited.decoding, BeamConfig):
            refine(limited.decoding)
    best = best_trial(list(trials.values()))
    p_value = None
    if best.decoding != own:
        statistics = [
            text.metric.statistics({"own": of_own, "best": of_best}, [text.references])
            for text, of_own, of_best in zip(
                read, hypotheses[own], hypotheses[best.decoding], strict=True
            )
        ]
        p_value = mean_p_value(statistics)
    return Tuning(tuple(texts), tuple(trials.values()), best, p_value)


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
