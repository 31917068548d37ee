"""What makes scores wrong: tokenized or cut text, languages, and text that is in training text."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.text import Bitext, ParallelText, PlainText
from tformer_cli.corpus.overlap import overlap_warnings
from tformer_cli.corpus.reader import counted, read_texts
from tformer_cli.errors import ConfigError, Problem
from tformer_cli.evaluation.metrics import TOKENIZERS_BY_LANGUAGE, Metric, build_metric
from tformer_cli.text.language import (
    are_exchanged,
    base_language,
    is_language_code,
    language_of_name,
    language_of_script,
)

# Those that split punctuation from words.
_SPLITTING = {"13a", "intl"}

# The mark of a piece of a word, as sentencepiece and subword-nmt write it, and no bar of a chart.
_SUBWORD = re.compile(r"(?<![▁-█])▁(?![▁-█])|(?<=[^\s@])@@(?=\s|$)")
# A text with a larger fraction of lines with such a piece is cut; a line may have no rare word.
_MAX_FRACTION = 0.1


def tokenized_warning(metric: Metric, references: Sequence[str]) -> Problem | None:
    """Return what says that BLEU tokenizes references that are tokenized, if so."""
    tokenizer = next((option for option in metric.options if option in _SPLITTING), None)
    num_tokenized = sum(reference.endswith(" .") for reference in references)
    if tokenizer is None or 2 * num_tokenized <= len(references):
        return None
    what = "tokenizes tokenized text: most references end in a space and a period"
    remedy = "write evaluation.bleu.tokenize: none, or detokenize the text"
    return Problem("evaluation.bleu.tokenize", what, tokenizer, remedy)


def subword_warning(metric: Metric, file: Path, lines: Sequence[str]) -> Problem | None:
    """Return what says that BLEU counts the subwords of a file as words, if so."""
    if metric.name != "bleu" or "none" in metric.options:
        return None
    cut = [line for line in lines if _SUBWORD.search(line)]
    if len(cut) <= _MAX_FRACTION * len(lines):
        return None
    what = "is cut into subwords, which BLEU counts as words"
    piece = next(filter(_SUBWORD.search, cut[0].split()))
    return Problem(str(file), what, piece, "join them to words: BLEU is of raw text")


def script_of_no_words(metric: Metric, references: Sequence[str]) -> str | None:
    """Return the language of references between whose words BLEU finds no spaces, if so."""
    if "13a" not in metric.options:
        return None
    script = language_of_script(references)
    return script if script in TOKENIZERS_BY_LANGUAGE else None


def reference_warning(metric: Metric, file: Path, references: Sequence[str]) -> Problem | None:
    """Return what makes BLEU wrong by the references in a file; subwords are tokenized too."""
    return subword_warning(metric, file, references) or tokenized_warning(metric, references)


def config_warnings(
    config: Config, *, on_done: Callable[[int], object] = lambda count: None
) -> Iterator[Problem]:
    """Yield what makes scores of a config wrong: languages, BLEU's tokenizer, overlapping texts.

    The training text is read; `on_done` is called with the number of its lines or pairs.
    """
    yield from _language_warnings(config)
    data = config.data
    tests = {f"data.test.{name}": text for name, text in data.test.items()}
    training = counted(read_texts(data.train), on_done)
    valid = {f"data.{name}": text for name, text in data.valid_texts.items()}
    yield from overlap_warnings(training, valid | tests, data.unit)


def _language_warnings(config: Config) -> Iterator[Problem]:
    data = config.data
    for side in ("source_language", "target_language")[: data.train[0].num_sides]:
        keys: dict[str, str] = {}  # where each language is named first
        for name, text in data.texts().items():
            if own := getattr(text, side, None):
                keys.setdefault(own, f"data.{name}.{side}")
            else:
                keys.setdefault(getattr(data, side), f"data.{side}")
        for language, key in keys.items():
            if not is_language_code(language):
                yield Problem(key, "is not an ISO code", language, "write en, for instance")
    exchanged: dict[tuple[Path, Path], list[str]] = {}
    for name, text in data.texts().items():
        if isinstance(text, ParallelText):
            named = language_of_name(text.source), language_of_name(text.target)
            if are_exchanged(data.direction_of(text), named):
                exchanged.setdefault((text.source, text.target), []).append(f"data.{name}")
    for (source, target), names in exchanged.items():
        what = "has the other direction by the names of its files"
        got = f"{source.name}, {target.name}"
        yield Problem(", ".join(names), what, got, "exchange source and target")
    for text in data.valid_texts.values():
        if not isinstance(text, PlainText):
            yield from _tokenizer_warnings(config, text)


def _tokenizer_warnings(config: Config, text: Bitext) -> Iterator[Problem]:
    _, target = config.data.direction_of(text)
    try:
        bleu = build_metric("bleu", config.evaluation, target)
    except ConfigError as error:
        yield from error.problems
        return
    targets = [target for _, target in read_texts([text])]
    problem = reference_warning(bleu, text.target_file, targets)
    if problem is not None:
        yield problem
    script = script_of_no_words(bleu, targets)
    if script is not None:
        what = f"splits words at spaces, but the target looks like language {script}"
        remedy = f"write data.target_language: {script}"
        if base_language(target) in TOKENIZERS_BY_LANGUAGE:
            remedy = "write evaluation.bleu.tokenize: auto"
        yield Problem("evaluation.bleu.tokenize", what, "13a", remedy)
