"""What every export format provides: write a folder, run it as a check, and show how to use it."""

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import ClassVar

from tformer_cli.choices import Quantization
from tformer_cli.config.schema.data import DataConfig, target_token
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.text import Direction
from tformer_cli.errors import ConfigError, Problem
from tformer_cli.extras import EXTRAS, package
from tformer_cli.search.engine import Engine
from tformer_cli.storage.atomic import new_directory
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.special_tokens import tag_ids
from tformer_cli.text.subword import MarianTokenizer
from tformer_cli.text.tokenizer import Ids, Tokenizer, Tokenizers

TEMPLATES = Path(__file__).with_name("templates")
# Packages that tokenize in a code example, by tokenizer kind.
TOKENIZER_PACKAGES = {
    "subword": ["sentencepiece"],
    "marian": ["sentencepiece"],
    "m2m": ["sentencepiece"],
    "t5": ["sentencepiece"],
    "word": ["torchtext==0.6.0"],
    "char": [],
}


@dataclass(frozen=True)
class Format(ABC):
    """A format that another program runs, with a number format of its matrices."""

    program: ClassVar[str]
    quantizations: ClassVar[tuple[Quantization, ...]] = ("float32",)
    extra: ClassVar[str] = ""  # of pyproject.toml, with the packages that write the folder

    quantization: Quantization = "float32"

    @property
    def is_exact(self) -> bool:
        """Whether no weight is rounded; translations of rounded weights may differ."""
        return self.quantization == "float32"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        """Yield the config keys that the format cannot represent exactly."""
        yield from ()

    @abstractmethod
    def write(self, trained: TrainedModel, folder: Path) -> None:
        """Write all files into an empty folder."""

    @abstractmethod
    def engine(self, trained: TrainedModel, folder: Path) -> Engine:
        """Return an engine that runs the written folder."""

    def searches(self, own: DecodingConfig) -> list[DecodingConfig]:
        """Return the searches to compare engines by; the last one is that of the code example.

        `own` is the search of the run.
        """
        return [GreedyConfig(max_length=own.max_length), beam_of(own)]

    @abstractmethod
    def example(self, trained: TrainedModel, line: str) -> str:
        """Return Python code that translates a line inside the folder, and prints it."""

    @abstractmethod
    def packages(self, trained: TrainedModel) -> list[str]:
        """Return the packages that the example needs, as arguments of pip."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that write the folder, besides torch."""
        packages = EXTRAS[self.extra].packages if self.extra else ()
        return {name: package(name, self.extra).__version__ for name in packages}

    def check(self, trained: TrainedModel) -> None:
        """Raise a ConfigError of all config keys that the format cannot represent, if any."""
        if problems := list(self.unsupported(trained)):
            raise ConfigError(problems)

    @contextlib.contextmanager
    def written(self, trained: TrainedModel, folder: Path) -> Iterator[Path]:
        """Write a new folder atomically, and yield it before it takes its name.

        Raises:
            ConfigError: as for `check`.
        """
        self.check(trained)
        with new_directory(folder) as temporary:
            self.write(trained, temporary)
            yield temporary

    def save(self, trained: TrainedModel, folder: Path) -> None:
        """Write a new folder atomically; errors are those of `written`."""
        with self.written(trained, folder):
            pass


def beam_of(own: DecodingConfig) -> BeamConfig:
    """Return the beam size and length penalty of a run; the defaults if its search is no beam."""
    beam = own if isinstance(own, BeamConfig) and own.beam_size > 1 else BeamConfig()
    return BeamConfig(
        beam_size=beam.beam_size, length_penalty=beam.length_penalty, max_length=own.max_length
    )


def filled(template: str, **values: object) -> str:
    """Return a template of this room with its values."""
    return Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)


def sentencepiece_model(tokenizer: Tokenizer) -> bytes:
    """Return the serialized sentencepiece model of a tokenizer of subwords."""
    return tokenizer.model if isinstance(tokenizer, MarianTokenizer) else tokenizer.content


