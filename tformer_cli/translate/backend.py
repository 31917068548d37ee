"""Backends: the engine that translates for a run, CTranslate2 or our own."""

import contextlib
import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar, get_args

from tformer_cli.choices import Backend, Quantization
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.text import PlainText
from tformer_cli.errors import (
    CheckpointError,
    ExportError,
    TformerError,
    UsageError,
    check_choice,
)
from tformer_cli.export.converted import read_converted
from tformer_cli.export.ctranslate2_engine import CTranslate2Engine, unsupported_by_ctranslate2
from tformer_cli.extras import package
from tformer_cli.process import may_have_gpu, num_processes
from tformer_cli.search.engine import (
    Engine,
    Hypothesis,
    Job,
    OnDone,
    OnWarning,
    Scorer,
    SpecialTokens,
)
from tformer_cli.storage.atomic import make_directory, storage_errors, write_text
from tformer_cli.storage.lock import exclusive_lock
from tformer_cli.storage.run_directory import RunDirectory, is_converted
from tformer_cli.storage.trained_model import EXPORT_NOTES_FILE, ModelFiles, find_model
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.translate.options import LEAVE_ONE_OUT

if TYPE_CHECKING:
    import torch

    from tformer_cli.model.network import Seq2Seq
    from tformer_cli.search.native_engine import NativeEngine
    from tformer_cli.search.teacher_forcing import Aligner

# The command that writes an export, and how many lines it is checked by.
EXPORT = "tformer export --format ctranslate2 --quantization {} --checkpoint {} --check-lines {}"
CHECK_LINES = 100
# Version of the exports that a run keeps; older ones are not read.
EXPORT_VERSION = 3
# How the name of an export that was checked begins.
CHECKED = "checked-"

_Built = TypeVar("_Built")


def once(build: Callable[[], _Built]) -> Callable[[], _Built]:
    """Return what builds at the first call, of whatever thread, and returns that at all calls."""
    lock, built = threading.Lock(), functools.cache(build)

    def get() -> _Built:
        with lock:
            return built()

    return get


