"""Python interface: train, evaluate, compare, tune and score as the commands of these names do."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tformer_cli.choices import Backend, MetricName, TuningMetric
from tformer_cli.config.schema.config import BleuTokenizer, Config
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.text import Bitext
from tformer_cli.corpus.reader import has_pipe, read_pairs
from tformer_cli.device import resolve_device
from tformer_cli.errors import Problem, UsageError, check_choice, check_positive, reject_str
from tformer_cli.evaluation.compare import (
    RESAMPLES,
    SEED,
    Comparison,
    common_metrics,
    common_text,
    compare_systems,
    distinct_systems,
    file_warnings,
    read_translations,
)
from tformer_cli.evaluation.evaluate import (
    Evaluation,
    Evaluator,
    evaluate_texts,
    own_translations,
    texts_of_split,
    warn_of_overlap,
)
from tformer_cli.evaluation.report import check_page, comparison_page
from tformer_cli.evaluation.tuning import Tuning, tune_search
from tformer_cli.plotting.report import save_page
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import find_model
from tformer_cli.training import trainer as training
from tformer_cli.training.setup import config_and_run
from tformer_cli.translate.backend import find_files
from tformer_cli.translate.options import MBR, SearchOptions
from tformer_cli.translate.score import ScoredPair, score_pairs
from tformer_cli.translate.translator import Translator


def train(
    config: str | os.PathLike[str] | Config,
    run: str | os.PathLike[str] | None = None,
    *,
    settings: Sequence[str] = (),
    device: str = "auto",
    fresh: bool = False,
    live: bool = False,
) -> Path:
    """Train a model to the end, or resume its training from the last checkpoint.

    Examples:
        >>> train("configs/demo.yaml", settings=["training.max_steps=100"])  # doctest: +SKIP
        PosixPath('runs/demo')

    Args:
        config: a YAML file, or what `load_config` returned.
        run: the run folder; None for `runs/NAME` of `NAME.yaml`.
        settings: overrides of keys, such as `training.max_steps=100`.
        device: auto, cpu, cuda, cuda:N or mps.
        fresh: discard the training in the run folder and start over; other files stay.
        live: redraw curves of loss and validation BLEU, if stderr is a terminal.

    Returns:
        The run folder, for `evaluate` and `Translator.load`.

    Raises:
        TformerError: the config is invalid or changed since the run started, a file is unusable,
            another process trains the run, the training diverged, or memory ran out.
        Interrupted: SIGINT or SIGTERM; the run is saved, and the same call resumes it.
    """
    parsed, directory = config_and_run(config, run, settings)
    training.train(parsed, directory, device=resolve_device(device), fresh=fresh, live=live)
    return directory.path


def evaluate(
    run: str | os.PathLike[str],
    *,
    metrics: Sequence[MetricName] = ("bleu",),
    split: str | None = None,
    text: Bitext | None = None,
    decoding: DecodingConfig | SearchOptions | None = None,
    mbr: MBR | None = None,
    ensemble: Sequence[str | os.PathLike[str]] = (),
    checkpoint: str = "best",
    device: str = "auto",
    precision: str | None = None,
    workers: int | None = 1,
    on_start: Callable[[int], object] = lambda count: None,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> dict[str, Evaluation]:
    """Translate test sets and score them against raw references, by sacrebleu.

    Translations and scores are also written to eval/ in the run folder.

    Examples:
        >>> print(evaluate("runs/demo")["demo"].scores["bleu"])  # doctest: +SKIP
        BLEU = 96.90  (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0)

    Args:
        run: the run folder.
        metrics: bleu, chrf, ter.
        split: valid, test (all test sets of the config), or the name of one; None for test.
        text: evaluated instead of a split, under the name of its source file; of a model with
            several target languages, with its `target_language`.
        decoding: the search, or changes to that of the run; None for the run's own.
        mbr: minimum-Bayes-risk decoding; None ranks by the search.
        ensemble: further runs with the same tokenizers.
        checkpoint: best, last, a step, or a name such as step-000400.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: auto, float32, bfloat16, float16, or int8 on a CPU; None is float32 on a CPU and
            auto on a GPU.
        workers: processes that share the work on a CPU, one thread each; None for one a core.
        on_start: called with the number of lines of each text that is to be translated.
        on_done: called with the number of lines whenever some are translated.
        on_warning: called for each text that is part of the training text, and for each source line
            that is split or truncated.

    Returns:
        The evaluation of each test set, by name.

    Raises:
        TformerError: the run or a text is unusable, or there is no such split, device or search.
    """
    reject_str(metrics=metrics)
    evaluator = Evaluator.load(
        run,
        ensemble=ensemble,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        workers=workers,
    )
    config = evaluator.translator.config
    texts = (
        texts_of_split(config, split, "put it there, or name another `text`")
        if text is None
        else {text.source_file.name: config.data.language_set(text)}
    )
    if text is not None and text.target_language is None:
        # Of several target languages, none is meant by itself.
        evaluator.translator.tag_ids()
    search = decoding.apply(config) if isinstance(decoding, SearchOptions) else decoding
    return evaluate_texts(
        evaluator,
        RunDirectory(Path(run)),
        texts,
        metrics,
        decoding=search,
        mbr=mbr,
        on_start=on_start,
        on_done=on_done,
        on_warning=on_warning,
    )


def compare(
    systems: Sequence[str | os.PathLike[str]],
    *,
    test: str | None = None,
    references: Sequence[str | os.PathLike[str]] = (),
    metrics: Sequence[MetricName] = ("bleu", "chrf"),
    tokenize: BleuTokenizer | None = None,
    lowercase: bool = False,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    output: str | os.PathLike[str] | None = None,
    device: str = "auto",
    workers: int | None = 1,
    log: Callable[[str], object] = lambda line: None,
    on_start: Callable[[int], object] = lambda count: None,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Comparison:
    """Compare runs, or files of translations, with the first of them: scores and significance.

    Runs translate by their own search, as `evaluate` does. Translations that it has left in eval/
    are used if the model and the search are still those of the run; others are made and left there.

    Examples:
        >>> compare(["runs/a", "runs/b"]).scores["bleu"][1].contrast.verdict  # doctest: +SKIP
        'better'

    Args:
        systems: run folders and files of translations; the first is the baseline.
        test: valid, or a test set of the runs; None for their only one, or valid without one.
        references: files of references, without runs: several for several of each sentence.
        metrics: bleu, chrf, ter.
        tokenize: BLEU's tokenizer; None for that of the runs, or 13a for files.
        lowercase: whether BLEU ignores case, even if that of the runs does not.
        resamples: of the bootstrap; also shuffles of the randomization.
        seed: of both.
        output: an HTML page of two systems to write; None for none.
        device: of runs that translate: auto, cpu, cuda, cuda:N or mps.
        workers: processes that share the work on a CPU, one thread each; None for one a core.
        log: called with a line whenever a run begins to translate.
        on_start: called with the number of lines of each text that is to be translated.
        on_done: called with the number of lines whenever some are translated.
        on_warning: as for `evaluate`, of runs that translate; and called for files of which BLEU is
            wrong: tokenized, cut into subwords, or without spaces between words.

    Raises:
        TformerError: a run or file is unusable, or they have different references or metrics.
    """
    reject_str(systems=systems, references=references, metrics=metrics)
    if not metrics:
        raise UsageError("`metrics`", "needs at least one metric", remedy="name bleu or chrf")
    check_positive("`resamples`", resamples)
    check_positive("`seed`", seed)
    paths = distinct_systems(systems)
    if output is not None and len(paths) > 2:
        what = "shows two systems"
        raise UsageError("`output`", what, got=str(len(paths)), remedy="leave the others out")
    runs = {path: find_model(RunDirectory(path)) for path in paths if path.is_dir()}
    check_page(output, runs.values())
    name, texts = common_text(list(runs.values()), test, list(map(Path, references)))
    built = common_metrics(
        metrics, list(runs.values()), name, tokenize=tokenize, lowercase=lowercase
    )
    # Files first: one may have too few lines, and to translate takes minutes.
    files = {path: read_translations(path, texts) for path in paths if path not in runs}
    # Several references may have the same fault.
    for problem in dict.fromkeys(file_warnings(built, {} if runs else texts, files)):
        on_warning(problem)
    hypotheses = {
        str(path): files[path]
        if path in files
        else own_translations(
            runs[path],
            name,
            metrics,
            compared=list(files),
            device=device,
            workers=workers,
            log=log,
            on_start=on_start,
            on_done=on_done,
            on_warning=on_warning,
        )
        for path in paths
    }
    statistics = [metric.statistics(hypotheses, list(texts.values())) for metric in built]
    comparison = compare_systems(name, statistics, resamples=resamples, seed=seed)
    if output is not None:
        page = comparison_page(
            comparison, hypotheses, list(texts.values()), statistics, list(runs.values())
        )
        save_page(page, Path(output))
    return comparison


def tune(
    run: str | os.PathLike[str],
    *,
    metric: TuningMetric = "bleu",
    beam_sizes: Sequence[int] = (),
    checkpoint: str = "best",
    device: str = "auto",
    precision: str | None = None,
    backend: Backend = "auto",
    workers: int | None = 1,
    log: Callable[[str], object] = lambda line: None,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Tuning:
    """Choose the length penalty of a run, and its beam size, by the validation text.

    Of several texts, each in its direction, the mean of the scores counts. Test sets are not read,
    and nothing is changed.

    Examples:
        >>> tuning = tune("runs/demo", beam_sizes=[4, 8])  # doctest: +SKIP
        >>> evaluate("runs/demo", decoding=tuning.best.decoding)  # doctest: +SKIP

    Args:
        run: the run folder.
        metric: bleu or chrf.
        beam_sizes: beam sizes to choose from; none for that of the run, or 5 if its search is
            another.
        checkpoint: best, last, a step, or a name such as step-000400.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: as for `Translator.load`.
        backend: as for `Translator.load`.
        workers: processes that share the work on a CPU, one thread each; None for one a core.
        log: called with a line when an export is written, or CTranslate2 does not do.
        on_done: called with the number of lines whenever some are translated, for each search.
        on_warning: called for a text that is part of the training text, and for each source line
            that is split or truncated.

    Returns:
        The searches with their scores, and the best of them.

    Raises:
        TformerError: the run or its validation text is unusable, or there is no such metric, device
            or search.
    """
    check_choice("`metric`", metric, ("bleu", "chrf"))
    translator = Translator.load(
        run,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        backend=backend,
        workers=workers,
        log=log,
    )
    config = translator.config
    texts = texts_of_split(config, "valid")
    named = {f"data.{name}": text for name, text in texts.items()}
    warn_of_overlap(config.data, named, on_warning)
    return tune_search(
        translator,
        list(texts.values()),
        metric,
        beam_sizes=beam_sizes,
        on_done=on_done,
        on_warning=on_warning,
    )


def score(
    run: str | os.PathLike[str],
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    source_language: str | None = None,
    ensemble: Sequence[str | os.PathLike[str]] = (),
    checkpoint: str = "best",
    device: str = "auto",
    precision: str | None = None,
    on_start: Callable[[int], object] = lambda count: None,
    on_done: Callable[[int], object] = lambda count: None,
    on_warning: Callable[[Problem], object] = lambda problem: None,
) -> Iterator[ScoredPair]:
    """Return the log probabilities of the translations in a file, line by line.

    The files are read once before the first pair is scored, to check them, and again while their
    pairs are scored. A pipe is only read while its pairs are scored.

    Examples:
        >>> pairs = score("runs/demo", "test.en", "test.de")  # doctest: +SKIP
        >>> sum(pair.log_prob for pair in pairs)  # doctest: +SKIP

    Args:
        run: the run folder, or one for CTranslate2, as `Translator.load` takes it.
        source: source text, plain or .gz.
        target: its translation, line by line.
        to: target language, of a model that has several.
        source_language: of a model that has several; None for that of its training texts.
        ensemble: further runs with the same tokenizers.
        checkpoint: best, last, a step, or a name such as step-000400.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: as for `Translator.load`.
        on_start: called with the number of pairs, unless a file is a pipe.
        on_done: called with the number of pairs whenever some are scored.
        on_warning: called for each pair that is too long, which has no score.

    Raises:
        TformerError: the run or a file is unusable, the files have different numbers of lines, or
            there is no such device.
    """
    files = Path(source), Path(target)
    if not has_pipe(*files):
        on_start(sum(1 for _ in read_pairs(*files)))
    # Of an export, CTranslate2 alone reads the weights.
    is_export = find_files(RunDirectory(Path(run)), checkpoint).quantization is not None
    translator = Translator.load(
        run,
        to=to,
        source_language=source_language,
        ensemble=ensemble,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        backend="auto" if is_export else "native",
    )
    return score_pairs(
        translator.engine.scorer,
        translator.tokenizers,
        read_pairs(*files),
        names=(str(files[0]), str(files[1])),
        tags=translator.tag_ids(),
        target_tags=translator.direction.target_ids,
        on_done=on_done,
        on_warning=on_warning,
    )
