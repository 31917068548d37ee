"""Export the model of a run, checked and with a model card; import a model as a run."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tformer_cli.choices import FormatName, Quantization
from tformer_cli.config.load import dump_config
from tformer_cli.config.schema.text import Bitext, PlainText
from tformer_cli.corpus.lines import read_lines
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import CheckpointError, DataError, UsageError
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.export.argos import ArgosFormat, read_argos
from tformer_cli.export.card import CARD_FILE, UNKNOWN_LICENSE, Card, known_scores, model_card
from tformer_cli.export.check import CheckResult, CheckText, check_export
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.ctranslate2_import import read_ctranslate2
from tformer_cli.export.format import Format, first_ids
from tformer_cli.export.m2m import M2MFormat, read_m2m
from tformer_cli.export.m2m_settings import ARCHITECTURES as M2M_TYPES
from tformer_cli.export.marian import MarianFormat, read_marian
from tformer_cli.export.marian_npz import MarianNpzFormat, read_marian_npz
from tformer_cli.export.marian_npz_settings import DECODER_FILE
from tformer_cli.export.onnx import SOURCE_FILE, OnnxFormat
from tformer_cli.export.plain import PlainFormat, read_plain_folder
from tformer_cli.export.settings import SETTINGS_FILE, json_object
from tformer_cli.export.t5 import MODEL_TYPES as T5_TYPES
from tformer_cli.export.t5 import T5Format, read_t5
from tformer_cli.storage.atomic import check_absent, new_directory, write_text
from tformer_cli.storage.checkpoint import save_checkpoint
from tformer_cli.storage.run_directory import EXPORT_FILE, RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model, settings_of_model

FORMATS: dict[FormatName, type[Format]] = {
    "argos": ArgosFormat,
    "ctranslate2": CTranslate2Format,
    "m2m": M2MFormat,
    "marian": MarianFormat,
    "marian-npz": MarianNpzFormat,
    "onnx": OnnxFormat,
    "safetensors": PlainFormat,
    "t5": T5Format,
}
# Readers of the folders of transformers, by model type; Marian's is for all others.
READERS = dict.fromkeys(M2M_TYPES, read_m2m) | dict.fromkeys(T5_TYPES, read_t5)


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export: its program, model card, a comparison per search, and ties in words."""

    program: str
    card: Path
    checks: tuple[CheckResult, ...]
    ties: tuple[str, ...]


def export_run(
    run: RunDirectory,
    folder: Path,
    format: FormatName,
    *,
    quantization: Quantization = "float32",
    checkpoint: str = "best",
    check_file: Path | None = None,
    check_lines: int = 200,
    license: str = UNKNOWN_LICENSE,
    on_done: Callable[[int], object] = lambda count: None,
) -> Export:
    """Write the model of a run for another program, atomically and only if both translate alike.

    The first `check_lines` lines of `check_file`, by default the run's validation text, are
    translated; `on_done` is called with numbers of lines done, by each program and search.

    Raises:
        TformerError: the run does not translate; the format cannot represent it; translations
            differ; a package, the text or the folder is not as it must be.
    """
    trained = load_trained_model(run, checkpoint)
    form = build_format(format, quantization)
    form.check(trained)
    text = _check_text(trained, check_file, check_lines)
    references = _references(trained, text) if check_file is None and not form.is_exact else None
    assert trained.files is not None, "it was loaded from a run"
    scores = known_scores(trained.files)
    with form.written(trained, folder) as temporary:
        checks = check_export(trained, form, temporary, text, on_done=on_done)
        if references is not None:
            checks = [_with_bleu(trained, comparison, references) for comparison in checks]
        card = Card(
            name=folder.resolve().name,
            license=license,
            line=text.lines[0],
            translation=trained.tokenizers.target.decode(checks[-1].theirs[0].token_ids),
            checks=list(map(str, checks)),
        )
        write_text(temporary / CARD_FILE, model_card(trained, form, card, scores))
    ties = [tie for part in checks if form.is_exact for tie in _ties(trained, text, part)]
    return Export(form.program, folder / CARD_FILE, tuple(checks), tuple(ties))


def build_format(name: FormatName, quantization: Quantization) -> Format:
    """Return a format with a number format, and refuse one that it does not have."""
    form = FORMATS[name]
    if quantization not in form.quantizations:
        *others, last = form.quantizations
        choices = f"{', '.join(others)} or {last}" if others else last
        what = f'must be {choices} with `format="{name}"`'
        raise UsageError("`quantization`", what, got=quantization)
    return form(quantization)


def _check_text(trained: TrainedModel, file: Path | None, num_lines: int) -> CheckText:
    valid = _valid(trained)
    source = valid.source_file if file is None else file
    if file is None and not source.exists():
        what = "does not exist, so the export cannot be checked"
        raise DataError(str(source), what, remedy="name a text by `check_file`")
    lines = read_lines(source) if file else (line for line, _ in read_texts([valid]))
    return CheckText.of(
        list(itertools.islice(lines, num_lines)),
        trained.tokenizers,
        name=str(source),
        max_length=trained.config.data.filters.max_length,
        first_ids=first_ids(trained),
    )


