"""Which fonts are chosen, among fonts that do not exist."""

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.plotting import fonts
from tformer_cli.plotting.fonts import FIRST, chosen_fonts


@pytest.fixture
def installed(monkeypatch):
    """Install fonts, by their names and characters."""

    def install(**families: str) -> None:
        files = {FIRST: "abc", **families}
        monkeypatch.setattr(fonts, "_files", lambda: {name: name for name in files})
        monkeypatch.setattr(fonts, "_characters", lambda name: frozenset(map(ord, files[name])))

    return install


@pytest.mark.parametrize(
    ("texts", "families", "missing"),
    [
        (["abc"], [FIRST], ""),
        ([], [FIRST], ""),
        (["a犬"], [FIRST, "Kanji"], ""),
        (["犬が", "ب"], [FIRST, "Wide", "Kufi"], ""),
        (["a犬🙂x", "🙂"], [FIRST, "Kanji"], "🙂x"),
        # Joiners and vowel points are not looked up.
        (["ب\u200d\u064e"], [FIRST, "Kufi"], ""),
    ],
)
def test_few_fonts_have_all_characters(installed, texts, families, missing):
    installed(Kanji="犬", Wide="犬が", Kufi="ب")
    assert chosen_fonts(texts) == (families, missing)


@given(st.text(alphabet="ab犬がبx", max_size=12))
def test_what_is_missing_is_in_no_font(text):
    with pytest.MonkeyPatch.context() as patch:
        files = {FIRST: "ab", "One": "犬が", "Other": "がب"}
        patch.setattr(fonts, "_files", lambda: {name: name for name in files})
        patch.setattr(fonts, "_characters", lambda name: frozenset(map(ord, files[name])))
        families, missing = chosen_fonts([text])
    written = "".join(files[family] for family in families)
    assert all((one in written) != (one in missing) for one in text)
    assert set(missing) == set(text) & {"x"}


def test_fonts_of_this_machine_are_read():
    assert chosen_fonts(["Übergröße ▁…", "▁الكلب", "Ελλάδα"]) == ([FIRST], "")
    families, missing = chosen_fonts(["\U0010fffd"])
    assert (families, missing) == ([FIRST], "\U0010fffd")


def test_fonts_that_matplotlib_cannot_read_have_no_characters(tmp_path):
    file = tmp_path / "broken.ttf"
    file.write_bytes(b"no font")
    assert fonts._characters(str(file)) == frozenset()


def test_fonts_for_formulas_and_boxes_are_left_alone():
    names = set(fonts._files())
    assert FIRST in names
    bundled = {
        name for name, file in fonts._files().items() if file.startswith(mpl.get_data_path())
    }
    assert bundled <= {FIRST}
