"""Subword tokenizers by sentencepiece: BPE, the unigram model, and imported Marian models."""

import base64
import contextlib
import io
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeVar

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.errors import CheckpointError, DataError
from tformer_cli.process import num_threads
from tformer_cli.storage.atomic import parse_json
from tformer_cli.text.normalizer import Normalizer, replace_line_breaks
from tformer_cli.text.special_tokens import (
    BOS_ID,
    EOS_ID,
    NUM_SPECIAL,
    PAD_ID,
    SPECIAL_TOKENS,
    SUPPRESSED_IDS,
    UNK_ID,
)
from tformer_cli.text.vocabulary import TRAIN_AGAIN

# The unigram trainer takes quadratic time in a sentence without whitespace, and sentencepiece
# drops sentences above its limit, so longer training lines are split.
SENTENCE_CHARACTERS = 1000

# Sentencepiece writes a space as the first, and drops training sentences with the second.
WHITESPACE_MARK = "\u2581"
UNKNOWN_MARK = "\u2585"

# The trained model depends on the number of threads, so it is the same on every machine.
TRAINING_THREADS = 8

IMPORT_AGAIN = "restore the file, or import the model again"

_Item = TypeVar("_Item")


class SubwordTokenizer:
    """Tokenizer of one side by a sentencepiece model with the special tokens of tformer.

    `decode(encode(line))` is the normalized line, except that runs of spaces become one, spaces at
    both ends are dropped, and U+2581 counts as a space. Without byte fallback, characters that
    training did not see are lost; with it, bytes that are not UTF-8 decode to U+FFFD.
    """

    kind: ClassVar = "subword"

    def __init__(self, model: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Parse the serialized model of the file `name`; raise CheckpointError for another file."""
        self.content = model
        self.normalizer = normalizer
        self._processor = sentencepiece_processor(model, name, TRAIN_AGAIN)
        self.size: int = self._processor.get_piece_size()
        first_tokens = self.tokens(range(min(NUM_SPECIAL, self.size)))
        if first_tokens != list(SPECIAL_TOKENS):
            raise CheckpointError(
                name,
                "has other special tokens than tformer's",
                got=", ".join(first_tokens),
                remedy=TRAIN_AGAIN,
            )
        has_bytes = self.size > NUM_SPECIAL and self._processor.is_byte(NUM_SPECIAL)
        self.byte_ids = range(NUM_SPECIAL, NUM_SPECIAL + 256) if has_bytes else range(0)
        line_breaks = [self.byte_ids[ord(c)] for c in "\n\r"] if has_bytes else []
        self.suppressed_ids: tuple[int, ...] = (*SUPPRESSED_IDS, *line_breaks)
        # Neither special tokens nor bytes.
        self.ordinary_ids = range(NUM_SPECIAL + len(self.byte_ids), self.size)

    def trimmed(self, ids: Sequence[int]) -> "SubwordTokenizer":
        """Return the tokenizer that has only some pieces, with ids in the same order."""
        kept = set(ids)
        model = without_pieces(self.content, [i in kept for i in range(self.size)])
        return SubwordTokenizer(model, self.normalizer, name="the trimmed vocabulary")

    def scores(self) -> list[float]:
        """Return the score of each piece: its order among the merges, or a log-probability."""
        return [self._processor.get_score(i) for i in range(self.size)]

    def encode(self, line: str) -> list[int]:
        ids: list[int] = self._processor.encode(self._text(line))
        return ids

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode([self._text(line) for line in lines])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode([int(i) for i in ids if i >= NUM_SPECIAL])
        return replace_line_breaks(text)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return [
            bytes([self.byte_ids.index(i)])
            if i in self.byte_ids
            else piece.replace(WHITESPACE_MARK, " ").encode()
            for i, piece in zip(ids, self.tokens(ids), strict=True)
        ]

    def _text(self, line: str) -> str:
        return self.normalizer(line).replace(WHITESPACE_MARK, " ")


class MarianTokenizer:
    """Tokenizer of one side of an imported Marian model.

    Sentencepiece splits a line into pieces, and a separate list maps pieces to ids; the special
    tokens of tformer come first. A language code such as `>>de<<` at the start of a line is one
    token. Ids and text equal those of transformers' MarianTokenizer, except that text never
    becomes a special token.
    """

    kind: ClassVar = "marian"

    def __init__(self, content: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Parse the content of `marian_file`; raise CheckpointError for another file."""
        self.content = content
        self.normalizer = normalizer
        self.model, self.pieces = self._parse(content, name)
        self._processor = sentencepiece_processor(self.model, name, IMPORT_AGAIN)
        self._tokens = (*SPECIAL_TOKENS, *self.pieces)
        self._ids = {piece: i for i, piece in enumerate(self.pieces, start=NUM_SPECIAL)}
        self.size = len(self._tokens)
        # The order of byte pieces differs between Marian models.
        self.byte_ids = range(0)
        line_breaks = [self._ids[piece] for piece in ("<0x0A>", "<0x0D>") if piece in self._ids]
        self.suppressed_ids: tuple[int, ...] = (*SUPPRESSED_IDS, *line_breaks)

    def encode(self, line: str) -> list[int]:
        code, text = self._split(self.normalizer(line))
        return self._ids_of(code, self._processor.encode(text, out_type=str))

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        codes_and_texts = [self._split(self.normalizer(line)) for line in lines]
        all_pieces = self._processor.encode([text for _, text in codes_and_texts], out_type=str)
        return [
            self._ids_of(code, pieces)
            for (code, _), pieces in zip(codes_and_texts, all_pieces, strict=True)
        ]

    def trimmed(self, ids: Sequence[int]) -> "MarianTokenizer":
        """Return the tokenizer that has only some pieces, with ids in the same order.

        Its sentencepiece model keeps what the list of pieces lacks.
        """
        pieces = [self._tokens[i] for i in ids if i >= NUM_SPECIAL]
        dropped = self._ids.keys() - pieces
        own = (self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size()))
        model = without_pieces(self.model, [piece not in dropped for piece in own])
        content = marian_file(model, pieces)
        return MarianTokenizer(content, self.normalizer, name="the trimmed vocabulary")

    def split_code(self, line: str) -> tuple[str, str]:
        """Return a language code of the vocabulary at the start of a line, and the rest."""
        code, text = self._split(line)
        return (code, text) if code in self._ids else ("", line)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode(self.tokens([i for i in ids if i >= NUM_SPECIAL]))
        return replace_line_breaks(text.replace(WHITESPACE_MARK, " ").strip())

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens[i] for i in ids]

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return [
            bytes([int(piece[1:-1], base=16)])
            if self._processor.is_byte(self._processor.piece_to_id(piece))
            else piece.replace(WHITESPACE_MARK, " ").encode()
            for piece in self.tokens(ids)
        ]

    def _parse(self, content: bytes, name: str) -> tuple[bytes, tuple[str, ...]]:
        """Return the sentencepiece model, and the pieces in the order of their ids."""
        try:
            parsed = parse_json(content)
            model = base64.b64decode(parsed["sentencepiece"], validate=True)
            pieces = parsed["pieces"]
            if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
                raise TypeError("something other than a list of strings")
        except (ValueError, KeyError, TypeError) as error:
            what = "is not the vocabulary of a Marian model"
            raise CheckpointError(name, what, got=repr(error), remedy=IMPORT_AGAIN) from None
        return model, tuple(pieces)

    @property
    def start_id(self) -> int:
        """The id that translations begin after."""
        return BOS_ID

    def _split(self, line: str) -> tuple[str, str]:
        """Return the language code at the start of a line, or an empty one, and the rest."""
        end = line.find("<<")
        if not line.startswith(">>") or end < 0:
            return "", line
        return line[: end + 2], line[end + 2 :]

    def _ids_of(self, code: str, pieces: Sequence[str]) -> list[int]:
        all_pieces = [code, *pieces] if code else pieces
        return [self._ids.get(piece, UNK_ID) for piece in all_pieces]


