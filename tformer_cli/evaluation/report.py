"""Reports of a run, and of two systems: scores, what they depend on, and telling sentences."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tformer_cli.choices import MetricName
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import search_in_words
from tformer_cli.config.schema.text import Bitext
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import Problem, UsageError, quantity
from tformer_cli.evaluation import analysis
from tformer_cli.evaluation.analysis import Bucket, Finding, Terms
from tformer_cli.evaluation.compare import Comparison, SystemScore, common_metrics, score_systems
from tformer_cli.evaluation.evaluate import own_translations, texts_of_split
from tformer_cli.evaluation.metrics import Statistics
from tformer_cli.evaluation.tables import (
    BucketTable,
    breakdowns,
    confidence_tables,
    score_table,
    term_table,
    test_tables,
)
from tformer_cli.plotting import report as plotting
from tformer_cli.plotting.curves import read_history
from tformer_cli.plotting.report import Page, SentenceList
from tformer_cli.storage.outputs import check_outputs
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import ModelFiles, check_translates, find_model
from tformer_cli.text.language import language_of_script, language_tag
from tformer_cli.translate.confidence import Reliability, load_confidence

METRICS: tuple[MetricName, ...] = ("bleu", "chrf")
SAMPLES_SHOWN = 20
# Lists that every text has.
SELECTIONS = ("worst", "best", "samples")

SENTENCE_NOTES = {
    "worst": "Lowest sentence chrF first.",
    "best": "Highest sentence chrF first; of equal ones, the longest.",
    "samples": "At even distances.",
    "copies": "The translation equals its source; the reference does not.",
    "loops": "A phrase is repeated at once; the reference repeats none.",
    "untranslated": "Source words that the reference lacks make up half of the translation.",
    "empty": "There is no translation.",
    "wrong script": "Letters of a script in which the target language is not written.",
    "wrong length": "More than three times as long as the source, or less than a third.",
    **dict.fromkeys(("A is better", "B is better"), "Largest difference of sentence chrF first."),
    "equal scores": "The translations differ.",
}


@dataclass(frozen=True, slots=True)
class Lines:
    """A text, its references and the translations of one or two systems, line by line."""

    languages: tuple[str, str]
    sources: Sequence[str]  # none if they are unknown
    references: Sequence[Sequence[str]]
    systems: Mapping[str, Sequence[str]]

    @property
    def language_tags(self) -> tuple[str, str]:
        """Language tags (BCP 47), as browsers read them: `ja` of NLLB's `jpn_Jpan`."""
        source, target = map(language_tag, self.languages)
        return source, target


@dataclass(frozen=True, slots=True)
class Report:
    """What a run does well and badly on a text.

    Attributes:
        run: its folder.
        text: name of the text.
        scores: by metric.
        by_length: scores by the number of words of the source, by metric.
        by_frequency: scores by how often the rarest word of the source occurs in the training
            sources of its language; empty if the training text is not there.
        terms: what became of numbers, addresses, placeholders, names and negations.
        reliability: how far confidences are from quality, by text; empty if the run is not
            calibrated.
        lists: lines by what they stand out by: worst, best, samples, lost numbers, copies, ...
        page: all that the HTML page shows.
    """

    run: Path
    text: str
    scores: Mapping[MetricName, SystemScore]
    by_length: BucketTable
    by_frequency: BucketTable
    terms: tuple[Terms, ...]
    reliability: Mapping[str, Reliability]
    lists: Mapping[str, tuple[Finding, ...]]
    page: Page

    @property
    def defects(self) -> dict[str, tuple[Finding, ...]]:
        """The lists of lines that something is wrong with."""
        return {name: lines for name, lines in self.lists.items() if name not in SELECTIONS}

    def as_json(self) -> dict[str, object]:
        """Return plain data: what the page shows, but every line, and no text is cut."""
        page = self.page
        keys = "source", "reference", "translation", "chrf"
        columns = page.sources, *page.references, *page.hypotheses, *page.scores
        return {
            "run": str(self.run),
            "text": self.text,
            "facts": page.facts,
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "by_length": _plain_table(self.by_length),
            "by_frequency": _plain_table(self.by_frequency),
            "terms": [asdict(each) for each in self.terms],
            "reliability": {name: asdict(each) for name, each in self.reliability.items()},
            "curves": {name: y for chart in page.charts for name, y in chart.curves.items()},
            "lists": {name: [*map(asdict, lines)] for name, lines in self.lists.items()},
            "sentences": [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)],
        }


def _plain_table(table: BucketTable) -> dict[str, dict[str, object]]:
    return {
        bucket: {metric: asdict(system) for metric, (system,) in scores.items()}
        for bucket, scores in table.items()
    }


