"""Which word of a text each of its tokens is in, and which words belong together."""

from collections.abc import Sequence

from tformer_cli.text.tokenizer import Tokenizer


def word_indices(spelled: Sequence[bytes]) -> list[int | None]:
    """Return the number of each token's word, counted from 0; None of a token of blanks.

    A word is what stands between blanks, as programs of a command line count words: ASCII white
    space only. A token of several words belongs to the first.

    Args:
        spelled: the UTF-8 bytes that each token stands for, at least one; a character may be spread
            over several.
    """
    numbers: list[int | None] = []
    num_words, inside = 0, False
    for token in spelled:
        words = token.split()
        goes_on = inside and bool(words) and not token[:1].isspace()
        numbers.append(num_words - goes_on if words else None)
        num_words += len(words) - goes_on
        inside = not token[-1:].isspace()
    return numbers


def first_word_indices(pieces: Sequence[str]) -> list[int]:
    """Return the number of the word of a text that each piece of it begins in, counted from 0.

    Args:
        pieces: in a row the text, none of them empty; what a blank one says means nothing.
    """
    return [number or 0 for number in word_indices([piece.encode() for piece in pieces])]


def unit_indices(
    tokenizer: Tokenizer, pieces: Sequence[Sequence[int]], firsts: Sequence[int], blank: str
) -> list[int | None]:
    """Return the number of each token's word in a text; of its own, where words have no blanks.

    Args:
        tokenizer: of the language.
        pieces: ids of the text, in one or more pieces.
        firsts: number of the word that each piece begins in.
        blank: what stands between sentences; nothing in a language without blanks.
    """
    if not blank:
        return list(range(sum(len(ids) for ids in pieces)))
    numbers: list[int | None] = []
    for ids, first in zip(pieces, firsts, strict=True):
        own = word_indices(tokenizer.to_bytes(ids))
        numbers += [None if number is None else first + number for number in own]
    return numbers


def aligned_units(
    links: Sequence[int], source: Sequence[int | None], target: Sequence[int | None]
) -> tuple[tuple[int, int], ...]:
    """Return the pairs of a source and a target unit that are linked, in ascending order.

    A blank of the source stands for the word behind it, which some tokenizers begin with a token
    of that blank alone. A blank of the target says nothing.

    Args:
        links: for each target token the place of a source token.
        source: the unit of each source token.
        target: the unit of each target token.
    """
    behind = list(source)
    for place in reversed(range(len(source) - 1)):
        if behind[place] is None:
            behind[place] = behind[place + 1]
    pairs = set()
    for link, target_unit in zip(links, target, strict=True):
        source_unit = behind[link]
        if source_unit is not None and target_unit is not None:
            pairs.add((source_unit, target_unit))
    return tuple(sorted(pairs))


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Return pairs as they are usually written, such as `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in pairs)
