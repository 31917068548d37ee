"""A run with one more target language: its code as a tag, and the text to train it on."""

from dataclasses import fields, replace

import torch

from tformer_cli.config.schema.data import DataConfig, target_token
from tformer_cli.config.schema.fields import checked
from tformer_cli.config.schema.text import (
    Bitext,
    Direction,
    ParallelText,
    TrainingBitext,
    TrainingPairsFile,
    TrainingText,
)
from tformer_cli.corpus.reader import read_nonempty
from tformer_cli.errors import UsageError
from tformer_cli.export.run import write_run
from tformer_cli.storage.atomic import check_absent
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.special_tokens import tag_ids


def extend_run(
    run: RunDirectory,
    output: RunDirectory,
    text: Bitext,
    languages: Direction,
    *,
    like: str | None = None,
    checkpoint: str = "best",
) -> str:
    """Write a run folder with one more target language, and return its tag.

    The tag takes the next reserved id. Its embedding begins as that of another target language, or
    as the mean over all of them. No other weight changes, nor any translation into the former ones.

    Args:
        run: the run folder, of a model with several target languages.
        output: the run folder to write.
        text: joins `data.train`, last.
        languages: source and target language of the text; the target language is the new one.
        like: a target language of the run; None for the mean.
        checkpoint: best, last, a step, or a name such as step-000400.

    Raises:
        TformerError: the run, the text or a language is unusable, or `output` exists.
    """
    check_absent(output.path)
    trained = load_trained_model(run, checkpoint)
    data = trained.config.data
    _check_languages(run, data, languages[1], like)
    new = _training_text(text, languages)
    # A training would find later that it cannot be read.
    for _ in read_nonempty(new):
        pass
    extended = replace(data, train=(*data.train, new))
    config = checked(replace(trained.config, data=extended), str(output.path))
    tag, models = target_token(languages[1]), data.targets if like is None else (like,)
    embeddings = trained.model.source_embeddings
    with torch.no_grad():
        rows = embeddings[list(tag_ids([target_token(x) for x in models], extended.tags))]
        embeddings[tag_ids([tag], extended.tags)] = rows.mean(dim=0)
    write_run(replace(trained, config=config), output.path)
    return tag


def _check_languages(run: RunDirectory, data: DataConfig, new: str, like: str | None) -> None:
    if data.prefixes is not None:
        what = "has a prefix for each target language, and no tags"
        remedy = "add one to data.prefixes of its config, and train that: `init_from=RUN`"
        raise UsageError(str(run.path), what, remedy=remedy)
    if data.language_marks == "tokens":
        what = "has languages as tokens of an imported vocabulary, and no tags"
        remedy = "train it further on languages that it has: `init_from=RUN`"
        raise UsageError(str(run.path), what, remedy=remedy)
    if len(data.targets) < 2:
        what = "has a single target language, so its sources begin with no tag"
        remedy = "train its weights further on texts of several: `init_from=RUN`"
        raise UsageError(str(run.path), what, got=data.targets[0], remedy=remedy)
    if new in data.targets:
        what = "is a target language of the run already"
        raise UsageError(
            "`target_language`", what, got=new, remedy="train it further: `init_from=RUN`"
        )
    if like is not None and like not in data.targets:
        what = "is no target language of the model"
        raise UsageError("`like`", what, got=like, remedy=f"choose from: {', '.join(data.targets)}")


def _training_text(text: Bitext, languages: Direction) -> TrainingBitext:
    """Return a text of some languages to train on, with absolute paths."""
    values = {field.name: getattr(text, field.name) for field in fields(text)}
    values |= {key: file.absolute() for key, file in text.files.items()}
    values |= dict(zip(("source_language", "target_language"), languages, strict=True))
    if isinstance(text, ParallelText):
        return TrainingText(**values)
    return TrainingPairsFile(**values | {"languages": text.languages or languages})
