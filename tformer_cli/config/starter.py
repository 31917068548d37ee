"""A first configuration for two text files, with a comment on each key."""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from tformer_cli.config.load import LINE_ENDS
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.errors import DataError, UsageError
from tformer_cli.run_directory import whole_file, write_text

ReadPairs = Callable[[Path, Path], Iterable[tuple[str, str]]]
"""Reads the lines of two files in pairs."""

_MOST_HELD_OUT = 1000
_SHARE_HELD_OUT = 20
_COMMENT_COLUMN = 34


@dataclass(frozen=True, kw_only=True, slots=True)
class Starter:
    """What was written.

    Attributes:
        config: the configuration.
        texts: what it trains on (`train`), validates on (`valid`) and, if anything, tests on
            (`test`).
        num_pairs: the number of sentence pairs in each of them.
        num_characters: that the training text is written with, if not a few more.
    """

    config: Path
    texts: dict[str, ParallelText]
    num_pairs: dict[str, int]
    num_characters: int


class _Extent(NamedTuple):
    """How much there is of a text."""

    num_pairs: int
    num_characters: int


def write_starter(
    config: Path,
    text: ParallelText,
    read_pairs: ReadPairs,
    *,
    valid: ParallelText | None = None,
    source_language: str,
    target_language: str,
    overwrite: bool = False,
) -> Starter:
    """Write a configuration that trains on a parallel text.

    Without a validation text the text is split: 5 % of the pairs, at most 1,000, are drawn evenly
    from it for validation, as many others for a test, and the three parts are written into a
    folder beside the configuration. The given files are only read.

    Args:
        config: the YAML file to write.
        text: what to train on.
        read_pairs: reads a parallel text.
        valid: a validation text, if there is one.
        source_language: an ISO code.
        target_language: an ISO code.
        overwrite: whether the files of an earlier call may be replaced.

    Raises:
        DataError: a text cannot be read, or is too short to be split.
        UsageError: a file to be written is there already, or is one of those given.
    """
    if valid is None:
        texts = _parts(config.parent / f"{config.stem}.data")
        _refuse_to_replace([config, *_files(texts.values())], _files([text]), overwrite)
        extent = _extent(text, read_pairs)
        num_pairs = _split(text, extent.num_pairs, texts, read_pairs)
    else:
        texts = {"train": text, "valid": valid}
        _refuse_to_replace([config], _files(texts.values()), overwrite)
        extent = _extent(text, read_pairs)
        num_valid = _extent(valid, read_pairs).num_pairs
        num_pairs = {"train": extent.num_pairs, "valid": num_valid}
    starter = Starter(
        config=config, texts=texts, num_pairs=num_pairs, num_characters=extent.num_characters
    )
    write_text(config, _yaml(starter, source_language, target_language))
    return starter


def held_out(num_pairs: int) -> dict[int, str]:
    """Return which pairs to take from a text, by index, and for what: `valid` or `test`.

    They lie evenly in the text, in turn for the one and the other.
    """
    num_each = max(1, min(_MOST_HELD_OUT, num_pairs // _SHARE_HELD_OUT))
    return {
        (2 * place + 1) * num_pairs // (4 * num_each): ("valid", "test")[place % 2]
        for place in range(2 * num_each)
    }


def _parts(folder: Path) -> dict[str, ParallelText]:
    return {
        name: ParallelText(source=folder / f"{name}.source", target=folder / f"{name}.target")
        for name in ("train", "valid", "test")
    }


def _files(texts: Iterable[ParallelText]) -> list[Path]:
    return [file for text in texts for file in (text.source, text.target)]


def _refuse_to_replace(files: list[Path], given: list[Path], overwrite: bool) -> None:
    originals = {file.resolve() for file in given}
    for file in files:
        if file.resolve() in originals:
            raise UsageError(
                str(file),
                "is one of the given texts, and would be lost",
                remedy="choose another --output",
            )
        if file.exists() and not overwrite:
            raise UsageError(
                str(file), "is there already", remedy="choose another --output, or add --force"
            )


def _extent(text: ParallelText, read_pairs: ReadPairs) -> _Extent:
    num_pairs, characters = 0, set[str]()
    for source, target in read_pairs(text.source, text.target):
        num_pairs += 1
        characters.update(source, target)
    if num_pairs == 0:
        raise DataError(str(text.source), "has no lines")
    return _Extent(num_pairs, len(characters))


def _split(
    text: ParallelText, total: int, parts: Mapping[str, ParallelText], read_pairs: ReadPairs
) -> dict[str, int]:
    """Write the parts of a text of `total` pairs, and return how many pairs each has."""
    if total < 3:
        raise DataError(
            str(text.source),
            "needs at least 3 lines, for training, validation and test",
            got=str(total),
            remedy="give --valid-source and --valid-target",
        )
    home = held_out(total)
    num_pairs = dict.fromkeys(parts, 0)
    with contextlib.ExitStack() as stack:
        writers = {
            name: [
                stack.enter_context(
                    stack.enter_context(whole_file(file)).open("w", encoding="utf-8", newline="\n")
                )
                for file in (part.source, part.target)
            ]
            for name, part in parts.items()
        }
        for index, pair in enumerate(read_pairs(text.source, text.target)):
            name = home.get(index, "train")
            num_pairs[name] += 1
            for writer, line in zip(writers[name], pair, strict=True):
                writer.write(f"{line}\n")
        if sum(num_pairs.values()) != total:
            raise DataError(
                str(text.source),
                "the text changed while it was read",
                remedy="run the same command again",
            )
    return num_pairs


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


def _yaml(starter: Starter, source_language: str, target_language: str) -> str:
    size = _size(starter.num_pairs["train"])
    folder, tokenizer = starter.config.parent, _tokenizer(size, starter.num_characters)
    texts = {name: _text(text, folder) for name, text in starter.texts.items()}
    test = (
        f"test: {{test: {texts['test']}}} # for `tformer eval`"
        if "test" in texts
        else "# test: {NAME: {source: FILE, target: FILE}} # for `tformer eval`"
    )
    text = f"""\
# Settings that suit {starter.num_pairs["train"]:,} pairs of sentences.
# A key left out has its default; `tformer config show FILE` shows them all.
seed: 1 # another seed gives another model
data: # paths are relative to the folder of this file
  source_language: {_scalar(source_language)} # an ISO code
  target_language: {_scalar(target_language)} # decides how BLEU splits words
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
  accumulate: 1 # 2, 4, ... need less memory, with the same result
  max_steps: {size.max_steps} # when to stop at the latest
  validate_every: {size.validate_every} # steps between two looks at loss and BLEU
  patience: 8                      # validations in a row without a better one that end it sooner
  save_every: {size.validate_every} # steps between two checkpoints
decoding: {{kind: beam, size: 5, max_length: {size.max_length}}} # how translations are searched for
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
