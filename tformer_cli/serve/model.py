"""A model that is served: its translator, replaced when its run has a newer version."""

import contextlib
import gc
import threading
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from tformer_cli.config.schema.decoding import DecodingConfig, SearchConfig
from tformer_cli.config.schema.text import Direction
from tformer_cli.storage.run_directory import EXPORT_FILE, MODEL_FILE, RunDirectory
from tformer_cli.translate.direction import TranslationDirection
from tformer_cli.translate.options import SearchOptions, resolve_search
from tformer_cli.translate.translator import Translator

# Searches that are kept once checked: clients choose freely among their keys.
MAX_SEARCHES = 64


class FileVersion(NamedTuple):
    """What tells a file from all that had its name before."""

    inode: int
    nanoseconds: int  # time of the last change


class Version(NamedTuple):
    """What tells a model from all that its run had before."""

    folder: Path  # of the weights
    weights: FileVersion
    confidence: FileVersion | None  # None: not calibrated


class LoadedTranslator:
    """A translator, and what is kept of it as long as it is used."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        # Most requests have the search of one before: to check it anew takes 0.1 ms.
        self.resolve_search = lru_cache(maxsize=MAX_SEARCHES)(partial(_resolve_search, translator))
        self.into = lru_cache(maxsize=None)(partial(_into, translator))


def _resolve_search(
    translator: Translator, changes: SearchOptions, requiring: str | None
) -> DecodingConfig:
    return resolve_search(changes, translator.config, requiring)


def _into(translator: Translator, direction: Direction) -> Translator:
    source, target = direction
    return translator.into(target, source)


class ServedModel:
    """A run with its translator.

    A newer version, of the checkpoint or of what `calibrate` writes, is loaded in another thread
    while the old one translates. One that cannot be loaded is logged once, and the old one stays.
    """

    def __init__(
        self,
        run: RunDirectory,
        checkpoint: str,
        load: Callable[[], Translator],
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Load the translator of a run.

        Args:
            run: the run folder.
            checkpoint: best, last, a step, or a name; only best and last have newer ones.
            load: returns the translator of the run as it is now.
            log: called with a line when a newer version is loaded, or cannot be.
        """
        self.run = run
        self.name = model_name(run.path)
        self.checkpoint = checkpoint
        self._load = load
        self._log = log
        self._loader: threading.Thread | None = None
        self._tried = self.version = find_version(run, checkpoint)
        self._loaded = LoadedTranslator(load())

    @property
    def translator(self) -> Translator:
        """The translator of the version that is used now."""
        return self._loaded.translator

    @property
    def max_length(self) -> int:
        """Most tokens that a request may let a translation have."""
        return max(self.translator.config.decoding.max_length, SearchConfig().max_length)

    @cached_property
    def directions(self) -> tuple[Direction, ...]:
        """Source and target language of all translations that may be asked for.

        They are those of the training texts, unless the translator was loaded for one of them.
        """
        translator = self.translator
        data, own = translator.config.data, translator.direction
        trained = tuple(each for each in data.directions if each[0] != each[1])
        is_chosen = own != TranslationDirection.first(data, translator.tokenizers)
        return (own.languages,) if is_chosen or len(trained) < 2 else trained

    def into(self, direction: Direction | None) -> Translator:
        """Return the translator of a direction; None is the only one."""
        if direction is None or len(self.directions) == 1:
            return self.translator
        return self._loaded.into(direction)

    def resolve_search(self, changes: SearchOptions, requiring: str | None) -> DecodingConfig:
        """Return the search of the run with changes, as the function of this name does."""
        return self._loaded.resolve_search(changes, requiring)

    def reload(self) -> None:
        """Begin to load a newer version, unless one is being loaded."""
        if self._loader is not None and self._loader.is_alive():
            return
        newest = find_version(self.run, self.checkpoint)
        if newest is None or newest == self._tried:
            return
        self._tried = newest
        self._loader = threading.Thread(target=self._replace, args=(newest,), daemon=True)
        self._loader.start()

    def _replace(self, version: Version) -> None:
        try:
            translator = self._load()
        except Exception as error:
            # Whatever is wrong with it, the old one still translates.
            self._log(
                f"{self.run.path}: keeps its checkpoint, as a newer one fails to load: {error}"
            )
            return
        self._loaded, self.version = LoadedTranslator(translator), version
        freeze()
        self._log(f"{self.run.path}: loaded {version.folder.name}")


def freeze() -> None:
    """Let the garbage collector visit no object of now any more, least of all those of the models.

    They live long, and to visit them took a sixth of the time of the event loop.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def model_name(run: Path) -> str:
    """Return the name by which requests choose a run: that of its folder."""
    return run.resolve().name


def find_version(run: RunDirectory, checkpoint: str) -> Version | None:
    """Return the version that a run has now with a checkpoint.

    None if it is not known: also where the system lets no file be opened for the moment.
    """
    with contextlib.suppress(OSError):
        folder = run.path
        if checkpoint in ("best", "last"):
            folder = run.pointed(checkpoint) or run.pointed("last") or folder
        elif checkpoint.isdecimal():
            folder = run.checkpoint(int(checkpoint))
        else:
            folder = run.checkpoints / checkpoint
        weights = _file_version(folder / MODEL_FILE) or _file_version(folder / EXPORT_FILE)
        return weights and Version(folder, weights, _file_version(run.confidence_file))
    return None


def _file_version(file: Path) -> FileVersion | None:
    with contextlib.suppress(OSError):
        status = file.stat()
        return FileVersion(status.st_ino, status.st_mtime_ns)
    return None