class FallbackEngine(Engine):
    """CTranslate2, and for what it does not implement alike our own engine, built when needed."""

    num_callers: ClassVar[int] = CTranslate2Engine.num_callers

    def __init__(self, fast: CTranslate2Engine, build_native: Callable[[], Engine]) -> None:
        self.fast = fast
        self.native = once(build_native)

    @property
    def scorer(self) -> Scorer:  # type: ignore[override]
        """That of our own engine."""
        return self.native().scorer

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        return self._engine(job).decode(job, on_done, on_warning)

    def rerank(self, job: Job, hypotheses: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        return self._engine(job).rerank(job, hypotheses)

    def with_cache(self) -> Engine:
        return FallbackEngine(self.fast, lambda: self.native().with_cache())

    def _engine(self, job: Job) -> Engine:
        try:
            self.fast.check(job.requests, job.config, job.nbest)
        except UsageError:
            return self.native()
        return self.fast


class LoadedEngine(NamedTuple):
    """An engine, where it computes, and what loads its aligner; an export has none."""

    engine: Engine
    device: str
    load_aligner: "Callable[[], Aligner] | None"


def load_engine(
    runs: Sequence[RunDirectory],
    files: ModelFiles,
    checkpoint: str,
    device: str,
    precision: str | None,
    backend: Backend,
    quantization: Quantization | None,
    workers: int | None,
    *,
    log: Callable[[str], object],
) -> LoadedEngine:
    """Load the engine of a run, or of an ensemble; arguments are those of `Translator.load`.

    `files` are those of the first run.
    """
    is_export = files.quantization is not None
    arguments = (quantization, runs[1:], device, precision, workers)
    backend = resolve_backend(backend, *arguments, is_export=is_export)

    # `best` may name another checkpoint by the time it is needed.
    resolved = checkpoint if runs[1:] else files.checkpoint
    native = once(lambda: load_native_engine(runs, resolved, device, precision))
    if is_export:
        return LoadedEngine(engine_of_export(files), "cpu", None)
    engine: Engine | None = None
    if backend == "ctranslate2":
        engine = engine_of_run(files, quantization or "float32")
    elif backend == "auto":
        rounded: Quantization = "int8" if precision == "int8" else "float32"
        fast = checked_engine_of_run(files, rounded, log)
        if fast is not None:
            engine = FallbackEngine(fast, lambda: shared(native(), workers))
    return LoadedEngine(
        engine or shared(native(), workers),
        "cpu" if engine else str(native().device),
        lambda: native().aligner,
    )


def find_files(run: RunDirectory, checkpoint: str) -> ModelFiles:
    """Find what translates: by `find_model`, or a folder that CTranslate2's converters wrote."""
    if not is_converted(run.path):
        return find_model(run, checkpoint)
    if checkpoint not in ("best", "last"):
        what = "has no checkpoints: it was written for CTranslate2"
        raise CheckpointError(str(run.path), what, got=checkpoint, remedy="leave `checkpoint` out")
    return read_converted(run.path)


def native_engine(
    models: "Sequence[Seq2Seq]",
    tokenizers: Tokenizers,
    config: Config,
    device: "torch.device",
    precision: "torch.dtype | None" = None,
) -> "NativeEngine":
    """Return our own engine of a model, or of an ensemble, by default in inference's precision."""
    from tformer_cli.device import resolve_precision
    from tformer_cli.search.native_engine import NativeEngine

    first, *others = models
    tokens = SpecialTokens(*tokenizers.special_ids(config.model.kind))
    precision = resolve_precision(None, device) if precision is None else precision
    return NativeEngine(first, tokens, device=device, precision=precision, others=others)


def load_native_engine(
    runs: Sequence[RunDirectory], checkpoint: str, device: str, precision: str | None
) -> "NativeEngine":
    """Load our own engine of a run, or of several as an ensemble."""
    from tformer_cli.device import resolve_device, resolve_precision
    from tformer_cli.distributed import local_device
    from tformer_cli.storage.trained_model import load_ensemble

    resolved = local_device(resolve_device(device))
    dtype = resolve_precision(precision, resolved)
    trained = load_ensemble(runs, checkpoint)
    models = [each.model for each in trained]
    return native_engine(models, trained[0].tokenizers, trained[0].config, resolved, dtype)


def shared(engine: "NativeEngine", workers: int | None) -> Engine:
    """Return our own engine with its work shared between processes; itself for 1 worker."""
    from tformer_cli.search.workers import with_workers

    return with_workers(engine, workers)


def engine_of_export(files: ModelFiles) -> CTranslate2Engine:
    """Return CTranslate2 with a folder that `tformer export` or another program has written.

    Raises:
        TformerError: CTranslate2 is not installed, or the folder is not as it was written.
    """
    package("ctranslate2", "ctranslate2")
    quantizations: dict[str | None, Quantization] = {name: name for name in get_args(Quantization)}
    if files.quantization not in quantizations:
        where = str(files.directory / EXPORT_NOTES_FILE)
        what = "has an unknown quantization"
        raise CheckpointError(where, what, got=files.quantization, remedy="export the model again")
    quantization = quantizations[files.quantization]
    return CTranslate2Engine(files.directory, files.config.model, files.tokenizers, quantization)


def engine_of_run(files: ModelFiles, quantization: Quantization) -> CTranslate2Engine:
    """Return CTranslate2 with the model of a run, whose export the run keeps for the next time.

    Raises:
        TformerError: CTranslate2 is not installed or cannot compute the model exactly.
    """
    package("ctranslate2", "ctranslate2")
    folder = checked_export(files, quantization)
    if not folder.is_dir():
        folder = files.run.exports / folder.name.removeprefix(CHECKED)
    if not folder.is_dir():
        from tformer_cli.export.ctranslate2 import CTranslate2Format
        from tformer_cli.storage.trained_model import load_trained_model

        trained = load_trained_model(files.run, files.checkpoint)
        with _export_lock(files.run):
            # Another process may have written it meanwhile.
            if not folder.is_dir():
                CTranslate2Format(quantization).save(trained, folder)
    return CTranslate2Engine(folder, files.config.model, files.tokenizers, quantization)


def checked_engine_of_run(
    files: ModelFiles, quantization: Quantization, log: Callable[[str], object]
) -> CTranslate2Engine | None:
    """Return CTranslate2 with an export of a run that translates alike, or None without one.

    The export is written and checked once, in another process: this one stays without torch.
    """
    if any(unsupported_by_ctranslate2(files.config.model, quantization)):
        return None
    try:
        package("ctranslate2", "ctranslate2")
    except UsageError:
        return None
    try:
        folder = checked_export(files, quantization)
        if not folder.is_dir():
            valid = files.config.data.first_valid_text
            if isinstance(valid, PlainText) or not valid.source_file.is_file():
                return None
            _write_checked_export(files, quantization, folder, log)
        return CTranslate2Engine(folder, files.config.model, files.tokenizers, quantization)
    except TformerError as error:
        log(f"{error}; translating without CTranslate2")
        return None


def checked_export(files: ModelFiles, quantization: Quantization) -> Path:
    """Return where a run keeps an export of a model that was checked."""
    name = f"{CHECKED}ctranslate2-{EXPORT_VERSION}-{files.fingerprint[:16]}-{quantization}"
    return files.run.exports / name


@contextlib.contextmanager
def _export_lock(run: RunDirectory) -> Iterator[None]:
    """Make the folder of kept exports, and write there alone."""
    with storage_errors(run.exports):
        make_directory(run.exports)
    waiting = "waiting for another process that exports the same run"
    with exclusive_lock(run.exports / ".lock", waiting):
        yield


def _write_checked_export(
    files: ModelFiles, quantization: Quantization, folder: Path, log: Callable[[str], object]
) -> None:
    """Let `tformer export` write a folder.

    Raises:
        ExportError: it refuses; the reason is kept, so that it is not tried each time.
    """
    refusal = folder.with_name(f"{folder.name}.txt")
    with _export_lock(files.run):
        # Another process may have written one of them meanwhile.
        if folder.is_dir():
            return
        if not refusal.is_file():
            log(f"{files.run.path}: exporting for CTranslate2, once")
            _, *words = EXPORT.format(quantization, files.checkpoint, CHECK_LINES).split()
            command = [sys.executable, "-m", "tformer_cli", *words, files.run.path, folder]
            done = subprocess.run(
                list(map(str, command)),
                capture_output=True,
                encoding="utf-8",
                stdin=subprocess.DEVNULL,
            )
            if done.returncode == 0:
                return
            write_text(refusal, done.stderr or f"ended with code {done.returncode}")
    reason = refusal.read_text(encoding="utf-8").rstrip("\n").rpartition("\n")[2]
    what = "says why there is no export for CTranslate2"
    raise ExportError(str(refusal), what, got=reason, remedy="remove it to try again")


def resolve_backend(
    backend: Backend,
    quantization: Quantization | None,
    ensemble: Sequence[object],
    device: str,
    precision: str | None,
    workers: int | None,
    *,
    is_export: bool = False,
) -> Backend:
    """Return the backend that the arguments of `Translator.load` leave: `auto` may become another.

    A quantization is CTranslate2's. An ensemble, other precisions, several workers, torchrun and
    GPUs are our own engine's. An export for CTranslate2 is CTranslate2's, as it is.

    Raises:
        UsageError: an argument has no effect on the backend, or the backend cannot run here.
    """
    check_choice("`backend`", backend, get_args(Backend))
    if is_export:
        for argument, value in (("backend", backend), ("quantization", quantization)):
            if value not in (None, "auto", "ctranslate2"):
                what = "has no effect on an export for CTranslate2"
                raise UsageError(f"`{argument}`", what, got=value, remedy="leave it out")
        if ensemble:
            what = "has no effect on an export for CTranslate2"
            raise UsageError("`ensemble`", what, remedy="name runs only")
        backend = "ctranslate2"
    if backend == "native":
        if quantization is not None:
            what = 'has no effect on `backend="native"`'
            raise UsageError("`quantization`", what, got=quantization)
        return backend
    if backend == "auto" and quantization is None:
        has_other = ensemble or precision not in (None, "float32", "int8") or num_processes() > 1
        if has_other or workers not in (None, 1) or not _is_cpu(device):
            return "native"
        return backend
    where = '`backend="ctranslate2"`' if backend == "ctranslate2" else "`quantization`"
    if num_processes() > 1:
        raise UsageError(where, "is for one process with threads", remedy="drop torchrun")
    if ensemble:
        raise UsageError("`ensemble`", f"has no effect on {where}", remedy=LEAVE_ONE_OUT)
    if precision not in (None, "float32"):
        what = f"has no effect on {where}"
        raise UsageError("`precision`", what, got=precision, remedy="use `quantization`")
    if workers not in (None, 1):
        what = f"has no effect on {where}, which uses threads"
        raise UsageError("`workers`", what, got=str(workers), remedy="leave it out")
    if device not in ("auto", "cpu"):
        what = f"must be cpu with {where}"
        raise UsageError("`device`", what, got=device, remedy='add `device="cpu"`')
    return "ctranslate2"


def _is_cpu(device: str) -> bool:
    """Return whether a device is the CPU; only a machine that may have a GPU needs torch for it."""
    if device != "auto" or not may_have_gpu():
        return device in ("auto", "cpu")
    from tformer_cli.device import resolve_device

    return resolve_device(device).type == "cpu"
