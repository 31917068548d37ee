"""Weights and settings in CTranslate2's model.bin, read without CTranslate2 and without torch.

The format is that of `ModelSpec._serialize` (ctranslate2/specs/model_spec.py), versions 4 to 6,
little-endian: version, kind of network and its revision; each variable's name, shape, number format
and bytes; then aliases, which are further names of variables.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np

from tformer_cli.choices import Quantization
from tformer_cli.errors import CheckpointError

VERSIONS = range(4, 7)
# By CTranslate2's ids; numpy has no bfloat16, the upper half of a float32.
NUMBER_FORMATS = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
STORED_DTYPES = {"bfloat16": "uint16"}
EXACT: Quantization = "float32"
REDUCED: tuple[Quantization, ...] = ("int8", "float16", "bfloat16")
POSITION_ENCODINGS = "position_encodings/encodings"
# Of tokens, by side.
EMBEDDINGS = {
    "encoder": "encoder/embeddings_0/weight",
    "decoder": "decoder/embeddings/weight",
}
CONVERT_AGAIN = "convert or export the model again"

Number = TypeVar("Number", int, float)


class Variable(NamedTuple):
    """Where the numbers of a variable stand in the file."""

    shape: tuple[int, ...]
    number_format: str
    start: int

    @property
    def dtype(self) -> np.dtype:
        """Numpy's dtype, without byte order."""
        return np.dtype(STORED_DTYPES.get(self.number_format, self.number_format))


class WeightsSummary(NamedTuple):
    """What the weights say of themselves."""

    num_positions: int | None  # rows of the position tables; None without a table
    quantization: Quantization


class StoredModel:
    """The variables of a file, and which of them nobody asked for."""

    def __init__(self, file: Path) -> None:
        """Read names and shapes.

        Raises:
            CheckpointError: the file is damaged, cut short, or of another version.
        """
        self.file = file
        try:
            with file.open("rb") as content:
                self.kind, self._variables, self._aliases = _read_index(content)
        except (struct.error, ValueError) as error:
            what = "is damaged, cut short, or no model.bin of CTranslate2"
            raise CheckpointError(str(file), what, got=str(error), remedy=CONVERT_AGAIN) from None
        self.unread = {*self._variables, *self._aliases}

    def __contains__(self, name: str) -> bool:
        return self._resolved(name) in self._variables

    def variables(self) -> Mapping[str, Variable]:
        """Return all variables by name, without aliases."""
        return self._variables

    def names(self) -> set[str]:
        """Return all names, aliases included."""
        return {*self._variables, *self._aliases}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a variable; raise CheckpointError if it is missing."""
        return self._variable(name).shape

    def number_format(self, name: str) -> str:
        """Return the number format of a variable."""
        return self._variable(name).number_format

    def array(self, name: str) -> np.ndarray:
        """Return a variable as float32; whole numbers are divided by their scale, if any.

        A scale is one number, or one for each row (`LayerSpec._quantize`).
        """
        values = self._numbers(name)
        for scaled in (f"{name}_scale", f"{self._resolved(name)}_scale"):
            if scaled in self:
                scale = self._numbers(scaled)
                if scale.shape not in ((), (1,), values.shape[:1]):
                    what = f"has another number of scales than {name} has rows"
                    raise self.error(scaled, what, str(scale.shape))
                values = values / scale.reshape(-1, *[1] * (values.ndim - 1))
                break
        return values

    def number(self, name: str, kind: Callable[..., Number], default: Number) -> Number:
        """Return a variable of one number, or a default without it."""
        if name not in self:
            return default
        if math.prod(self.shape(name)) != 1:
            raise self.error(name, "must be one number", str(self.shape(name)))
        value = self._numbers(name).item()
        if not math.isfinite(value):
            raise self.error(name, "must be finite", str(value))
        return kind(value)

    def check_rows(self, name: str, tokens: Sequence[str]) -> None:
        """Raise CheckpointError unless a table has a row for each token."""
        shape = self.shape(name)
        if shape[0] != len(tokens) or len(shape) != 2:
            what = f"must have a row for each of the {len(tokens)} tokens of the vocabulary"
            raise self.error(name, what, str(shape))

    def error(self, name: str, what: str, got: str | None = None) -> CheckpointError:
        """Return the error of a variable."""
        return CheckpointError(f"{self.file}: {name}", what, got=got, remedy=CONVERT_AGAIN)

    def _numbers(self, name: str) -> np.ndarray:
        variable = self._variable(name)
        self.unread.discard(name)
        dtype, count = variable.dtype.newbyteorder("<"), math.prod(variable.shape)
        values = np.fromfile(self.file, dtype, count, offset=variable.start)
        if variable.number_format == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32).reshape(variable.shape)

    def _variable(self, name: str) -> Variable:
        if name not in self:
            raise self.error(name, "is missing")
        return self._variables[self._resolved(name)]

    def _resolved(self, name: str) -> str:
        return self._aliases.get(name, name)


def summarize_weights(file: Path) -> WeightsSummary:
    """Return what a file says of itself; of a damaged one, nothing.

    CTranslate2 says itself what is wrong with a file that it cannot load.
    """
    try:
        variables = StoredModel(file).variables()
    except CheckpointError:
        return WeightsSummary(None, EXACT)
    tables = [x.shape[0] for name, x in variables.items() if name.endswith(POSITION_ENCODINGS)]
    formats = {x.number_format for x in variables.values() if len(x.shape) > 1}
    names = [name for name in REDUCED if name in formats]
    return WeightsSummary(min(tables, default=None), (*names, EXACT)[0])


def _read_index(content: BinaryIO) -> tuple[str, dict[str, Variable], dict[str, str]]:
    """Return the kind of network, variables and aliases by name; check all against the size."""

    def number(kind: str) -> int:
        value: int
        (value,) = struct.unpack(f"<{kind}", content.read(struct.calcsize(f"<{kind}")))
        return value

    def text() -> str:
        length = number("H")
        name = content.read(length)
        if len(name) < length or not name.endswith(b"\0"):
            raise ValueError("a name without its end")
        return name[:-1].decode()

    def variables() -> Iterator[tuple[str, Variable]]:
        for _ in range(number("I")):
            name = text()
            shape = tuple(number("I") for _ in range(number("B")))
            number_format = number("B")
            if number_format >= len(NUMBER_FORMATS):
                raise ValueError(f"number format {number_format} of {name}")
            size = number("I")
            variable = Variable(shape, NUMBER_FORMATS[number_format], content.tell())
            if size != math.prod(shape) * variable.dtype.itemsize:
                raise ValueError(f"{size} bytes for the shape {shape} of {name}")
            if variable.start + size > file_size:
                raise ValueError(f"the end within {name}")
            content.seek(size, 1)
            yield name, variable

    file_size = content.seek(0, 2)
    content.seek(0)
    if (version := number("I")) not in VERSIONS:
        raise ValueError(f"version {version}")
    kind = text()
    number("I")  # revision
    by_name = dict(variables())
    aliases = {text(): text() for _ in range(number("I"))}
    return kind, by_name, aliases
