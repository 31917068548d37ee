"""Phrase pairs: all that the definition allows, each once, and written whole."""

import gzip
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli import PairsFile, ParallelText, TformerError, extract_phrases
from tformer_cli.config.schema.text import TrainingText
from tformer_cli.corpus import phrases as phrases_module
from tformer_cli.corpus.phrases import consistent_spans

PAIRS = [
    ("The dog sleeps.", "Der Hund schläft."),
    ("The cat sleeps.", "Der Kater schläft."),
    ("A dog, it runs!", "Ein Hund, er rennt!"),
    ("A cat, it runs!", "Ein Kater, er rennt!"),
    ("?", "?"),
    ("", ""),
]
LINKS = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)))


def write(folder: Path, pairs: list[tuple[str, str]]) -> ParallelText:
    files = folder / "corpus.en", folder / "corpus.de"
    for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    return ParallelText(source=files[0], target=files[1])


def read(text: TrainingText) -> list[tuple[str, str]]:
    sides = [file.read_text().splitlines() for file in text.files.values()]
    return list(zip(*sides, strict=True))


@given(LINKS, st.integers(1, 6), st.integers(1, 6))
def test_spans_are_all_that_no_link_leaves(links, max_source, max_target):
    def spans(limit: int) -> list[tuple[int, int]]:
        pairs = itertools.combinations_with_replacement(range(6), 2)
        return [(first, last) for first, last in pairs if last - first < limit]

    expected = set()
    for one, other in itertools.product(spans(max_source), spans(max_target)):
        is_inside = [(one[0] <= i <= one[1], other[0] <= j <= other[1]) for i, j in links]
        sources, targets = ({link[side] for link in links} for side in (0, 1))
        is_tight = {*one} <= sources and {*other} <= targets
        if is_tight and all(a == b for a, b in is_inside) and one != (0, 5):
            expected.add((one, other))
    assert sorted(consistent_spans(links, 6, max_source, max_target)) == sorted(expected)


def test_phrases_are_parts_of_sentences_without_punctuation_at_their_ends(tmp_path):
    result = extract_phrases(write(tmp_path, PAIRS), tmp_path / "phrases", languages=("en", "de"))
    assert result.text == TrainingText(
        source=tmp_path / "phrases.en", target=tmp_path / "phrases.de", tags=("[phrase]",)
    )
    pairs = read(result.text)
    assert (len(pairs), result.num_pairs) == (result.num_phrases, 4)
    assert len(set(pairs)) == len(pairs)
    assert pairs[:3] == [("The", "Der"), ("The dog", "Der Hund"), ("dog", "Hund")]
    assert {("dog, it", "Hund, er"), ("cat sleeps", "Kater schläft")} <= set(pairs)
    assert not {source for source, _ in pairs} & {source.rstrip(".!") for source, _ in PAIRS}


def test_phrases_have_so_many_words_or_twice_as_many_characters(tmp_path):
    files = tmp_path / "a.ja", tmp_path / "a.en"
    files[0].write_text("犬が寝る\n猫が寝る\n")
    files[1].write_text("dogs do sleep\ncats do sleep\n")
    text = ParallelText(source=files[0], target=files[1])
    result = extract_phrases(text, tmp_path / "p", languages=("ja", "en"), max_words=1)
    for source, target in read(result.text):
        assert len(source) <= 2
        assert len(target.split()) == 1


def test_a_file_of_pairs_and_compressed_output(tmp_path):
    plain = extract_phrases(write(tmp_path, PAIRS), tmp_path / "plain", languages=("en", "de"))
    table = tmp_path / "corpus.tsv"
    table.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS[:4]))
    text = PairsFile(pairs=table)
    result = extract_phrases(text, tmp_path / "out.gz", languages=("en", "de"))
    for file, other in zip(plain.text.files.values(), result.text.files.values(), strict=True):
        assert gzip.decompress(other.read_bytes()) == file.read_bytes()
        assert other.name == f"out{file.suffix}.gz"


@pytest.mark.parametrize("pairs", [[("Dog", "Hund")], [("?", "!")], []])
def test_a_text_without_phrases_is_refused_and_nothing_is_written(tmp_path, pairs):
    for name in ("corpus.en", "corpus.de"):
        (tmp_path / name).touch()
    text = write(tmp_path, pairs) if pairs else None
    text = text or ParallelText(source=tmp_path / "corpus.en", target=tmp_path / "corpus.de")
    with pytest.raises(TformerError, match="has no phrase pairs"):
        extract_phrases(text, tmp_path / "phrases", languages=("en", "de"))
    assert not list(tmp_path.glob("phrases*"))


def test_a_text_that_takes_too_much_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(phrases_module, "MAX_WORD_PAIRS", 49)
    text = write(tmp_path, PAIRS)
    with pytest.raises(TformerError, match=r"49 pairs of words to align \(50\)"):
        extract_phrases(text, tmp_path / "phrases", languages=("en", "de"))


def test_output_may_not_replace_the_text(tmp_path):
    text = write(tmp_path, PAIRS)
    with pytest.raises(TformerError, match="would replace the text"):
        extract_phrases(text, tmp_path / "corpus", languages=("en", "de"))
    assert len(text.source.read_text().splitlines()) == len(PAIRS)


def test_if_one_side_cannot_be_written_the_other_stays_as_it_was(tmp_path):
    text = write(tmp_path, PAIRS)
    (tmp_path / "phrases.en").write_text("before\n")
    (tmp_path / "phrases.de").mkdir()
    with pytest.raises(TformerError, match=r"phrases\.de"):
        extract_phrases(text, tmp_path / "phrases", languages=("en", "de"))
    assert (tmp_path / "phrases.en").read_text() == "before\n"
