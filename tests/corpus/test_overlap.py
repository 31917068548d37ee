"""Overlap with training text: of pairs, sources and targets apart."""

from pathlib import Path

from tformer_cli.config.schema.text import ParallelText, PlainText, Text
from tformer_cli.corpus.overlap import Overlap, overlaps
from tformer_cli.corpus.reader import read_texts


def parallel(folder: Path, name: str, pairs: list[tuple[str, str]]) -> ParallelText:
    text = ParallelText(source=folder / f"{name}.en", target=folder / f"{name}.de")
    for file, side in ((text.source, 0), (text.target, 1)):
        file.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return text


def test_pairs_sources_and_targets_are_counted_apart(tmp_path: Path) -> None:
    first = parallel(tmp_path, "first", [("A dog.", "Ein Hund."), ("Yes.", "Ja."), ("", "x")])
    second = parallel(tmp_path, "second", [("Oh yes!", "Oh ja!"), ("No.", "Nein.")])
    valid = parallel(
        tmp_path,
        "valid",
        [
            ("a dog.", "EIN HUND."),
            ("Yes.", "Jawohl."),
            ("Indeed!", "Ja."),
            # Both are in training text, but not together.
            ("No.", "Ja."),
            ("New.", "Neu."),
            ("", ""),
        ],
    )
    test = parallel(tmp_path, "test", [("New.", "Neu.")])
    held_out: dict[str, Text] = {"valid": valid, "test": test}
    assert overlaps(read_texts([first, second]), held_out) == {
        "valid": Overlap(num_pairs=6, pairs=1, sources=3, targets=3),
        "test": Overlap(num_pairs=1, pairs=0, sources=0, targets=0),
    }


def test_text_alone_overlaps_by_its_lines(tmp_path: Path) -> None:
    files = tmp_path / "train.en", tmp_path / "valid.en"
    for file, lines in zip(files, ("a\nb\n\n", "B\nc\n\n"), strict=True):
        file.write_text(lines, encoding="utf-8")
    found = overlaps(read_texts([PlainText(text=files[0])]), {"valid": PlainText(text=files[1])})
    assert found == {"valid": Overlap(num_pairs=3, pairs=1, sources=1, targets=0)}
