"""`tformer extract-phrases`: what it prints is what it wrote."""

import json

import yaml

from tformer_cli import ParallelText, extract_phrases

PAIRS = [("the dog sleeps", "der Hund schläft"), ("the cat sleeps", "der Kater schläft"), ("", "")]


def test_it_says_how_many_and_how_to_train_on_them(tformer, tmp_path):
    files = tmp_path / "corpus.en", tmp_path / "corpus.de"
    for file, lines in zip(files, zip(*PAIRS, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    text = ParallelText(source=files[0], target=files[1])
    expected = extract_phrases(text, tmp_path / "x", languages=("en", "de"), max_words=2)
    result = tformer("extract-phrases", *files, "-o", tmp_path / "p.gz", "--max-words", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    first, second, *lines = result.stdout.splitlines()
    assert first == f"{expected.num_phrases} phrase pairs of 2 pairs of sentences"
    assert second == "below data.train of a config:"
    written = {"source": f"{tmp_path}/p.en.gz", "target": f"{tmp_path}/p.de.gz"}
    assert yaml.safe_load("\n".join(lines)) == [{**written, "tags": ["[phrase]"]}]
    result = tformer("extract-phrases", *files, "-o", tmp_path / "q", "--max-words", 2, "--json")
    assert json.loads(result.stdout) == {
        "num_pairs": 2,
        "num_phrases": expected.num_phrases,
        "train": {
            "source": f"{tmp_path}/q.en",
            "target": f"{tmp_path}/q.de",
            "tags": ["[phrase]"],
        },
    }
    for file in expected.text.files.values():
        assert (tmp_path / f"q{file.suffix}").read_bytes() == file.read_bytes()
