"""Figures with as many digits as a few turns on a shared machine support."""

from collections.abc import Sequence
from statistics import median


def two_digits(figure: float) -> str:
    """Return a figure rounded to two significant digits."""
    if figure == 0:
        return "0"
    rounded = float(f"{figure:.1e}")
    # 9.96 becomes 10, with one digit less behind the point.
    digits = max(0, 1 - int(f"{rounded:e}".partition("e")[2]))
    return f"{rounded:,.{digits}f}"


def median_and_range(figures: Sequence[float]) -> str:
    """Return the median of some rounds with the least and the most of them."""
    least, most = two_digits(min(figures)), two_digits(max(figures))
    return f"{two_digits(median(figures))} ({least}-{most})"
