"""The vocabulary of a run: built before any training, and how well it fits the text."""

import os
from collections.abc import Sequence
from pathlib import Path

from tformer_cli.config.load import check_data_files, dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.statistics import VocabularyReport, report_sides
from tformer_cli.corpus.training_text import training_pairs
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import make_directory, storage_errors, write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.training.pretrained import pretrained_run
from tformer_cli.training.resume import check_run_folder, locked
from tformer_cli.training.setup import config_and_run, new_tokenizers, origin_of, save_tokenizers


def build_vocabulary(
    config: str | os.PathLike[str] | Config,
    run: str | os.PathLike[str] | None = None,
    *,
    settings: Sequence[str] = (),
    overwrite: bool = False,
) -> dict[str, dict[str, VocabularyReport]]:
    """Build the vocabulary of a run before any training, and report how well it fits.

    It is saved in the run folder, with the config. A training with the same text, tokenizer and
    seed uses it.

    Examples:
        >>> reports = build_vocabulary("configs/demo.yaml")  # doctest: +SKIP
        >>> reports["valid"]["source"].unknown_rate  # doctest: +SKIP
        0.0

    Args:
        config: a YAML file, or what `load_config` returned.
        run: the run folder; None for `runs/NAME` of `NAME.yaml`.
        settings: overrides of keys, such as `tokenizer.vocab_size=4000`.
        overwrite: replace an existing vocabulary, unless a model was trained with it.

    Returns:
        The reports on the texts `train` and `valid`, each by side: `source`, and `target` of
            parallel text.

    Raises:
        TformerError: the config is invalid, a text is unusable, or the folder has a vocabulary
            already, or other files.
    """
    parsed, directory = config_and_run(config, run, settings)
    check_data_files(parsed.data)
    _check_no_vocabulary(directory, overwrite)
    pretrained = pretrained_run(parsed, directory)
    with storage_errors(directory.path):
        make_directory(directory.path)
    with locked(directory):
        # A training may have ended since the first check.
        _check_no_vocabulary(directory, overwrite)
        tokenizers = new_tokenizers(parsed, pretrained, log=lambda line: None)
        save_tokenizers(tokenizers, origin_of(parsed, pretrained, directory.stores), directory)
        write_text(directory.config_file, dump_config(parsed))
    return _report(tokenizers, parsed)


def report_vocabulary(run: str | os.PathLike[str]) -> dict[str, dict[str, VocabularyReport]]:
    """Report how well the vocabulary of a run fits, trained or not; nothing is changed.

    Examples:
        >>> report_vocabulary("runs/demo")["train"]["target"].lengths.p99  # doctest: +SKIP
        22

    Returns:
        The reports as of `build_vocabulary`.

    Raises:
        TformerError: the run has no vocabulary, or a text is unusable.
    """
    directory = RunDirectory(Path(run))
    config = load_config(directory.config_file)
    check_data_files(config.data)
    return _report(load_tokenizers(directory.tokenizer), config)


def _check_no_vocabulary(run: RunDirectory, overwrite: bool) -> None:
    check_run_folder(run)
    # The config is written last: without it, the vocabulary is incomplete.
    if run.tokenizer.exists() and run.config_file.exists():
        if run.pointed("last") is not None:
            what = "belongs to the model that this run has trained"
            raise UsageError(str(run.tokenizer), what, remedy="name another folder with `run`")
        if not overwrite:
            remedy = "add `overwrite=True` to replace it, or name another folder with `run`"
            raise UsageError(str(run.tokenizer), "already exists", remedy=remedy)


def _report(tokenizers: Tokenizers, config: Config) -> dict[str, dict[str, VocabularyReport]]:
    data = config.data
    texts = {"train": training_pairs(data)(), "valid": read_texts(data.valid_texts.values())}
    num_sides = data.train[0].num_sides
    return {
        name: report_sides(tokenizers, pairs, num_sides, config.seed)
        for name, pairs in texts.items()
    }