def marian_file(model: bytes, pieces: Sequence[str]) -> bytes:
    """Return the content of the tokenizer file of a sentencepiece model and a list of pieces."""
    return imported_file(model, pieces=list(pieces))


def imported_file(model: bytes, **rest: object) -> bytes:
    """Return the content of the tokenizer file of an imported model, with what `_parse` takes."""
    content = {"sentencepiece": base64.b64encode(model).decode("ascii"), **rest}
    return (json.dumps(content, ensure_ascii=False, indent=0) + "\n").encode()


def sentencepiece_processor(model: bytes, name: str, remedy: str) -> SentencePieceProcessor:
    """Load the serialized model of the file `name`; raise CheckpointError for another file."""
    # Sentencepiece loads no bytes as an empty model.
    if model:
        with contextlib.suppress(RuntimeError, UnicodeDecodeError):
            processor = SentencePieceProcessor(model_proto=model, num_threads=num_threads())
            # The names of special tokens may be no UTF-8 in a damaged model.
            for i in range(min(NUM_SPECIAL, processor.get_piece_size())):
                processor.id_to_piece(i)
            return processor
    got = f"{len(model):,} bytes" if model else "no bytes"
    raise CheckpointError(name, "is not a sentencepiece model", got=got, remedy=remedy)


def without_pieces(model: bytes, is_kept: Sequence[bool]) -> bytes:
    """Return a serialized sentencepiece model without some of its pieces.

    It is a message of Protocol Buffers, a list of fields: field 1 is a piece, the next one each
    time, and field 4 has samples that need all pieces.
    """
    result, position, index = bytearray(), 0, 0
    while position < len(model):
        start = position
        tag, position = _varint(model, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 2:
            length, position = _varint(model, position)
            position += length
        elif wire_type == 0:
            _, position = _varint(model, position)
        else:
            position += {1: 8, 5: 4}[wire_type]
        if number == 1:
            is_dropped, index = not is_kept[index], index + 1
        else:
            is_dropped = number == 4
        if not is_dropped:
            result += model[start:position]
    return bytes(result)


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """Return the number that begins at a position, seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def learn_subwords(lines: Iterable[str], config: SubwordConfig) -> bytes:
    """Train a sentencepiece model; the same lines give the same bytes."""
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_training_sentences(lines),
            model_writer=model,
            model_type=config.algorithm,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity",
            max_sentence_length=4 * SENTENCE_CHARACTERS,  # in bytes
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            pad_piece=SPECIAL_TOKENS[PAD_ID],
            unk_piece=SPECIAL_TOKENS[UNK_ID],
            bos_piece=SPECIAL_TOKENS[BOS_ID],
            eos_piece=SPECIAL_TOKENS[EOS_ID],
            control_symbols=list(SPECIAL_TOKENS[EOS_ID + 1 :]),
            num_threads=TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(str(error), config) from None
    return model.getvalue()


def reservoir_sample(items: Iterable[_Item], size: int, seed: int) -> tuple[list[_Item], int]:
    """Sample `size` items uniformly from a stream, or keep all if there are fewer.

    The number of all items is returned too. Algorithm R of Vitter 1985: item n enters the sample
    with probability size / n.
    """
    generator = random.Random(seed)
    sample: list[_Item] = []
    num_items = 0
    for num_items, item in enumerate(items, start=1):
        if num_items <= size:
            sample.append(item)
        elif (slot := generator.randrange(num_items)) < size:
            sample[slot] = item
    return sample, num_items


def _training_sentences(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = line.replace(WHITESPACE_MARK, " ").replace(UNKNOWN_MARK, " ")
        for start in range(0, len(text), SENTENCE_CHARACTERS):
            yield text[start : start + SENTENCE_CHARACTERS]


def _training_error(message: str, config: SubwordConfig) -> DataError:
    """Translate an error of sentencepiece's trainer into keys of the config."""
    if match := re.search(r"size too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return DataError(
            "tokenizer.vocab_size",
            f"is larger than the {match[1]} that the text allows",
            got=str(config.vocab_size),
            remedy="make it smaller, or give more text",
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return DataError(
            "tokenizer.vocab_size",
            f"is smaller than the {match[1]} that the characters of the text need",
            got=str(config.vocab_size),
            remedy="enlarge it, or lower tokenizer.character_coverage",
        )
    return DataError("tokenizer", "sentencepiece found no vocabulary", got=message)
