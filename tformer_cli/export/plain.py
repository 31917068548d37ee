"""Export to a plain folder, for publishing and for whatever reads safetensors, and import of it.

The folder holds model.safetensors with our weight names, shared weights once, and metadata that
ties it to the others; config.yaml, with text files by name instead of path; and tokenizer/.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import safetensors
import torch

from tformer_cli.config.load import data_files, dump_config
from tformer_cli.config.schema.config import Config
from tformer_cli.errors import CheckpointError, Problem, UsageError
from tformer_cli.export.check import cpu_engine
from tformer_cli.export.format import Format, beam_of, example_languages, filled
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.storage.atomic import atomic_write, write_text
from tformer_cli.storage.checkpoint import save_tensors
from tformer_cli.storage.notes import metadata_of
from tformer_cli.storage.run_directory import MODEL_FILE, RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model, notes_of

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class PlainFormat(Format):
    """A plain folder; weights may be stored in half precision, and are computed in float32."""

    program: ClassVar = "tformer"
    quantizations: ClassVar = ("float16", "bfloat16", "float32")

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        for name, weight in trained.model.named_parameters():
            if (weight.isfinite() & ~weight.to(DTYPES[self.quantization]).isfinite()).any():
                what = "overflows for a weight of the model"
                remedy = "use bfloat16"
                yield Problem("`quantization`", what, f"{self.quantization} for {name}", remedy)
                return

    def write(self, trained: TrainedModel, folder: Path) -> None:
        run = RunDirectory(folder)
        dtype = DTYPES[self.quantization]
        # named_parameters lists a shared weight once, under its first name.
        named = trained.model.named_parameters()
        weights = {name: weight.detach().to("cpu", dtype).contiguous() for name, weight in named}
        with atomic_write(folder / MODEL_FILE) as temporary:
            save_tensors(weights, temporary, metadata_of(notes_of(trained)))
        write_text(run.config_file, dump_config(portable_config(trained.config)))
        trained.tokenizers.save(run.tokenizer)

    def engine(self, trained: TrainedModel, folder: Path) -> NativeEngine:
        return cpu_engine(read_plain_folder(folder))

    def example(self, trained: TrainedModel, line: str) -> str:
        beam = beam_of(trained.config.decoding)
        data = trained.config.data
        _, target = example_languages(data)
        return filled(
            "plain.py.txt",
            line=repr(line),
            to=f", to={target!r}" if len(data.targets) > 1 else "",
            beam_size=beam.beam_size,
            length_penalty=beam.length_penalty,
            max_length=beam.max_length,
        )

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["tformer"]

    def versions(self) -> dict[str, str]:
        return {"safetensors": safetensors.__version__}


def portable_config(config: Config) -> Config:
    """Return a config without paths of this machine: text files by name, below `data.root`.

    Files that share a name keep as much of their paths as tells them apart. `init_from` is dropped:
    its weights are already in these.
    """
    names = _names({file for _, file in data_files(config.data)})
    data = replace(config.data.with_files(names.__getitem__), root=None)
    return replace(config, data=data, training=replace(config.training, init_from=None))


def _names(files: set[Path]) -> dict[Path, Path]:
    """Return the shortest ends of paths, all of one length, that are distinct."""
    parts = {file: file.relative_to(file.anchor).parts for file in files}
    longest = max(map(len, parts.values()))
    ends = ({file: Path(*parts[file][-n:]) for file in files} for n in range(1, longest + 1))
    return next(names for names in ends if len(set(names.values())) == len(files))


def read_plain_folder(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a plain folder on the CPU, in float32.

    Nothing is unpickled. Arguments and errors are those of `import_run`.
    """
    run = RunDirectory(folder)
    for part in (run.config_file, folder / MODEL_FILE):
        if not part.is_file():
            remedy = "name a folder that `tformer export --format safetensors` has written"
            raise CheckpointError(str(part), "no such file", remedy=remedy)
    trained = load_trained_model(run)
    trained = replace(trained, config=portable_config(trained.config))
    return in_languages(trained, source_language, target_language)


def in_languages(trained: TrainedModel, source: str | None, target: str | None) -> TrainedModel:
    """Return a model whose languages are called otherwise; None leaves a name as it is.

    Raises:
        UsageError: the model knows its languages by their names, and lacks one of these, or was
            trained on several.
    """
    given = {"`source_language`": source, "`target_language`": target}
    named = {where: name for where, name in given.items() if name is not None}
    if not named:
        return trained
    data = trained.config.data
    if len(data.directions) > 1:
        what = "cannot be changed in a model of several languages"
        remedy = "leave it out, and name it when you translate: `to`"
        raise UsageError(next(iter(named)), what, got=next(iter(named.values())), remedy=remedy)
    if target is not None and data.prefixes is not None and target not in data.prefixes:
        what = "has no prefix in this model"
        remedy = "leave it out, and add one to data.prefixes of the run"
        raise UsageError("`target_language`", what, got=target, remedy=remedy)
    for where, name in named.items():
        trained.tokenizers.language_ids((name, name), where)
    ((own_source, own_target),) = data.directions
    data = data.renamed(source or own_source, target or own_target)
    return replace(trained, config=replace(trained.config, data=data))
