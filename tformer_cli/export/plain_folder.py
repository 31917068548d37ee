"""A trained model as a plain folder: to publish, and for whatever reads safetensors.

It holds model.safetensors, the weights by our names, each of those that are shared once, with the
number of sentences of a training line, where it is known, among the file's metadata; the
config.yaml of the run, where text files have names and no places; and its tokenizer/. `tformer
import` makes a run of it again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import safetensors
import torch
from torch import Tensor

from tformer_cli.config.load import data_files, dump_config, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import Text
from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.export.check import BEAM_SIZE
from tformer_cli.export.format import Format
from tformer_cli.export.imported_folder import (
    check_weights,
    fill,
    new_model,
    read_weights,
    shapes,
)
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.engine import NativeEngine
from tformer_cli.storage.atomic import atomic_write, write_text
from tformer_cli.storage.run_directory import MODEL_FILE, RunDirectory
from tformer_cli.storage.tensors import metadata_of, read_notes, save_tensors
from tformer_cli.storage.trained_model import (
    SENTENCES_NOTE,
    TOKENIZERS_NOTE,
    TrainedModel,
    check_settings,
    check_tokenizers,
    model_settings,
    noted_sentences,
)
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.translate.preprocess import special_tokens

Quantization = Literal["float16", "bfloat16", "float32"]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}

_Text = TypeVar("_Text", bound=Text)


@dataclass(frozen=True, slots=True)
class PlainFormat(Format):
    """A plain folder, which is read back as `tformer import` does.

    Attributes:
        quantization: number format of the weights in the file; it is computed in single precision.
    """

    program: ClassVar = "tformer"
    quantization: Quantization = "float32"

    @property
    def is_exact(self) -> bool:
        """Whether nothing is rounded."""
        return self.quantization == "float32"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        """Yield the first weight that is beyond the numbers of the format, if there is one."""
        for name, weight in trained.model.named_parameters():
            if (weight.isfinite() & ~weight.to(DTYPES[self.quantization]).isfinite()).any():
                what, remedy = "has no number as large as one in the weights", "use bfloat16"
                yield Problem("`quantization`", what, f"{self.quantization} for {name}", remedy)
                return

    def write(self, trained: TrainedModel, folder: Path) -> None:
        """Write the weights, the config and the tokenizers, as `Format` says."""
        run, dtype = RunDirectory(folder), DTYPES[self.quantization]
        # named_parameters lists a shared weight once, under its first name.
        named = trained.model.named_parameters()
        weights = {name: weight.detach().to("cpu", dtype).contiguous() for name, weight in named}
        notes = {
            TOKENIZERS_NOTE: trained.tokenizers.fingerprint,
            **model_settings(trained.config),
        }
        if trained.max_source_sentences is not None:
            notes[SENTENCES_NOTE] = str(trained.max_source_sentences)
        with atomic_write(folder / MODEL_FILE) as temporary:
            save_tensors(weights, temporary, metadata_of(notes))
        write_text(run.config_file, dump_config(portable_config(trained.config)))
        trained.tokenizers.save(run.tokenizer)

    def engine(self, trained: TrainedModel, folder: Path) -> NativeEngine:
        """Return our own engine with what has been written."""
        written = read_plain_folder(folder)
        roles = special_tokens(written.tokenizers.target, written.config.model)
        return NativeEngine(written.model, roles, device=torch.device("cpu"))

    def example(self, trained: TrainedModel, line: str) -> str:
        """Return lines of Python that translate a line, as `Format` says."""
        search = (
            f"BeamConfig(beam_size={BEAM_SIZE}, max_length={trained.config.decoding.max_length})"
        )
        return "\n".join(
            [
                "# On a command line: tformer translate, with the name of this folder.",
                "from tformer_cli import BeamConfig, Translator",
                f"search = {search}",
                'translator = Translator.load(".")',
                f"print(translator.translate([{line!r}], decoding=search)[0])",
            ]
        )

    def packages(self, trained: TrainedModel) -> list[str]:
        """Return what has to be installed for that."""
        return ["tformer"]

    def versions(self) -> dict[str, str]:
        """Return the version of safetensors."""
        return {"safetensors": safetensors.__version__}


def portable_config(config: Config) -> Config:
    """Return a config in which text files have names alone, to be looked for below `data.root`.

    Where two files have one name, all keep as much of their paths as tells them apart. What the
    training began with is left out, for the weights came of it.
    """
    data = config.data
    names = _names({file for _, file in data_files(data)})

    def renamed(text: _Text) -> _Text:
        changes: dict[str, Any] = {side: names[file] for side, file in text.files.items()}
        return replace(text, **changes)

    return replace(
        config,
        data=replace(
            data,
            root=None,
            train=tuple(renamed(text) for text in data.train),
            valid=renamed(data.valid),
            test={name: renamed(text) for name, text in data.test.items()},
        ),
        training=replace(config.training, init_from=None),
    )


def _names(files: set[Path]) -> dict[Path, Path]:
    """Return the ends of paths, all of as few parts as tell one from the other."""
    parts = {file: file.relative_to(file.anchor).parts for file in files}
    longest = max(map(len, parts.values()))
    ends = ({file: Path(*parts[file][-n:]) for file in files} for n in range(1, longest + 1))
    return next(names for names in ends if len(set(names.values())) == len(files))


def read_plain_folder(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a plain folder on the CPU, in single precision.

    Args:
        folder: as `PlainFormat` writes it; nothing in it is unpickled.
        source_language: an ISO code; what the folder says where it is None.
        target_language: likewise.

    Raises:
        CheckpointError: a file is missing or damaged, or does not go with the others.
        ConfigError: everything that is wrong with config.yaml.
    """
    run, file = RunDirectory(folder), folder / MODEL_FILE
    for part in (run.config_file, file):
        if not part.is_file():
            raise CheckpointError(
                str(part),
                "no such file",
                remedy="name a folder that `tformer export --format safetensors` has written",
            )
    config = portable_config(load_config(run.config_file))
    data = replace(
        config.data,
        source_language=source_language or config.data.source_language,
        target_language=target_language or config.data.target_language,
    )
    config = replace(config, data=data)
    if isinstance(config.model, MaskedEncoderConfig):
        got = f"model.kind {config.model.kind}"
        raise CheckpointError(str(run.config_file), "does not translate", got=got)
    tokenizers = load_tokenizers(run.tokenizer)
    weights = read_weights(file)
    notes = read_notes(file)
    check_settings(notes, config, run.config_file)
    check_tokenizers(notes.get(TOKENIZERS_NOTE, ""), tokenizers, run.tokenizer)
    model = _model(file, weights, config, tokenizers, settings=run.config_file)
    known = noted_sentences(notes)
    return TrainedModel(config, tokenizers, model, step=0, max_source_sentences=known)


def _model(
    file: Path,
    weights: Mapping[str, Tensor],
    config: Config,
    tokenizers: Tokenizers,
    *,
    settings: Path,
) -> Seq2Seq:
    """Return the model that has the weights of a file.

    Args:
        file: for messages.
        weights: of the file, by their names.
        config: of the model.
        tokenizers: of its vocabularies.
        settings: the file that the config is from, for messages.
    """
    source_size, target_size = tokenizers.source.size, tokenizers.target.size
    expected = shapes(
        config.model,
        source_size=source_size,
        target_size=target_size,
        num_weights=len(weights),
        settings=settings,
    )
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    check_weights(file, found, expected, settings.name)
    model = new_model(
        config.model, source_size=source_size, target_size=target_size, settings=settings
    )
    fill(model, weights, file)
    return model
