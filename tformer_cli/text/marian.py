"""Pieces of words as a Marian model has them: cut by sentencepiece, counted by another list."""

import base64
import json
from collections.abc import Sequence
from typing import ClassVar

from tformer_cli.errors import CheckpointError
from tformer_cli.json_text import parse_json
from tformer_cli.text.normalizer import LINE_BREAKS_TO_SPACES, Normalizer
from tformer_cli.text.subword import WHITESPACE_MARK, sentencepiece_processor
from tformer_cli.text.vocabulary import NUM_SPECIAL, SPECIAL_TOKENS, SUPPRESSED_IDS, UNK_ID

REMEDY = "restore the file, or import the model again"
LINE_BREAKS = ("<0x0A>", "<0x0D>")


class MarianTokenizer:
    """One side of a Marian model.

    Sentencepiece cuts a line, and the place of a piece in the vocabulary of the model says its id;
    a piece that is not there is unknown. The special tokens come first, as in all tokenizers. A
    language code such as `>>de<<` at the beginning of a line is one token.

    Ids and text are those of transformers' MarianTokenizer, but that no text is a special token.
    """

    kind: ClassVar = "marian"

    def __init__(self, content: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Read a file.

        Args:
            content: what `marian_file` returned.
            normalizer: of this side.
            name: of the file, for messages.

        Raises:
            CheckpointError: the content is something else.
        """
        self.content = content
        self.normalizer = normalizer
        self.model, self.pieces = _parts(content, name)
        self._processor = sentencepiece_processor(self.model, name, REMEDY)
        self._tokens = (*SPECIAL_TOKENS, *self.pieces)
        self._ids = {piece: i for i, piece in enumerate(self.pieces, start=NUM_SPECIAL)}
        self.size = len(self._tokens)
        # Bytes stand in no order that all Marian models share.
        self.byte_ids = range(0)
        line_breaks = [self._ids[piece] for piece in LINE_BREAKS if piece in self._ids]
        self.suppressed_ids: tuple[int, ...] = (*SUPPRESSED_IDS, *line_breaks)

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line."""
        code, text = _split_code(self.normalizer(line))
        return self._ids_of(code, self._processor.encode(text, out_type=str))

    def split_code(self, line: str) -> tuple[str, str]:
        """Return the language code that begins a line, if the vocabulary has it, and the rest."""
        code, text = _split_code(line)
        return (code, text) if code in self._ids else ("", line)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, with as many threads as the process that made this has."""
        both = [_split_code(self.normalizer(line)) for line in lines]
        found = self._processor.encode([text for _, text in both], out_type=str)
        return [self._ids_of(code, pieces) for (code, _), pieces in zip(both, found, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without the special ones."""
        text: str = self._processor.decode(self.tokens([i for i in ids if i >= NUM_SPECIAL]))
        return text.replace(WHITESPACE_MARK, " ").strip().translate(LINE_BREAKS_TO_SPACES)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of ids, special ones included."""
        return [self._tokens[i] for i in ids]

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each piece; a word has a blank before it."""
        return [self._spelled(piece) for piece in self.tokens(ids)]

    def _spelled(self, piece: str) -> bytes:
        if self._processor.is_byte(self._processor.piece_to_id(piece)):
            return bytes([int(piece[1:-1], base=16)])
        return piece.replace(WHITESPACE_MARK, " ").encode()

    def _ids_of(self, code: str, pieces: Sequence[str]) -> list[int]:
        all_pieces = [code, *pieces] if code else pieces
        return [self._ids.get(piece, UNK_ID) for piece in all_pieces]


def marian_file(model: bytes, pieces: Sequence[str]) -> bytes:
    """Return the content of a tokenizer file.

    Args:
        model: a serialised sentencepiece model.
        pieces: the vocabulary without its special tokens, each piece once.
    """
    held = {"sentencepiece": base64.b64encode(model).decode("ascii"), "pieces": list(pieces)}
    return (json.dumps(held, ensure_ascii=False, indent=0) + "\n").encode()


def _parts(content: bytes, name: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the sentencepiece model and the pieces that a tokenizer file holds."""
    try:
        held = parse_json(content)
        model, pieces = base64.b64decode(held["sentencepiece"], validate=True), held["pieces"]
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            raise TypeError("something other than a list of strings")
        return model, tuple(pieces)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            name, "is not the vocabulary of a Marian model", got=repr(error), remedy=REMEDY
        ) from None


def _split_code(line: str) -> tuple[str, str]:
    """Return the language code at the beginning of a line, if there is one, and the rest."""
    end = line.find("<<")
    if not line.startswith(">>") or end < 0:
        return "", line
    return line[: end + 2], line[end + 2 :]
