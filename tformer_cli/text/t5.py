"""The tokenizer of an imported T5, mT5 or MADLAD-400, and sentencepiece models of its pieces."""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from sentencepiece import SentencePieceProcessor

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import parse_json
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, NUM_SPECIAL, SPECIAL_TOKENS, UNK_ID
from tformer_cli.text.subword import IMPORT_AGAIN, MarianTokenizer, imported_file


class T5Tokenizer(MarianTokenizer):
    """Tokenizer of all languages of an imported model.

    Each row of the model's tables has an id: those of special tokens have ours, and the others
    follow in order. Rows that no text has, such as `<extra_id_0>`, are in no translation. Ids and
    text equal those of transformers' T5Tokenizer, except that text never becomes a special token.
    """

    kind: ClassVar = "t5"

    def __init__(self, content: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Parse the content of `t5_file`; raise CheckpointError for another file."""
        super().__init__(content, normalizer, name=name)
        rows = parse_json(content).get("special_rows")
        if not isinstance(rows, dict) or not {"<unk>", "<s>", "</s>"} <= rows.keys():
            what = "is not the vocabulary of a T5 model"
            raise CheckpointError(name, what, remedy=IMPORT_AGAIN)
        self.special_rows: Mapping[str, int] = rows
        ids = enumerate(self.pieces, start=NUM_SPECIAL)
        silent = (i for i, piece in ids if not is_text(self._processor, piece))
        self.suppressed_ids = (*self.suppressed_ids, *silent)

    @property
    def rows(self) -> list[int]:
        """The model's row of each of our ids; -1 of special tokens that it lacks."""
        special = [self.special_rows.get(token, -1) for token in SPECIAL_TOKENS]
        if self.start_id != BOS_ID:
            special[BOS_ID] = -1
        taken = {*special} - {-1}
        count = len(taken) + len(self.pieces)
        return [*special, *(row for row in range(count) if row not in taken)]

    @property
    def start_id(self) -> int:
        """The id that translations begin after; `<unk>` in MADLAD-400, which has no other row."""
        start = self.special_rows["<s>"]
        others = (self.special_rows["<unk>"], UNK_ID), (self.special_rows["</s>"], EOS_ID)
        return dict(others).get(start, BOS_ID)

    def trimmed(self, ids: Sequence[int]) -> "T5Tokenizer":
        """Return the tokenizer that has only some pieces, with ids in the same order."""
        marian = super().trimmed(ids)
        rows = self.rows
        left = sorted({rows[i] for i in ids} - {-1})
        special = {token: left.index(row) for token, row in self.special_rows.items()}
        content = t5_file(marian.model, marian.pieces, special)
        return T5Tokenizer(content, self.normalizer, name="the trimmed vocabulary")

    def _split(self, line: str) -> tuple[str, str]:
        return "", line


def is_text(processor: SentencePieceProcessor, piece: str) -> bool:
    """Return whether text can have a piece."""
    i = processor.piece_to_id(piece)
    return not (processor.is_unknown(i) or processor.is_control(i) or processor.is_unused(i))


def t5_file(model: bytes, pieces: Sequence[str], special_rows: Mapping[str, int]) -> bytes:
    """Return the content of the tokenizer file.

    It has a sentencepiece model, the pieces of the other rows, and rows of our special tokens.
    """
    return imported_file(model, pieces=list(pieces), special_rows=dict(special_rows))


def t5_tokenizer(
    model: bytes, processor: SentencePieceProcessor, num_rows: int, special_rows: Mapping[str, int]
) -> T5Tokenizer:
    """Return the tokenizer of a sentencepiece model, and of tables with so many rows."""
    size = processor.get_piece_size()
    names = (
        processor.id_to_piece(row) if row < size else f"<row_{row}>" for row in range(num_rows)
    )
    taken = {*special_rows.values()}
    pieces = [
        f"<row_{row}>" if name in SPECIAL_TOKENS else name
        for row, name in enumerate(names)
        if row not in taken
    ]
    return T5Tokenizer(t5_file(model, pieces, special_rows), Normalizer(), name="spiece.model")


class Piece(NamedTuple):
    """A piece of a sentencepiece model."""

    text: str
    score: float
    type: int


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def unigram_model(pieces: Iterable[Piece], charsmap: bytes, *, byte_fallback: bool) -> bytes:
    """Return the serialized sentencepiece model of pieces, for unigram segmentation.

    It is a message of Protocol Buffers (sentencepiece_model.proto): field 1 for each piece, field 2
    for how it was trained, field 3 for how text is normalized, by a compiled map of characters.
    """
    return b"".join(
        [
            *(_field(1, b"".join(_piece(piece))) for piece in pieces),
            _field(2, _number(35, int(byte_fallback))),
            _field(3, _field(2, charsmap)),
        ]
    )


def _piece(piece: Piece) -> Iterator[bytes]:
    yield _field(1, piece.text.encode())
    yield _varint(2 << 3 | 5) + struct.pack("<f", piece.score)
    yield _number(3, piece.type)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    """Return a number as seven bits a byte, the lowest first."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
