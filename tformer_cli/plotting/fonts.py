"""Fonts of this machine that have the characters of some labels."""

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

# What matplotlib brings along.
FIRST = "DejaVu Sans"
# Marks that change how their neighbours look and have no look of their own.
UNDRAWN = {"Cf", "Mn"}


class Choice(NamedTuple):
    """What to write some texts with.

    Attributes:
        families: names of fonts; a character is taken from the first one that has it.
        missing: the characters that no font has, each once, in their order.
    """

    families: list[str]
    missing: str


def chosen_fonts(texts: Iterable[str]) -> Choice:
    """Return as few fonts as have all characters of some texts, where there are such."""
    wanted = dict.fromkeys(character for text in texts for character in text)
    drawn = [one for one in wanted if unicodedata.category(one) not in UNDRAWN]
    families, files = [FIRST], _files()
    missing = _without(drawn, files[FIRST])
    while missing:
        # Most of them at once, and of equals the first by name.
        best = min(files, key=lambda family: (len(_without(missing, files[family])), family))
        left = _without(missing, files[best])
        if len(left) == len(missing):
            break
        families.append(best)
        missing = left
    return Choice(families, "".join(missing))


def _files() -> dict[str, str]:
    """Return a file of each upright font of regular weight, by the name of its family."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import fontManager

    return {
        entry.name: entry.fname
        for entry in fontManager.ttflist
        if entry.style == "normal"
        and entry.weight == 400
        # Those that matplotlib brings along are for formulas, or have boxes for all characters.
        and (entry.name == FIRST or not entry.fname.startswith(get_data_path()))
    }


def _without(characters: Iterable[str], file: str) -> list[str]:
    """Return the characters that a font does not have."""
    covered = _characters(file)
    return [one for one in characters if ord(one) not in covered]


@cache
def _characters(file: str) -> frozenset[int]:
    """Return the code points of a font."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(file).get_charmap())
    except (RuntimeError, OSError):
        # Pictures of characters and the like, which matplotlib cannot draw.
        return frozenset()