def sentencepiece_models(tokenizers: Tokenizers) -> dict[str, bytes]:
    """Return the sentencepiece models of both sides by file name without suffix."""
    source = tokenizers.source
    if source.kind in ("word", "char"):
        return {}
    is_one = source.kind == "m2m" or (source.kind == "subword" and tokenizers.shared)
    names = ("shared", "shared") if is_one else ("source", "target")
    models = map(sentencepiece_model, (source, tokenizers.target))
    return dict(zip(names, models, strict=True))


def write_sentencepiece_models(tokenizers: Tokenizers, folder: Path) -> None:
    """Write the sentencepiece models that `token_code` loads."""
    for name, content in sentencepiece_models(tokenizers).items():
        (folder / f"{name}.model").write_bytes(content)


def no_language_tokens(where: str, other: str) -> Problem:
    """Return the problem of a format whose translations cannot begin with a language."""
    what = f"has languages as tokens, with which no translation of {where} can begin"
    return Problem("tokenizer.kind", what, "m2m", f'use `format="{other}"`')


def first_ids(trained: TrainedModel) -> tuple[Ids, Ids]:
    """Return the ids that sources and targets of the first validation text begin with.

    An export is checked, and its example shown, by lines of that text. The ids are language
    tokens, a prefix or the tag of a target language, or nothing.
    """
    data = trained.config.data
    return trained.tokenizers.first_ids(data, data.first_valid_text)


def example_languages(data: DataConfig) -> Direction:
    """Return source and target language of the lines that check an export and are its example."""
    return data.direction_of(data.first_valid_text)


def token_code(
    trained: TrainedModel, line: str, *, modules: Sequence[str], target_tokens: str
) -> dict[str, str]:
    """Return the Python code that a template needs to tokenize and detokenize.

    These are modules to import, statements that load models, and expressions for the tokens of a
    line and for the text of `target_tokens`.
    """
    tokenizers = trained.tokenizers
    source = tokenizers.source
    names = list(sentencepiece_models(tokenizers))
    # Marian's target language code is one token, which sentencepiece does not know.
    code = re.match(">>.*?<<", line) if source.kind == "marian" else None
    line_code = repr(line[code.end() :] if code else line)
    if source.normalizer.nfkc:
        line_code = f'unicodedata.normalize("NFKC", {line_code})'
    if source.normalizer.lowercase:
        line_code = f"{line_code}.lower()"
        if source.normalizer.nfkc:
            # As in `Normalizer`.
            line_code = f'unicodedata.normalize("NFKC", {line_code})'
    models = ""
    if source.kind == "char":
        tokens = f"list({line_code})"
        text = f'"".join({target_tokens})'
    elif source.kind == "word":
        models = "from torchtext.data.utils import get_tokenizer\n"
        tokens = f'get_tokenizer("basic_english")({line_code})'
        text = f'" ".join({target_tokens})'
    else:
        for name in names:
            models += f'{name} = sentencepiece.SentencePieceProcessor(model_file="{name}.model")\n'
        tokens = f"{names[0]}.encode({line_code}, out_type=str)"
        if code:
            tokens = f"[{code[0]!r}, *{tokens}]"
        text = f"{names[-1]}.decode({target_tokens})"
    models += _target_tokens(trained)
    for token in reversed(source.tokens(first_ids(trained)[0])):
        # Languages, of a model that has several.
        tokens = f"[{token!r}, *{tokens}]"
    imports = [*modules, *(["sentencepiece"] if names else [])]
    if source.normalizer.nfkc:
        imports.append("unicodedata")
    return {"modules": ", ".join(imports), "models": models, "tokens": tokens, "text": text}


def _target_tokens(trained: TrainedModel) -> str:
    """Return a comment with the token of each target language, if sources begin with one."""
    data, tokenizers = trained.config.data, trained.tokenizers
    if not data.has_target_tags:
        return ""
    ids = tag_ids([target_token(target) for target in data.targets], data.tags)
    tokens = zip(data.targets, tokenizers.source.tokens(ids), strict=True)
    listed = ", ".join(f"{token!r} ({target})" for target, token in tokens)
    return f"# A source begins with the token of its target language: {listed}.\n"