def _references(trained: TrainedModel, text: CheckText) -> list[str]:
    """Return the targets of the checked lines of the validation text."""
    pairs = itertools.islice(read_texts([_valid(trained)]), text.numbers[-1])
    targets = [target for _, target in pairs]
    return [targets[number - 1] for number in text.numbers]


def _valid(trained: TrainedModel) -> Bitext:
    """Return the validation text that an export is checked by: the first of a list."""
    valid = trained.config.data.first_valid_text
    assert not isinstance(valid, PlainText), "a model that translates was trained on translations"
    return valid


def _with_bleu(
    trained: TrainedModel, comparison: CheckResult, references: list[str]
) -> CheckResult:
    config = trained.config
    decode = trained.tokenizers.target.decode
    _, target = config.data.direction_of(_valid(trained))
    metric = build_metric("bleu", config.evaluation, target)
    bleu, our_bleu = (
        metric.score([decode(best.token_ids) for best in translations], references).score
        for translations in (comparison.theirs, comparison.ours)
    )
    return replace(comparison, bleu=bleu, our_bleu=our_bleu)


def _ties(trained: TrainedModel, text: CheckText, comparison: CheckResult) -> Iterator[str]:
    decode = trained.tokenizers.target.decode
    for tie in comparison.ties:
        assert tie.ours is not None
        assert tie.theirs is not None
        where = f"{text.name}:{text.numbers[tie.line]}"
        pair = f"{decode(tie.ours.token_ids)!r} and {decode(tie.theirs.token_ids)!r}"
        yield f"{where}: equally good, rounding apart: {pair}"


def import_run(
    folder: Path,
    run: RunDirectory,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> TrainedModel:
    """Write a run folder, atomically, that translates as the model of a folder does.

    The folder is for CTranslate2, a Marian model as transformers or Marian itself saves it, an
    M2M-100, NLLB, mBART-50 or T5 model of transformers, or a plain folder; a file is an Argos
    package. Nothing is unpickled. Languages are ISO codes, or names of the model's own languages,
    by default what the folder says.

    Raises:
        TformerError: the folder holds no model of ours, or the run folder exists or cannot be
            written.
    """
    check_absent(run.path)
    trained = read_model(folder, source_language=source_language, target_language=target_language)
    write_run(trained, run.path)
    return trained


def read_model(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder; arguments and errors are those of `import_run`."""
    if folder.is_file():
        return read_argos(folder, source_language=source_language, target_language=target_language)
    if not folder.is_dir():
        raise CheckpointError(str(folder), "no such folder", remedy="name the folder of a model")
    run = RunDirectory(folder)
    config_file = run.config_file
    if config_file.is_file() and run.checkpoints.is_dir():
        what = "is a run folder already"
        remedy = "use it as it is: its path is what commands take as RUN"
        raise CheckpointError(str(folder), what, remedy=remedy)
    if (folder / SOURCE_FILE).is_file():
        what = "holds ONNX graphs, which cannot be imported"
        remedy = "use the run that they were exported from, or another format"
        raise CheckpointError(str(folder), what, remedy=remedy)
    if (folder / EXPORT_FILE).is_file():
        read = read_ctranslate2
    elif config_file.is_file():
        read = read_plain_folder
    elif (folder / SETTINGS_FILE).is_file():
        kind = json_object(folder / SETTINGS_FILE).get("model_type")
        read = READERS.get(str(kind), read_marian)
    elif (folder / DECODER_FILE).is_file():
        read = read_marian_npz
    else:
        names = f"{EXPORT_FILE}, {config_file.name}, {SETTINGS_FILE} and {DECODER_FILE}"
        what = f"holds no model: none of {names} is there"
        remedy = (
            "name a folder for CTranslate2, one that `tformer export --format safetensors` has "
            "written, or a Marian, M2M-100, NLLB, mBART or T5 model as transformers or Marian "
            "saves it"
        )
        if packages := sorted(folder.glob("*.argosmodel")):
            remedy = f"name the package in it: {packages[0]}"
        raise CheckpointError(str(folder), what, remedy=remedy)
    return read(folder, source_language=source_language, target_language=target_language)


def write_run(trained: TrainedModel, path: Path) -> None:
    """Write a run folder, atomically, that has a model, and no training that could be resumed.

    Raises:
        TformerError: the folder exists or cannot be written.
    """
    fingerprint = trained.tokenizers.fingerprint
    progress = TrainingProgress(
        data_fingerprint=fingerprint,
        tokenizer_fingerprint=fingerprint,
        max_source_sentences=trained.max_source_sentences,
        settings=settings_of_model(trained.config),
    )
    # An optimizer before its first step has no state.
    optimizer = torch.optim.SGD(trained.model.parameters())
    with new_directory(path) as temporary:
        run = RunDirectory(temporary)
        write_text(run.config_file, dump_config(trained.config))
        trained.tokenizers.save(run.tokenizer)
        # It has taken no step of its own, whatever the model has, and its state says so.
        checkpoint = run.checkpoint(0)
        save_checkpoint(checkpoint, trained.model, optimizer, progress)
        run.point("best", checkpoint)
        run.point("last", checkpoint)
