"""A first configuration for two text files, with a comment on each key."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tformer_cli.config.load import LINE_ENDS
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import write_text

_COMMENT_COLUMN = 34


@dataclass(frozen=True, kw_only=True, slots=True)
class Starter:
    """What a first configuration depends on.

    Attributes:
        texts: what it trains on (`train`), validates on (`valid`) and, if anything, tests on
            (`test`).
        languages: of the source and the target, as ISO codes.
        num_pairs: of the training text.
        num_characters: different ones in it.
    """

    texts: Mapping[str, ParallelText]
    languages: tuple[str, str]
    num_pairs: int
    num_characters: int


def write_starter(config: Path, starter: Starter) -> None:
    """Write a configuration for a text, with a size that suits it.

    Raises:
        StorageError: the system does not let it be written.
    """
    write_text(config, _yaml(starter, config.parent))


def check_replaceable(output: Path, given: Mapping[str, Path], *, overwrite: bool) -> None:
    """Make sure that a configuration may be written.

    Args:
        output: the file to write.
        given: text files that are to stay.
        overwrite: whether a configuration that is there may be replaced.

    Raises:
        UsageError: it already exists, or is one of the texts.
    """
    if output.resolve() in {file.resolve() for file in given.values()}:
        raise UsageError(
            str(output),
            "is one of the given texts, and would be lost",
            remedy="choose another `output`",
        )
    if output.exists() and not overwrite:
        raise UsageError(
            str(output),
            "already exists",
            remedy="choose another `output`, or add `overwrite=True`",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Size:
    """A model and a training that suit a certain amount of text."""

    # None is for characters: so little text teaches no pieces of words.
    vocab_size: int | None
    max_length: int = 256
    dim: int
    num_layers: int
    num_heads: int
    feedforward_dim: int
    dropout: float
    learning_rate: str
    warmup_steps: int
    batch_tokens: int
    max_steps: int
    validate_every: int


_TINY = _Size(
    vocab_size=None,
    max_length=512,
    dim=128,
    num_layers=2,
    num_heads=4,
    feedforward_dim=512,
    dropout=0.2,
    learning_rate="2e-3",
    warmup_steps=200,
    batch_tokens=2048,
    max_steps=1000,
    validate_every=200,
)
_SMALL = _Size(
    vocab_size=1000,
    dim=128,
    num_layers=2,
    num_heads=4,
    feedforward_dim=512,
    dropout=0.2,
    learning_rate="3e-3",
    warmup_steps=200,
    batch_tokens=2048,
    max_steps=2000,
    validate_every=250,
)
_MEDIUM = _Size(
    vocab_size=8000,
    dim=256,
    num_layers=3,
    num_heads=4,
    feedforward_dim=512,
    dropout=0.3,
    learning_rate="3e-3",
    warmup_steps=400,
    batch_tokens=2048,
    max_steps=6000,
    validate_every=500,
)
_LARGE = _Size(
    vocab_size=10_000,
    dim=512,
    num_layers=6,
    num_heads=8,
    feedforward_dim=1024,
    dropout=0.3,
    learning_rate="1e-3",
    warmup_steps=2000,
    batch_tokens=8192,
    max_steps=30_000,
    validate_every=1000,
)
_HUGE = _Size(
    vocab_size=32_000,
    dim=512,
    num_layers=6,
    num_heads=8,
    feedforward_dim=2048,
    dropout=0.1,
    learning_rate="7e-4",
    warmup_steps=4000,
    batch_tokens=25_000,
    max_steps=100_000,
    validate_every=2500,
)


def _size(num_pairs: int) -> _Size:
    for most, size in ((500, _TINY), (5_000, _SMALL), (50_000, _MEDIUM), (1_000_000, _LARGE)):
        if num_pairs <= most:
            return size
    return _HUGE


def _tokenizer(size: _Size, num_characters: int) -> str:
    if size.vocab_size is None:
        return "{kind: char}"
    # Room for bytes, special pieces, all characters, and as many pieces of words.
    needed = 16 + 256 + 2 * num_characters
    return f"{{kind: subword, vocab_size: {max(size.vocab_size, math.ceil(needed / 100) * 100)}}}"


def _yaml(starter: Starter, folder: Path) -> str:
    """Return the configuration, for a file in a folder."""
    size = _size(starter.num_pairs)
    tokenizer = _tokenizer(size, starter.num_characters)
    source_language, target_language = map(_scalar, starter.languages)
    texts = {name: _text(text, folder) for name, text in starter.texts.items()}
    test = (
        f"test: {{test: {texts['test']}}} # for `tformer eval`"
        if "test" in texts
        else "# test: {NAME: {source: FILE, target: FILE}} # for `tformer eval`"
    )
    text = f"""\
# Settings that suit {starter.num_pairs:,} pairs of sentences.
# A key left out has its default; `tformer config show FILE` shows them all.
seed: 1 # another seed gives another model
data: # paths are relative to the folder of this file
  source_language: {source_language} # an ISO code
  target_language: {target_language} # decides how BLEU splits words
  train: [{texts["train"]}] # one or more
  valid: {texts["valid"]} # chooses the best checkpoint
  {test}
  filters: {{max_length: {size.max_length}}} # longer pairs are left out, in tokens
tokenizer: {tokenizer} # how text becomes tokens: subword, char or word
model:
  dim: {size.dim} # width; a larger model needs more text and time
  num_encoder_layers: {size.num_layers}
  num_decoder_layers: {size.num_layers}
  num_heads: {size.num_heads} # must divide dim
  feedforward_dim: {size.feedforward_dim} # two to four times dim
  norm: rms # rms or layer
  dropout: {size.dropout} # higher where there is less text
training:
  optimizer: {{kind: adamw, learning_rate: {size.learning_rate}}} # lower it if the loss jumps
  schedule: {{kind: cosine, warmup_steps: {size.warmup_steps}}} # rises, then falls until max_steps
  label_smoothing: 0.1 # how much certainty the model is spared
  batch_tokens: {size.batch_tokens} # tokens of one step
  gradient_accumulation_steps: 1 # 2, 4, ... need less memory, with the same result
  max_steps: {size.max_steps} # when to stop at the latest
  validate_every: {size.validate_every} # steps between two looks at loss and BLEU
  patience: 8                      # validations in a row without a better one that end it sooner
  save_every: {size.validate_every} # steps between two checkpoints
decoding: {{kind: beam, beam_size: 5, max_length: {size.max_length}}} # how to translate
evaluation: {{bleu: {{tokenize: auto}}}} # sacrebleu's settings
"""
    return "".join(map(_aligned, text.splitlines(keepends=True)))


def _aligned(line: str) -> str:
    """Move the comment behind a setting to a column of its own."""
    setting, mark, comment = line.rpartition(" # ")
    return f"{setting:<{_COMMENT_COLUMN}} # {comment}" if mark else line


def _text(text: ParallelText, folder: Path) -> str:
    names = [Path(os.path.relpath(file, folder)).as_posix() for file in (text.source, text.target)]
    # A tilde that begins a path stands for somebody's home.
    source, target = (_scalar(f"./{name}" if name[0] == "~" else name) for name in names)
    return f"{{source: {source}, target: {target}}}"


def _scalar(text: str) -> str:
    """Return a text as YAML that may stand between braces, quoted where it must be."""
    style = '"' if LINE_ENDS & set(text) else None
    return yaml.safe_dump(
        [text],
        allow_unicode=True,
        width=float("inf"),
        default_flow_style=True,
        default_style=style,
    )[1:-2]
