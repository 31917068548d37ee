"""`tformer export`."""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tformer_cli.cli.messages import tell
from tformer_cli.cli.options import (
    CheckpointOption,
    LeadingRunArgument,
    QuantizationName,
    chosen_run,
)
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.errors import DataError, UsageError
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from tformer_cli.export.check import Comparison
    from tformer_cli.export.format import CheckText, Format
    from tformer_cli.storage.trained_model import TrainedModel

FormatName = Literal["ctranslate2", "marian", "onnx", "safetensors"]


def export(
    runs: LeadingRunArgument = None,
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write; there must be none yet.")
    ],
    format_name: Annotated[
        FormatName,
        typer.Option(
            "--format",
            help="The program that is to run the model; safetensors is a plain folder, which "
            "`tformer import` takes.",
            show_default=False,
        ),
    ],
    quantization: Annotated[
        QuantizationName, typer.Option(help="Number format of the matrices.")
    ] = "float32",
    check_lines: Annotated[
        int, typer.Option(min=1, help="Lines that both programs translate before it is done.")
    ] = 200,
    check_file: Annotated[
        Path | None,
        typer.Option(help="Where those lines are from. Default: the run's validation text."),
    ] = None,
    license_name: Annotated[
        str, typer.Option("--license", help="Of the weights, for the model card.")
    ] = "unknown",
    checkpoint: CheckpointOption = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a trained model for another program, and prove that it translates alike.

    Both programs translate real lines, by greedy search and, where both know ours, by beam search.
    If a translation or a score differs, nothing is written; only numbers that are rounded, as in
    int8, may differ. The folder holds what makes tokens of text, too, and a README.md with scores
    and a use in Python.

    Example: tformer export runs/demo demo-ct2 --format ctranslate2

    Example: tformer export demo-int8 --format ctranslate2 --quantization int8 --license mit

    Example: tformer export runs/demo demo-plain --format safetensors --quantization bfloat16
    """
    run_directory = chosen_run(_one_run(runs or [], folder), checkpoint)

    from tqdm import tqdm

    from tformer_cli.export.format import exported
    from tformer_cli.export.model_card import CARD_FILE, Card, known_scores, model_card
    from tformer_cli.storage.trained_model import load_trained_model

    trained = load_trained_model(run_directory, checkpoint)
    form = FORMATS[format_name](quantization)
    text = _text(trained, check_file, check_lines)
    has_references = check_file is None and not form.is_exact
    references = _references(trained, text) if has_references else None
    scores = known_scores(run_directory)
    with (
        tqdm(unit="line", disable=not sys.stderr.isatty(), leave=False) as bar,
        exported(trained, form, folder, text, on_done=bar.update) as (temporary, comparisons),
    ):
        checks = [_check(trained, comparison, references) for comparison in comparisons]
        best = comparisons[-1].theirs[0]
        card = Card(
            name=folder.resolve().name,
            program=form.program,
            license=license_name,
            packages=form.packages(trained),
            example=form.example(trained, text.lines[0]),
            translation=trained.tokenizers.target.decode(best.token_ids),
            checks=[str(check) for check in checks],
            versions=form.versions(),
        )
        write_text(temporary / CARD_FILE, model_card(trained, card, scores))
    if as_json:
        content = {
            "folder": str(folder),
            "format": format_name,
            "checks": [asdict(check) for check in checks],
        }
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    for check in checks:
        tell(str(check))
    for comparison in comparisons if form.is_exact else ():
        for line in _ties(trained, text, comparison):
            tell(line)
    tell(f"{folder}: written for {form.program} (see {folder / CARD_FILE})")


@dataclass(frozen=True, slots=True)
class Check:
    """What the comparison by one search has said.

    Attributes:
        search: its name.
        num_lines: that both programs have translated.
        num_best_equal: of them whose best translations are equal.
        num_equal: of them all of whose translations are.
        num_ties: differing translations that both programs find equally good.
        num_differences: other ones, or ones of another score.
        bleu: of the other program's translations, where numbers are rounded.
        our_bleu: of the run's own.
    """

    search: str
    num_lines: int
    num_best_equal: int
    num_equal: int
    num_ties: int
    num_differences: int
    bleu: float | None
    our_bleu: float | None

    def __str__(self) -> str:
        parts = [f"{self.search}: {self.num_best_equal} of {self.num_lines} lines translated alike"]
        if self.num_ties:
            parts.append(f"{self.num_ties} near-ties")
        if self.bleu is not None:
            parts.append(f"BLEU {self.bleu:.2f}, of the run {self.our_bleu:.2f}")
        return ", ".join(parts)


def _one_run(runs: Sequence[Path], folder: Path) -> Path | None:
    """Return the run that was named, if any.

    Raises:
        UsageError: several were, or a run and no folder to write.
    """
    if len(runs) > 1:
        got = " ".join(map(str, [*runs, folder]))
        raise UsageError("RUN", "must be one run folder before DIR", got=got)
    if not runs and RunDirectory(folder).config_file.is_file():
        raise UsageError(
            "DIR", "is missing", got=f"the run {folder}", remedy="add the folder to write"
        )
    return runs[0] if runs else None


def _text(trained: "TrainedModel", file: Path | None, num_lines: int) -> "CheckText":
    """Return the lines to check by.

    Raises:
        DataError: the file cannot be read, or has no line that will do.
    """
    from tformer_cli.corpus.reader import read_lines
    from tformer_cli.export.format import CheckText

    source = _valid(trained).source if file is None else file
    if file is None and not source.exists():
        raise DataError(
            str(source), "is not there to check an export by", remedy="name a text by --check-file"
        )
    return CheckText.of(
        list(itertools.islice(read_lines(source), num_lines)),
        trained.tokenizers,
        name=str(source),
        max_length=trained.config.data.filters.max_length,
    )


def _references(trained: "TrainedModel", text: "CheckText") -> list[str]:
    """Return the translations of lines of the validation text.

    Raises:
        DataError: the file cannot be read.
    """
    from tformer_cli.corpus.reader import read_pairs

    valid = _valid(trained)
    pairs = itertools.islice(read_pairs(valid.source, valid.target), text.numbers[-1])
    targets = [target for _, target in pairs]
    return [targets[number - 1] for number in text.numbers]


def _valid(trained: "TrainedModel") -> ParallelText:
    valid = trained.config.data.valid
    assert isinstance(valid, ParallelText), "what translates is trained on translations"
    return valid


def _check(
    trained: "TrainedModel", comparison: "Comparison", references: "Sequence[str] | None"
) -> Check:
    """Return what a comparison has said; with BLEU of both programs where there are references."""
    from tformer_cli.evaluation.metrics import build_metric

    search, config = comparison.search, trained.config
    bleu = our_bleu = None
    if references is not None:
        metric = build_metric("bleu", config.evaluation, config.data.target_language)
        bleu, our_bleu = (
            metric.score(
                [trained.tokenizers.target.decode(one.token_ids) for one in found], references
            ).score
            for found in (comparison.theirs, comparison.ours)
        )
    return Check(
        search=f"beam search of {search.beam_size}"
        if isinstance(search, BeamConfig)
        else "greedy search",
        num_lines=comparison.num_lines,
        num_best_equal=comparison.num_best_equal,
        num_equal=comparison.num_equal,
        num_ties=len(comparison.ties),
        num_differences=len(comparison.differences),
        bleu=bleu,
        our_bleu=our_bleu,
    )


def _ties(trained: "TrainedModel", text: "CheckText", comparison: "Comparison") -> Iterator[str]:
    """Yield a line for each pair of translations that both programs find equally good."""
    decode = trained.tokenizers.target.decode
    for tie in comparison.ties:
        assert tie.ours is not None
        assert tie.theirs is not None
        where = f"{text.name}:{text.numbers[tie.line]}"
        pair = f"{decode(tie.ours.token_ids)!r} and {decode(tie.theirs.token_ids)!r}"
        yield f"{where}: equally good, rounding apart: {pair}"


def _ctranslate2(quantization: "QuantizationName") -> "Format":
    from tformer_cli.export.ctranslate2.format import CTranslate2Format

    return CTranslate2Format(quantization)


def _marian(quantization: "QuantizationName") -> "Format":
    from tformer_cli.export.marian.format import MarianFormat

    _refuse_rounding(quantization, "marian")
    return MarianFormat()


def _onnx(quantization: "QuantizationName") -> "Format":
    from tformer_cli.export.onnx.format import OnnxFormat

    _refuse_rounding(quantization, "onnx")
    return OnnxFormat()


def _safetensors(quantization: "QuantizationName") -> "Format":
    from tformer_cli.export.plain_folder import PlainFormat

    match quantization:
        case "float16" | "bfloat16" | "float32":
            return PlainFormat(quantization)
    what = "must be float16, bfloat16 or float32 with --format safetensors"
    raise UsageError("--quantization", what, got=quantization)


def _refuse_rounding(quantization: "QuantizationName", name: str) -> None:
    """Make sure that a format that has one kind of numbers is asked for no other.

    Raises:
        UsageError: it is.
    """
    if quantization != "float32":
        raise UsageError(
            "--quantization",
            f"has no effect on --format {name}",
            got=quantization,
            remedy="leave it out",
        )


FORMATS: dict[FormatName, Callable[[QuantizationName], "Format"]] = {
    "ctranslate2": _ctranslate2,
    "marian": _marian,
    "onnx": _onnx,
    "safetensors": _safetensors,
}