def report(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    device: str = "auto",
    workers: int | None = 1,
    log: Callable[[str], object] = lambda line: None,
    on_start: Callable[[int], object] = lambda count: None,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Report:
    """Analyze the translations of a run, and write a page of them, its scores and its curves.

    Translations that `evaluate` has left in eval/ are used if the model and the search are still
    those of the run; others are made and left there.

    Examples:
        >>> report("runs/demo", "report.html").lists["loops"]  # doctest: +SKIP
        (Finding(line=41, words=('die katze',)),)

    Args:
        run: the run folder.
        output: an HTML file; None to write none.
        split: valid, test, or the name of a test set; None for the only test set, or valid without
            one.
        device: of a run that translates: auto, cpu, cuda, cuda:N or mps.
        workers: processes that share the work on a CPU, one thread each; None for one a core.
        log: called with a line whenever something begins that takes long.
        on_start: called with the number of lines that are to be translated.
        on_done: called with the number of lines whenever some are translated.
        on_warning: as for `evaluate`.

    Raises:
        TformerError: the run or a text is unusable, or there is no such split or device.
    """
    files = find_model(RunDirectory(Path(run)))
    check_translates(files.run, files.config)
    check_page(output, [files])
    name, text = _text(files.config, split)
    hypotheses = own_translations(
        files,
        name,
        METRICS,
        device=device,
        workers=workers,
        log=log,
        on_start=on_start,
        on_done=on_done,
        on_warning=on_warning,
    )
    data = files.config.data
    languages = data.direction_of(text)
    sources, references = zip(*read_texts([text]), strict=True)
    lines = Lines(languages, sources, [references], {str(run): hypotheses})
    statistics = [
        metric.statistics(lines.systems, [references])
        for metric in common_metrics(METRICS, [files], name)
    ]
    scores = {name: systems[0] for name, systems in score_systems(statistics).items()}
    (sentence_scores,) = _sentence_scores(name, lines, statistics, [files])
    terms = analysis.compare_terms(sources, references, hypotheses, *languages)
    lists: dict[str, Sequence[Finding]] = {
        **_extremes(sentence_scores, hypotheses),
        **_lost_and_added(terms),
        **analysis.find_defects(sources, references, hypotheses, *languages),
    }
    by_length, by_frequency = _bucket_tables(lines, statistics, data)
    confidence = load_confidence(files, log)
    reliability = {} if confidence is None else confidence.reliability
    page = Page(
        title=f"{run}: {name}",
        facts=_facts(files, text, len(sources)),
        systems=[str(run)],
        languages=lines.language_tags,
        tables=[score_table(scores), *confidence_tables(reliability, name), term_table(terms)],
        charts=_charts(files.run),
        breakdowns=breakdowns(by_length, by_frequency, has_sources=True),
        lists=[_sentence_list(name, findings) for name, findings in lists.items()],
        sources=sources,
        references=[references],
        hypotheses=[hypotheses],
        scores=[sentence_scores],
        marks={},
    )
    if output is not None:
        plotting.save_page(page, Path(output))
    return Report(
        run=Path(run),
        text=name,
        scores=scores,
        by_length=by_length,
        by_frequency=by_frequency,
        terms=tuple(terms),
        reliability=reliability,
        lists={name: tuple(findings) for name, findings in lists.items()},
        page=page,
    )


def check_page(output: str | os.PathLike[str] | None, runs: Iterable[ModelFiles]) -> None:
    """Refuse a page, if there is one to write, that would replace a text of runs."""
    texts = [text for run in runs for text in run.config.data.texts().values()]
    files = [file for text in texts for file in text.files.values() if file.is_file()]
    check_outputs(files, [] if output is None else [Path(output)])


def comparison_page(
    comparison: Comparison,
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    statistics: Sequence[Statistics],
    runs: Sequence[ModelFiles],
) -> Page:
    """Return a page of two systems: their tests, and the sentences that differ most.

    Of files there are neither sources nor training text, which only a run has.
    """
    lines = _common_lines(comparison.text, systems, references, runs)
    one, other = systems
    texts = list(systems.values())
    scores = _sentence_scores(comparison.text, lines, statistics, runs)
    gains = [second - first for first, second in zip(*scores, strict=True)]
    order = sorted(range(len(gains)), key=lambda line: -abs(gains[line]))
    lists = {
        "B is better": [line for line in order if gains[line] > 0],
        "A is better": [line for line in order if gains[line] < 0],
        "equal scores": [
            line for line in order if gains[line] == 0 and texts[0][line] != texts[1][line]
        ],
    }
    listed = {line for each in lists.values() for line in each[: plotting.MAX_LISTED]}
    data = runs[0].config.data if runs else None
    return Page(
        title=f"{one} and {other}: {comparison.text}",
        facts={
            "A": one,
            "B": other,
            "text": comparison.text,
            "sentences": f"{comparison.num_sentences:,}",
            "tests": f"{quantity(comparison.resamples, 'resample')}, seed {comparison.seed}",
        },
        systems=(one, other),
        languages=lines.language_tags,
        tables=[*test_tables(comparison)],
        charts=[],
        breakdowns=breakdowns(*_bucket_tables(lines, statistics, data), bool(lines.sources)),
        lists=[
            SentenceList(name, SENTENCE_NOTES[name], [(line, ()) for line in each])
            for name, each in lists.items()
        ],
        sources=lines.sources,
        references=references,
        hypotheses=texts,
        scores=scores,
        marks={
            line: analysis.mark_differences(
                plotting.shorten(texts[0][line]),
                plotting.shorten(texts[1][line]),
                lines.languages[1],
            )
            for line in listed
        },
    )


def _common_lines(
    name: str,
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    runs: Sequence[ModelFiles],
) -> Lines:
    """Return the lines of systems, with the sources of the first run, if there is one."""
    if not runs:
        return Lines(("", language_of_script(references[0]) or ""), (), references, systems)
    config = runs[0].config
    text = texts_of_split(config, name)[name]
    sources = [source for source, _ in read_texts([text])]
    return Lines(config.data.direction_of(text), sources, references, systems)


def _text(config: Config, split: str | None) -> tuple[str, Bitext]:
    """Return the name and the files of the one text of a split."""
    texts = texts_of_split(config, split or ("test" if config.data.test else "valid"))
    if len(texts) > 1:
        names = {**config.data.valid_texts, **texts}
        remedy = f"choose from: {', '.join(names)}"
        raise UsageError("`split`", "must be one of several texts", got=split, remedy=remedy)
    ((name, text),) = texts.items()
    return name, text


def _sentence_scores(
    name: str, lines: Lines, statistics: Sequence[Statistics], runs: Sequence[ModelFiles]
) -> list[list[float]]:
    """Return chrF by line, for each system; that of the first run, unless it is a metric."""
    for each in statistics:
        if each.metric.name == "chrf":
            return each.sentence_scores()
    (chrf,) = common_metrics(["chrf"], runs[:1], name)
    return chrf.statistics(lines.systems, lines.references).sentence_scores()


def _extremes(scores: Sequence[float], hypotheses: Sequence[str]) -> dict[str, list[Finding]]:
    order = analysis.ranked(scores, hypotheses)
    samples = analysis.even_lines(len(order), SAMPLES_SHOWN)
    extremes = {"worst": order[::-1], "best": order, "samples": samples}
    return {
        name: [Finding(line) for line in lines[: plotting.MAX_LISTED]]
        for name, lines in extremes.items()
    }


def _lost_and_added(terms: Iterable[Terms]) -> dict[str, Sequence[Finding]]:
    lists: dict[str, Sequence[Finding]] = {}
    for each in terms:
        lists[f"lost {each.kind}"] = each.lost
        # Whatever a target language capitalizes would be a new name.
        if each.kind != "names":
            lists[f"added {each.kind}"] = each.added
    return lists


def _sentence_list(name: str, findings: Sequence[Finding]) -> SentenceList:
    what = name.removeprefix("lost ").removeprefix("added ")
    note = SENTENCE_NOTES.get(name) or (
        f"The translation lacks {what} that source and reference have."
        if name.startswith("lost ")
        else f"The translation has {what} that neither source nor reference has."
    )
    return SentenceList(name, note, [(finding.line, finding.words) for finding in findings])


def _bucket_tables(
    lines: Lines, statistics: Sequence[Statistics], data: DataConfig | None
) -> tuple[BucketTable, BucketTable]:
    """Return scores by length, and by frequency where sources and training text are there."""
    source, target = lines.languages
    by_length = (
        analysis.length_buckets(lines.sources, source)
        if lines.sources
        else analysis.length_buckets(lines.references[0], target)
    )
    by_frequency: list[Bucket] = []
    if data is not None and all(
        file.is_file() for text in data.line_texts for file in text.files.values()
    ):
        # Words of other languages may be written alike.
        texts = [text for text in data.line_texts if data.direction_of(text)[0] == source]
        training = (line for line, _ in read_texts(texts))
        counts = analysis.count_words(training, lines.sources, source)
        by_frequency = analysis.frequency_buckets(lines.sources, counts, source)
    return _scores(by_length, statistics), _scores(by_frequency, statistics)


def _scores(buckets: Iterable[Bucket], statistics: Sequence[Statistics]) -> BucketTable:
    return {
        bucket.name: score_systems([each.select(bucket.lines) for each in statistics])
        for bucket in buckets
    }


def _facts(files: ModelFiles, text: Bitext, num_sentences: int) -> dict[str, str]:
    data = files.config.data
    return {
        "run": str(files.run.path),
        "checkpoint": f"{files.checkpoint} (step {files.step:,})",
        "text": ", ".join(map(str, text.files.values())),
        "sentences": f"{num_sentences:,}",
        "languages": " to ".join(data.direction_of(text)),
        "search": search_in_words(asdict(files.config.decoding)),
    }


def _charts(run: RunDirectory) -> list[plotting.Chart]:
    """Return the learning curves of a run that has some: imported ones have none."""
    return plotting.learning_curves(read_history(run, "step")) if run.metrics_file.is_file() else []
