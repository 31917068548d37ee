"""The tokenizers of a run: those that its folder has, or new ones."""

import base64
import tempfile
from pathlib import Path
from typing import Any

from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.pipeline import training_pairs
from tformer_cli.corpus.reader import text_checksums
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.json_text import read_json
from tformer_cli.storage.atomic import write_json
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.checkpoints import Log
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.pretrained import PretrainedRun


def run_tokenizers(
    config: Config,
    run: RunDirectory,
    logger: TrainingLogger,
    *,
    stores: Path,
    has_begun: bool,
    fresh: bool,
    world: World = SINGLE_PROCESS,
) -> Tokenizers:
    """Load the tokenizers of a run or of its pretrained, or build them from its training text.

    The first process does, and gives them to the others, which need no file for it.

    Args:
        config: of the run.
        run: its folder.
        logger: hears what takes long.
        stores: keeps what is known of the text.
        has_begun: whether there is a checkpoint, which goes with the tokenizers of the folder.
        fresh: build them whatever the folder has.
        world: the processes that train together.

    Raises:
        TformerError: they cannot be loaded or built.
    """
    if world.is_main_process:
        tokenizers = _own_tokenizers(config, run, logger, stores, has_begun, fresh)
        files = tokenizers.files().items()
        world.broadcast_object(
            {name: base64.b64encode(content).decode() for name, content in files}
        )
        return tokenizers
    with tempfile.TemporaryDirectory() as folder:
        for name, content in world.broadcast_object().items():
            (Path(folder) / name).write_bytes(base64.b64decode(content))
        return load_tokenizers(Path(folder))


def _own_tokenizers(
    config: Config,
    run: RunDirectory,
    logger: TrainingLogger,
    stores: Path,
    has_begun: bool,
    fresh: bool,
) -> Tokenizers:
    if has_begun:
        return load_tokenizers(run.tokenizer)
    pretrained = PretrainedRun.of(config, run)
    known = None if fresh else _known_origin(run)
    # To say what they would be made from, the whole text is read.
    if known is not None and known == origin_of(config, pretrained, stores):
        return load_tokenizers(run.tokenizer)
    return new_tokenizers(config, pretrained, logger.log)


def new_tokenizers(config: Config, pretrained: PretrainedRun | None, log: Log) -> Tokenizers:
    """Take over the tokenizers of a pretrained, or build them from the training text.

    Raises:
        TformerError: they cannot be loaded or built.
    """
    if pretrained is not None:
        return pretrained.tokenizers(config, log)
    log("building the vocabulary")
    return build_tokenizers(config.tokenizer, lambda: training_pairs(config.data), config.seed)


def origin_of(config: Config, pretrained: PretrainedRun | None, stores: Path) -> dict[str, Any]:
    """Return what decides the tokenizers that a config builds, as plain data.

    Args:
        config: of a run.
        pretrained: the run that it begins with.
        stores: keeps what is known of the text.

    Raises:
        DataError: a text cannot be read.
        CheckpointError: the pretrained has no tokenizers.
    """
    return {
        "tokenizer": as_plain(config.tokenizer),
        "seed": config.seed,
        "texts": [text_checksums(list(text.files.values()), stores) for text in config.data.train],
        "predecessor": None if pretrained is None else pretrained.fingerprint(),
    }


def save_tokenizers(tokenizers: Tokenizers, origin: dict[str, Any], run: RunDirectory) -> None:
    """Give a run its tokenizers, and say what they were made from."""
    tokenizers.save(run.tokenizer)
    write_json(run.origin_file, origin)


def _known_origin(run: RunDirectory) -> object:
    """Return what the tokenizers of a run were made from; None where nothing says so."""
    try:
        return read_json(run.origin_file)
    except (OSError, ValueError):
        return None
