"""From lines to what is asked of a search: one request a line, or one for each piece of it."""

from collections.abc import Callable, Sequence
from typing import Literal

from tformer_cli.errors import DataError, Problem
from tformer_cli.search.request import Request
from tformer_cli.text.segments import (
    Terminology,
    first_word_indices,
    segment_text,
    sentence_ends,
    truncate_text,
)
from tformer_cli.text.subword import MarianTokenizer
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import EOS_ID

# Numbers the pieces of a line, for what is drawn at random.
MAX_PIECES = 1 << 20

# What a phrase stands behind, in a language without blanks.
FULL_STOP = "。"

LongLines = Literal["split", "truncate", "error"]


class Preprocessor:
    """Makes the requests of lines."""

    def __init__(
        self,
        tokenizers: Tokenizers,
        *,
        max_source_length: int,
        max_source_sentences: int | None,
        max_target_length: int | None,
        long_lines: LongLines,
        has_blanks: bool,
        banned: Sequence[str],
        terminology: Terminology | None,
        on_warning: Callable[[Problem], object],
        on_sentences: Callable[[Problem], object],
    ) -> None:
        """Set what all lines have in common.

        Args:
            tokenizers: of the model.
            max_source_length: tokens of a line, `</s>` not counted, above which it is long.
            max_source_sentences: sentences of a piece of a line; None sets no limit.
            max_target_length: tokens of the longest translation that the model can write, `</s>`
                counted, or None where any length will do.
            long_lines: what becomes of a long line.
            has_blanks: whether the target language has blanks between words.
            banned: words and phrases that no translation contains.
            terminology: terms whose translations are required where a line has them.
            on_warning: called with each long line that is split or truncated.
            on_sentences: called with each other line that is split.

        Raises:
            DataError: a banned phrase has no token, or one that no translation has.
        """
        self.tokenizers = tokenizers
        self.max_source_length = max_source_length
        self.max_source_sentences = max_source_sentences
        self.max_target_length = max_target_length
        self.long_lines = long_lines
        self.has_blanks = has_blanks
        self.terminology = terminology
        self.on_warning = on_warning
        self.on_sentences = on_sentences
        self.banned = self._spellings(banned)

    def of(
        self, line: str, prefix: str, phrases: Sequence[str], *, number: int, where: str
    ) -> list[Request]:
        """Return the requests of a line.

        Args:
            line: source text.
            prefix: what its translation begins with; of a line in pieces that of the first one.
            phrases: what its translation contains.
            number: of the line.
            where: the line, for messages.

        Raises:
            DataError: the line is long, and that is an error here, or it has phrases and is cut
                into pieces; or a prefix or a phrase has a token that no translation has, or they
                are longer than what the model can write, or contain a banned phrase; or a phrase
                has no token.
        """
        whose = f"the prefix of {where}"
        first = self._possible(self.tokenizers.target.encode(prefix), prefix, whose)
        self._check_not_banned(first, prefix, whose)
        pieces = self._pieces(line, where)
        if phrases and len(pieces) > 1:
            is_long = len(self.tokenizers.source.encode(line)) > self.max_source_length
            argument = "max_source_length" if is_long else "max_source_sentences"
            raise DataError(
                where,
                "has required phrases and is cut into pieces",
                got=f"{len(pieces)} pieces",
                remedy=f"split it and them, or raise `{argument}`",
            )
        words = first_word_indices([text for text, _ in pieces])
        requests = [
            Request(
                source=source,
                prefix=() if place else first,
                banned=self.banned,
                required=self._required(text, phrases, where),
                number=number * MAX_PIECES + place,
                first_word=word,
            )
            for place, ((text, source), word) in enumerate(zip(pieces, words, strict=True))
        ]
        self._check_has_room(requests, where)
        return requests

    def _check_has_room(self, requests: Sequence[Request], where: str) -> None:
        """Check that the model can write what translations begin with and contain.

        Raises:
            DataError: it cannot.
        """
        most = self.max_target_length
        needed = max(len(one.prefix) + sum(map(len, one.required)) + 1 for one in requests)
        if most is not None and needed > most:
            raise DataError(
                where,
                f"demands a translation beyond the positions that the model has learnt ({most})",
                got=f"{needed:,} tokens",
                remedy="shorten its prefix or its required phrases",
            )

    def _pieces(self, line: str, where: str) -> list[tuple[str, list[int]]]:
        """Return the text and the source ids of a line, or of each piece of one that is split."""
        encode, most = self.tokenizers.source.encode, self.max_source_length
        ids = encode(line)
        is_long, num_sentences = len(ids) > most, self._num_too_many(line)
        if not is_long and not num_sentences:
            return [(line, _ended(ids))]
        what, got = f"is longer than {most:,} tokens", f"{len(ids):,}"
        if self.long_lines == "error":
            raise DataError(where, what, got=got, remedy='split it, or use `long_lines="split"`')
        if self.long_lines == "truncate":
            pieces = [ids[:most]]
            texts = [truncate_text(line, most, lambda text: len(encode(text)))]
            outcome = f"only the first {most:,} are translated"
        else:
            code, rest = self._split_code(line)
            # No sentence of training begins or ends in blanks; to some tokenizers they are tokens.
            texts = segment_text(
                rest.strip(),
                most,
                lambda text: len(encode(code + text.strip())),
                max_sentences=self.max_source_sentences,
            )
            # A single character may have more tokens than there is room for.
            pieces = [encode(code + text.strip())[:most] for text in texts]
            noun = "piece" if len(pieces) == 1 else "pieces"
            outcome = f"translated in {len(pieces):,} {noun}"
        if is_long:
            self.on_warning(Problem(where, what, got, outcome))
        else:
            self.on_sentences(_too_many_sentences(where, num_sentences, self.max_source_sentences))
        return [(text, _ended(piece)) for text, piece in zip(texts, pieces, strict=True)]

    def _num_too_many(self, line: str) -> int:
        """Return the number of sentences of a line that is split for them, else 0."""
        if self.long_lines != "split" or self.max_source_sentences is None:
            return 0
        count = len(sentence_ends(line.strip()))
        return count if count > self.max_source_sentences else 0

    def _split_code(self, line: str) -> tuple[str, str]:
        """Return what each piece of a line has to begin with, and the rest of the line."""
        source = self.tokenizers.source
        return source.split_code(line) if isinstance(source, MarianTokenizer) else ("", line)

    def _required(
        self, text: str, phrases: Sequence[str], where: str
    ) -> tuple[tuple[int, ...], ...]:
        """Return the ids of what the translation of a piece of source text must contain."""
        terms = [] if self.terminology is None else self.terminology.target_terms(text)
        required = []
        for phrase in (*phrases, *(term for term in terms if term not in phrases)):
            whose = f"a required phrase of {where}"
            ids = self._phrase(self._ids_within(phrase), phrase, whose)
            self._check_not_banned(ids, phrase, whose)
            required.append(ids)
        return tuple(required)

    def _check_not_banned(self, ids: Sequence[int], text: str, where: str) -> None:
        """Check that a text may come in a translation.

        Raises:
            DataError: a banned phrase is in it.
        """
        if any(_contains(ids, one) for one in self.banned):
            raise DataError(where, "contains a banned word", got=repr(text))

    def _spellings(self, phrases: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the ids of banned phrases, as they begin a translation and as they go on in it."""
        encode = self.tokenizers.target.encode
        spelled = (
            self._phrase(ids, phrase, "`banned`")
            for phrase in phrases
            for ids in (encode(phrase), self._ids_within(phrase))
        )
        return tuple(dict.fromkeys(spelled))

    def _ids_within(self, phrase: str) -> list[int]:
        """Return the ids of a phrase that does not begin a translation."""
        encode = self.tokenizers.target.encode
        if self.has_blanks:
            return encode(phrase)
        # The first piece of a text has a blank before it; a language without blanks has none later.
        begin, whole = encode(FULL_STOP), encode(FULL_STOP + phrase)
        is_apart = whole[: len(begin)] == begin
        return whole[len(begin) :] if is_apart else encode(phrase)

    def _phrase(self, ids: Sequence[int], phrase: str, where: str) -> tuple[int, ...]:
        """Return the ids of a phrase, of which there are some, and all possible."""
        if not ids:
            raise DataError(where, "has no token", got=repr(phrase))
        return self._possible(ids, phrase, where)

    def _possible(self, target_ids: Sequence[int], text: str, where: str) -> tuple[int, ...]:
        """Return the ids of a text, all of which a translation may have."""
        target, ids = self.tokenizers.target, tuple(target_ids)
        if impossible := set(ids) & set(target.suppressed_ids):
            token = target.tokens([min(impossible)])[0]
            raise DataError(
                where, "has a token that no translation has", got=f"{token} in {text!r}"
            )
        return ids


def _contains(ids: Sequence[int], phrase: Sequence[int]) -> bool:
    places = range(len(ids) - len(phrase) + 1)
    return any(tuple(ids[place : place + len(phrase)]) == tuple(phrase) for place in places)


def _ended(ids: Sequence[int]) -> list[int]:
    """Put the end token after the ids of a sentence; an empty one stays empty."""
    return [*ids, EOS_ID] if ids else []


def _too_many_sentences(where: str, count: int, most: int | None) -> Problem:
    """Return what is said of the first line that is split for its sentences."""
    what = "has more sentences than a training line"
    how = "sentence by sentence" if most == 1 else f"at most {most} sentences at a time"
    return Problem(where, what, str(count), f"such lines are translated {how}")
