"""Text to token ids: a line becomes one request to the search, or one for each of its pieces."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

from tformer_cli.choices import LongLines
from tformer_cli.corpus.lines import read_lines
from tformer_cli.corpus.reader import has_pipe, read_beside
from tformer_cli.errors import (
    DataError,
    Problem,
    UsageError,
    check_choice,
    check_positive,
    check_utf8,
    quantity,
    reject_str,
)
from tformer_cli.search.engine import Request
from tformer_cli.text.segments import (
    Terminology,
    first_word_indices,
    segment_text,
    sentence_ends,
    truncate_text,
)
from tformer_cli.text.special_tokens import tag_ids
from tformer_cli.text.subword import MarianTokenizer
from tformer_cli.text.tokenizer import Ids, Tokenizers, with_eos

# Pieces of a line at most; piece i of line n has the number n * MAX_PIECES + i when sampling.
MAX_PIECES = 1 << 20
_Line = TypeVar("_Line")
_Item = TypeVar("_Item")
# Context that makes a tokenizer encode a phrase as in the middle of a text without whitespace.
FULL_STOP = "。"


class InputLine(NamedTuple):
    """A line to translate."""

    text: str
    prefix: str = ""  # of its translation; for a line in pieces, that of the first piece
    phrases: Sequence[str] = ()  # required, each as often as it is listed
    where: str | None = None  # for messages; None for its number


def input_lines(
    lines: Iterable[str],
    prefixes: Iterable[str] | None = None,
    required: Iterable[Sequence[str]] | None = None,
) -> Iterator[InputLine]:
    """Yield each line with its prefix and its required phrases.

    Raises:
        UsageError: there are more or fewer of them than lines.
    """
    rows: Iterator[InputLine] = map(InputLine, lines)
    if prefixes is not None:
        pairs = one_each(rows, prefixes, "`prefixes`")
        rows = (line._replace(prefix=prefix) for line, prefix in pairs)
    if required is not None:
        rows = _with_phrases(one_each(rows, required, "`required`"))
    return rows


def _with_phrases(pairs: Iterable[tuple[InputLine, Sequence[str]]]) -> Iterator[InputLine]:
    for index, (line, phrases) in enumerate(pairs):
        reject_str(**{f"required[{index}]": phrases})
        yield line._replace(phrases=tuple(phrases))


def one_each(
    lines: Iterable[_Line], items: Iterable[_Item], argument: str
) -> Iterator[tuple[_Line, _Item]]:
    """Yield each line with its item.

    Raises:
        UsageError: there are more or fewer of them than lines.
    """
    for number, (line, item) in enumerate(itertools.zip_longest(lines, items), start=1):
        if line is None or item is None:
            what = "must have an item for each line"
            got = f"none for line {number}" if item is None else f"more than {number - 1}"
            raise UsageError(argument, what, got=got)
        yield line, item


def read_input_lines(
    file: Path, prefixes: Path | None, constraints: Path | None
) -> Iterator[InputLine]:
    """Yield each line of a file with its prefix and its phrases from the files beside it.

    Each file is read once, so it may be a pipe.
    """
    lines: Iterator[InputLine] = map(InputLine, read_lines(file))
    if prefixes is not None:
        lines = (line._replace(prefix=row) for line, row in read_beside(lines, file, prefixes))
    if constraints is not None:
        beside = read_beside(lines, file, constraints)
        lines = (line._replace(phrases=_phrases(row)) for line, row in beside)
    return lines


def count_input_lines(
    file: Path | None, prefixes: Path | None, constraints: Path | None
) -> int | None:
    """Return the number of lines of a file; None without one, or where a pipe is among the files.

    A pipe can be read only once.

    Raises:
        DataError: a file has invalid text, or files have different numbers of lines.
    """
    if file is None or has_pipe(file, prefixes, constraints):
        return None
    return sum(1 for _ in read_input_lines(file, prefixes, constraints))


def read_terminology(file: Path | None, source_language: str) -> Terminology | None:
    """Return the terms of a file, if any: lines of a source term, a tab and a target term."""
    if file is None:
        return None
    return Terminology(read_lines(file), str(file), source_language=source_language)


def common_tags(tags: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the tags of an ensemble: those to which all models, by their tags, give one id."""
    by_id = zip(*tags, strict=False)
    return tuple(name for name, *_ in itertools.takewhile(lambda x: len(set(x)) == 1, by_id))


def _phrases(row: str) -> list[str]:
    return [phrase for phrase in row.split("\t") if phrase.strip()]


