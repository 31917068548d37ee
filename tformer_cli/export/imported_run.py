"""A model from elsewhere as a run folder, which does what runs do."""

from dataclasses import replace
from pathlib import Path

import torch

from tformer_cli.config.load import dump_config
from tformer_cli.errors import CheckpointError
from tformer_cli.export.marian.folder import SETTINGS_FILE, read_marian
from tformer_cli.export.plain_folder import read_plain_folder
from tformer_cli.storage.atomic import check_absent, new_directory, write_text
from tformer_cli.storage.checkpoint import save_checkpoint
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.storage.trained_model import TrainedModel, model_settings


def import_run(
    folder: Path,
    run: RunDirectory,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> TrainedModel:
    """Write a run folder that translates as the model of a folder does: as a whole, or not at all.

    Args:
        folder: a Marian model as transformers saves it, or a plain folder of ours; nothing in it
            is unpickled.
        run: where to write; there must be nothing yet.
        source_language: an ISO code; what the folder says where it is None.
        target_language: likewise.

    Raises:
        CheckpointError: the folder holds something else, or a file is missing or damaged.
        ConfigError: the model is another function than any of ours; everything that differs.
        UsageError: the run folder already exists.
        StorageError: the system does not let it be written.
    """
    check_absent(run.path)
    trained = read_model(folder, source_language=source_language, target_language=target_language)
    with new_directory(run.path) as temporary:
        _write(trained, RunDirectory(temporary))
    return trained


def read_model(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder; arguments and errors as of `import_run`."""
    if not folder.is_dir():
        raise CheckpointError(str(folder), "no such folder", remedy="name the folder of a model")
    settings_file = RunDirectory(folder).config_file
    if settings_file.is_file():
        read = read_plain_folder
    elif (folder / SETTINGS_FILE).is_file():
        read = read_marian
    else:
        raise CheckpointError(
            str(folder),
            f"holds no model: neither {settings_file.name} nor {SETTINGS_FILE} is there",
            remedy="name a folder that `tformer export --format safetensors` has written, "
            "or a Marian model as transformers saves it",
        )
    return read(folder, source_language=source_language, target_language=target_language)


def _write(trained: TrainedModel, run: RunDirectory) -> None:
    write_text(run.config_file, dump_config(trained.config))
    trained.tokenizers.save(run.tokenizer)
    checkpoint = run.checkpoint(trained.step)
    tokenizers = trained.tokenizers.fingerprint
    state = replace(
        TrainingProgress.initial(tokenizers, {}, tokenizers),
        max_source_sentences=trained.max_source_sentences,
        settings=model_settings(trained.config),
    )
    # An optimiser that has not moved has nothing to keep.
    save_checkpoint(checkpoint, trained.model, torch.optim.SGD(trained.model.parameters()), state)
    run.point("best", checkpoint)
    run.point("last", checkpoint)
