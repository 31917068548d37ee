"""Text on the pages is as legible as WCAG 2.2 asks for at level AA (success criterion 1.4.3)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Text and what lies behind it, by the names of colors.
PAGES = {
    "tformer_cli/serve/static/page.css": (("ink", "quiet", "accent"), ("paper", "sheet")),
    "tformer_cli/plotting/templates/report.css": (("ink", "soft", "a", "b"), ("page", "card")),
}


def luminance(color: str) -> float:
    """Relative luminance of `#rgb` or `#rrggbb`."""
    digits = color[1:] if len(color) == 7 else "".join(digit * 2 for digit in color[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_stands_out_from_its_page(page, mode):
    style = (ROOT / page).read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    colors = dict(re.findall(r"--(\w+): (#\w+)", light))
    if mode == "dark":
        colors |= dict(re.findall(r"--(\w+): (#\w+)", dark))
    texts, pages = PAGES[page]
    for text in texts:
        for behind in pages:
            low, high = sorted(luminance(colors[name]) for name in (text, behind))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)


@pytest.mark.parametrize("page", PAGES)
def test_no_text_is_paler_than_its_color(page):
    style = (ROOT / page).read_text(encoding="utf-8")
    paler = re.findall(r"^(.*\S) *\{[^}]*\bopacity: 0\.", style, flags=re.MULTILINE)
    # What cannot be pressed is exempt.
    assert [rule for rule in paler if ":disabled" not in rule] == []