@dataclass(kw_only=True)
class Preprocessor:
    """Encodes lines. A long line is split into pieces, truncated or refused."""

    tokenizers: Tokenizers
    max_source_length: int  # source tokens, EOS excluded
    max_source_sentences: int | None  # in a piece; None for no limit
    max_positions: int | None  # learned positions, one of them for EOS; None for no limit
    long_lines: LongLines  # what to do with a line above `max_source_length`
    uses_whitespace: bool  # between the words of the target language
    _has_warned_of_sentences: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_positive("`max_source_length`", self.max_source_length)
        if self.max_source_sentences is not None:
            check_positive("`max_source_sentences`", self.max_source_sentences)
        check_choice("`long_lines`", self.long_lines, get_args(LongLines))
        if self.max_positions is not None and self.max_source_length >= self.max_positions:
            raise UsageError(
                "`max_source_length`",
                f"must be below {self.max_positions}, the number of learned positions",
                got=str(self.max_source_length),
                remedy="leave it out, or train with model.positions: {kind: sinusoidal}",
            )

    def encode(
        self,
        line: InputLine,
        *,
        number: int,
        where: str,
        tags: Ids = (),
        start: Ids = (),
        banned: Sequence[Ids] = (),
        terminology: Terminology | None = None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> list[Request]:
        """Return the request of each piece of a line.

        The line number determines sampling noise. Each piece with text begins with `tags`, which
        come from `encode_tags`, and its translation with `start`, before the prefix of the line;
        `banned` comes from `encode_banned`; terms are required where a piece contains them.
        `on_warning` is called if the line is split or truncated; for its number of sentences, only
        for the first such line.

        Raises:
            DataError: the line is too long (`long_lines="error"`), is split although it has
                phrases, or its prefix or phrases cannot occur in a translation.
            UsageError: one of these is not UTF-8.
        """
        for given in (line.text, line.prefix, *line.phrases):
            check_utf8(where, given)
        ids = self.tokenizers.target.encode(line.prefix)
        prefix = self._check_ids(ids, line.prefix, f"the prefix of {where}", banned)
        pieces = self._pieces(line.text, where, on_warning)
        if line.phrases and len(pieces) > 1:
            is_long = len(self.tokenizers.source.encode(line.text)) > self.max_source_length
            argument = "max_source_length" if is_long else "max_source_sentences"
            what = "has required phrases but is split into pieces"
            got = f"{len(pieces)} pieces"
            raise DataError(
                where, what, got=got, remedy=f"split it and them, or raise `{argument}`"
            )
        words = first_word_indices([text for text, _ in pieces])
        whose = f"a required phrase of {where}"
        requests = []
        for index, ((text, source), word) in enumerate(zip(pieces, words, strict=True)):
            terms = [] if terminology is None else terminology.target_terms(text)
            phrases = [*line.phrases, *(term for term in terms if term not in line.phrases)]
            request = Request(
                source=[*tags, *source] if source else source,
                start=start,
                prefix=() if index else prefix,
                banned=tuple(banned),
                required=tuple(
                    self._check_phrase(self._encode_within(phrase), phrase, whose, banned)
                    for phrase in phrases
                ),
                number=number * MAX_PIECES + index,
                first_word=word,
                num_tags=len(tags) if source else 0,
            )
            self._check_positions(request, where)
            requests.append(request)
        return requests

    def require(self, request: Request, texts: Sequence[str]) -> Request:
        """Return a request with more required phrases: the texts that stand in its source.

        Those that no translation can contain are left out.
        """
        source = self.tokenizers.source.decode(request.source[request.num_tags : -1])
        required = list(request.required)
        for text, count in Counter(texts).items():
            with contextlib.suppress(DataError):
                ids = self._check_phrase(self._encode_within(text), text, "", request.banned)
                required += [ids] * min(count, source.count(text))
        more = replace(request, required=tuple(required))
        with contextlib.suppress(DataError):
            self._check_positions(more, "")
            return more
        return request

    def encode_tags(self, names: Sequence[str], known: Sequence[str], first: Ids = ()) -> Ids:
        """Return the ids that a source begins with: `first`, those of its language, and tags.

        `known` are the tags of the model, by id.

        Raises:
            UsageError: the model does not know a tag, or has too few learned positions.
        """
        ids = (*first, *tag_ids(names, known))
        needed = self.max_source_length + len(ids) + 1
        if self.max_positions is None or needed <= self.max_positions:
            return ids
        if not names:
            most = self.max_positions - len(ids) - 1
            what = f"must be at most {most}, since each line begins with the token of its language"
            got = str(self.max_source_length)
            raise UsageError("`max_source_length`", what, got=got, remedy="lower it")
        what = f"leaves a line fewer than {self.max_source_length + 1} learned positions"
        remedy = f"lower `max_source_length` by {needed - self.max_positions}"
        raise UsageError("`tags`", what, got=", ".join(names), remedy=remedy)

    def encode_banned(self, phrases: Sequence[str]) -> list[Ids]:
        """Return the ids of phrases, at the beginning of a translation and within it."""
        for phrase in phrases:
            check_utf8("`banned`", phrase)
        encode = self.tokenizers.target.encode
        encoded = (
            self._check_phrase(ids, phrase, "`banned`")
            for phrase in phrases
            for ids in (encode(phrase), self._encode_within(phrase))
        )
        return list(dict.fromkeys(encoded))

    def _check_positions(self, request: Request, where: str) -> None:
        needed = len(request.forced) + sum(map(len, request.required)) + 1
        if self.max_positions is not None and needed > self.max_positions:
            raise DataError(
                where,
                f"requires more tokens than the {self.max_positions} positions that the model "
                "has learned",
                got=f"{needed:,} tokens",
                remedy="shorten its prefix or its required phrases",
            )

    def _pieces(
        self, line: str, where: str, on_warning: Callable[[Problem], object]
    ) -> list[tuple[str, list[int]]]:
        """Return text and source ids of each piece of a line; a short line is one piece."""
        encode = self.tokenizers.source.encode
        limit = self.max_source_length
        ids = encode(line)
        is_long = len(ids) > limit
        num_sentences = self._num_excess_sentences(line)
        if not is_long and not num_sentences:
            return [(line, with_eos(ids))]
        what = f"is longer than {limit:,} tokens"
        got = f"{len(ids):,}"
        if self.long_lines == "error":
            raise DataError(where, what, got=got, remedy='split it, or use `long_lines="split"`')
        if self.long_lines == "truncate":
            texts = [truncate_text(line, limit, lambda text: len(encode(text)))]
            pieces = [ids[:limit]]
            outcome = f"only the first {limit:,} are translated"
        else:
            code, rest = self._split_code(line)
            # Training sentences neither begin nor end with whitespace, and some tokenizers have
            # tokens for it.
            texts = segment_text(
                rest.strip(),
                limit,
                lambda text: len(encode(code + text.strip())),
                max_sentences=self.max_source_sentences,
            )
            # A single character can have more tokens than the limit.
            pieces = [encode(code + text.strip())[:limit] for text in texts]
            outcome = f"translated in {quantity(len(pieces), 'piece')}"
        if is_long:
            on_warning(Problem(where, what, got, outcome))
        elif not self._has_warned_of_sentences:
            self._has_warned_of_sentences = True
            on_warning(_sentences_warning(where, num_sentences, self.max_source_sentences))
        return [(text, with_eos(piece)) for text, piece in zip(texts, pieces, strict=True)]

    def _num_excess_sentences(self, line: str) -> int:
        """Return the number of sentences of a line that is split for them, else 0."""
        if self.long_lines != "split" or self.max_source_sentences is None:
            return 0
        count = len(sentence_ends(line.strip()))
        return count if count > self.max_source_sentences else 0

    def _split_code(self, line: str) -> tuple[str, str]:
        """Return the language code with which each piece begins, and the rest of the line."""
        source = self.tokenizers.source
        return source.split_code(line) if isinstance(source, MarianTokenizer) else ("", line)

    def _encode_within(self, phrase: str) -> list[int]:
        """Return the ids of a phrase that does not begin a translation."""
        encode = self.tokenizers.target.encode
        if self.uses_whitespace:
            return encode(phrase)
        # A tokenizer puts a space before the first word of a text. Without whitespace between
        # words, later ones have none.
        context = encode(FULL_STOP)
        whole = encode(FULL_STOP + phrase)
        is_separate = whole[: len(context)] == context
        return whole[len(context) :] if is_separate else encode(phrase)

    def _check_phrase(
        self, ids: Sequence[int], phrase: str, where: str, banned: Sequence[Ids] = ()
    ) -> Ids:
        if not ids:
            raise DataError(where, "has no token", got=repr(phrase))
        return self._check_ids(ids, phrase, where, banned)

    def _check_ids(
        self, ids: Sequence[int], text: str, where: str, banned: Sequence[Ids] = ()
    ) -> Ids:
        """Return the ids of a part of a translation, if a search can generate them."""
        target = self.tokenizers.target
        if suppressed := set(ids) & set(target.suppressed_ids):
            token = target.tokens([min(suppressed)])[0]
            what = "has a token that no translation can contain"
            raise DataError(where, what, got=f"{token} in {text!r}")
        if any(_contains(tuple(ids), phrase) for phrase in banned):
            raise DataError(where, "contains a banned word", got=repr(text))
        return tuple(ids)


def _contains(ids: Ids, phrase: Ids) -> bool:
    starts = range(len(ids) - len(phrase) + 1)
    return any(ids[start : start + len(phrase)] == phrase for start in starts)


def _sentences_warning(where: str, count: int, limit: int | None) -> Problem:
    what = "has more sentences than a training line"
    how = "sentence by sentence" if limit == 1 else f"at most {limit} sentences at a time"
    return Problem(where, what, str(count), f"such lines are translated {how}")
