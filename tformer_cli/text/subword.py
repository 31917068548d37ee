"""Pieces of words: byte-pair encoding and the unigram model, by sentencepiece."""

import io
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeVar

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from tformer_cli.child_process import num_threads
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.errors import CheckpointError, DataError
from tformer_cli.text.normalizer import LINE_BREAKS_TO_SPACES, Normalizer
from tformer_cli.text.vocabulary import (
    BOS_ID,
    EOS_ID,
    NUM_SPECIAL,
    PAD_ID,
    SPECIAL_TOKENS,
    SUPPRESSED_IDS,
    UNK_ID,
)

# The unigram trainer takes quadratic time on a sentence without blanks, and sentencepiece drops
# sentences above its limit, so longer lines are learnt from in parts.
SENTENCE_CHARACTERS = 1000

# Characters that sentencepiece uses for itself: it writes a blank as the first, and drops every
# training sentence with the second.
WHITESPACE_MARK = "\u2581"
UNKNOWN_MARK = "\u2585"

# The number of threads shows in the model, so it is the same on every machine.
TRAINING_THREADS = 8

Item = TypeVar("Item")


class SubwordTokenizer:
    """One side of a sentencepiece model.

    `decode(encode(line))` is the normalised line, except that runs of blanks (U+0020) become one,
    blanks at both ends go, and U+2581 counts as a blank, because sentencepiece writes blanks so.
    Any other character comes back, with byte fallback; without it an unseen one is lost.
    """

    kind: ClassVar = "subword"

    def __init__(self, model: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Read a model.

        Args:
            model: a serialised sentencepiece model.
            normalizer: of this side.
            name: of the model's file, for messages.

        Raises:
            CheckpointError: the bytes are no model, or one with other special tokens.
        """
        self.content = model
        self.normalizer = normalizer
        self._processor = _processor(model, name)
        self.size: int = self._processor.get_piece_size()
        has_bytes = self.size > NUM_SPECIAL and self._processor.is_byte(NUM_SPECIAL)
        self.byte_ids = range(NUM_SPECIAL, NUM_SPECIAL + 256) if has_bytes else range(0)
        line_breaks = [self.byte_ids[ord(c)] for c in "\n\r"] if has_bytes else []
        self.suppressed_ids: tuple[int, ...] = (*SUPPRESSED_IDS, *line_breaks)

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line, in time linear in its length."""
        ids: list[int] = self._processor.encode(self._text(line))
        return ids

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, with as many threads as the process that made this has."""
        ids: list[list[int]] = self._processor.encode([self._text(line) for line in lines])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._processor.decode([int(i) for i in ids if i >= NUM_SPECIAL])
        return text.translate(LINE_BREAKS_TO_SPACES)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of ids, special ones included."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each piece; a word has a blank before it."""
        return [
            bytes([self.byte_ids.index(i)])
            if i in self.byte_ids
            else piece.replace(WHITESPACE_MARK, " ").encode()
            for i, piece in zip(ids, self.tokens(ids), strict=True)
        ]

    def _text(self, line: str) -> str:
        return self.normalizer(line).replace(WHITESPACE_MARK, " ")


def learn_subwords(lines: Iterable[str], config: SubwordConfig) -> bytes:
    """Return the serialised sentencepiece model of the lines; the same lines give the same bytes.

    Raises:
        DataError: there is no text, or the vocabulary size does not suit it.
    """
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_sentences(lines),
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
        raise _explained(str(error), config) from None
    return model.getvalue()


def reservoir_sample(items: Iterable[Item], size: int, seed: int) -> list[Item]:
    """Draw `size` items evenly from a stream, or keep all where there are fewer.

    Vitter 1985, algorithm R: item n enters with probability size / n.
    """
    generator = random.Random(seed)
    sample: list[Item] = []
    for place, item in enumerate(items):
        if place < size:
            sample.append(item)
        elif (slot := generator.randrange(place + 1)) < size:
            sample[slot] = item
    return sample


def _sentences(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = line.replace(WHITESPACE_MARK, " ").replace(UNKNOWN_MARK, " ")
        for start in range(0, len(text), SENTENCE_CHARACTERS):
            yield text[start : start + SENTENCE_CHARACTERS]


def sentencepiece_processor(model: bytes, name: str, remedy: str) -> SentencePieceProcessor:
    """Return what cuts text into pieces.

    Args:
        model: a serialised sentencepiece model.
        name: of its file, for messages.
        remedy: likewise.

    Raises:
        CheckpointError: the bytes are no model.
    """
    if not model:
        raise CheckpointError(name, "is not a sentencepiece model", got="no bytes", remedy=remedy)
    try:
        return SentencePieceProcessor(model_proto=model, num_threads=num_threads())
    except RuntimeError:
        raise CheckpointError(
            name, "is not a sentencepiece model", got=f"{len(model):,} bytes", remedy=remedy
        ) from None


def _processor(model: bytes, name: str) -> SentencePieceProcessor:
    remedy = "restore the file, or train again"
    processor = sentencepiece_processor(model, name, remedy)
    found = [processor.id_to_piece(i) for i in range(min(NUM_SPECIAL, processor.get_piece_size()))]
    if found != list(SPECIAL_TOKENS):
        raise CheckpointError(
            name, "has other special tokens than tformer's", got=", ".join(found), remedy=remedy
        )
    return processor


def _explained(message: str, config: SubwordConfig) -> DataError:
    """Say what sentencepiece's complaint means in our terms."""
    if found := re.search(r"size too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return DataError(
            "tokenizer.vocab_size",
            f"is larger than the text allows (at most {found[1]})",
            got=str(config.vocab_size),
            remedy="make it smaller, or give more text",
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return DataError(
            "tokenizer.vocab_size",
            f"is smaller than the characters of the text need (at least {found[1]})",
            got=str(config.vocab_size),
            remedy="enlarge it, or lower tokenizer.character_coverage",
        )
    return DataError("tokenizer", "sentencepiece found no vocabulary", got=message)
