"""`tformer translate --input film.srt --output film.de.srt`: documents from the command line."""

import gzip
import json
import re

import pytest

from tformer_cli import Translator

FILM = "1\n00:00:01,000 --> 00:00:02,500\nab cd.\n\n2\n00:00:03,000 --> 00:00:04,000\nfeg\n"


@pytest.fixture
def film(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "film.srt").write_text(FILM, encoding="utf-8")
    return tmp_path / "film.srt"


def test_subtitles_keep_their_times(toy_run, tformer, film):
    first, second = Translator.load(toy_run).translate(["ab cd.", "feg"])
    result = tformer("translate", toy_run, "-i", "film.srt", "-o", "film.de.srt")
    assert (result.exit_code, result.stdout) == (0, "")
    expected = FILM.replace("ab cd.", first).replace("feg", second)
    assert film.with_name("film.de.srt").read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("names", [("film.srt", "out.srt.gz"), ("film.srt.gz", "out.srt")])
def test_a_document_may_be_compressed_on_either_side(toy_run, tformer, film, names):
    film.with_name("film.srt.gz").write_bytes(gzip.compress(film.read_bytes()))
    options = ("translate", toy_run, "-i", "film.srt", "-o", "plain.srt")
    assert tformer(*options).exit_code == 0
    result = tformer("translate", toy_run, "-i", names[0], "-o", names[1])
    assert (result.exit_code, result.stderr) == (0, "")
    content = film.with_name(names[1]).read_bytes()
    content = gzip.decompress(content) if names[1].endswith(".gz") else content
    assert content == film.with_name("plain.srt").read_bytes()


def test_json_reports_the_kind_and_counts(toy_run, tformer, film):
    result = tformer("translate", toy_run, "-i", "film.srt", "-o", "film.de.srt", "--json")
    counts = {"segments": 2, "sentences": 2, "tags": 0, "lost_tags": 0}
    assert json.loads(result.stdout) == {"kind": "srt", **counts}


def test_a_field_of_json_lines_is_translated(toy_run, tformer, film):
    rows = [{"id": 1, "body": "ab"}, {"body": "", "text": "ab"}]
    data = film.with_name("data.jsonl")
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    options = ("-i", "data.jsonl", "-o", "out.jsonl", "--field", "body")
    assert tformer("translate", toy_run, *options).exit_code == 0
    (translation,) = Translator.load(toy_run).translate(["ab"])
    written = film.with_name("out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row) for row in written] == [{**rows[0], "body": translation}, rows[1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--output: must be a file for a document; name a file"),
        (("-o", "-"), "--output: must be a file for a document; name a file"),
        (
            ("-o", "film.txt"),
            "--output: must be of the same kind as the document (film.txt); use .srt",
        ),
        (("-o", "film.srt"), "--output: is also --input (film.srt); name another file"),
        (
            ("-o", "x.srt", "--field", "a"),
            "--field: has no effect on this document (film.srt); leave it out",
        ),
        *(
            (
                ("-o", "x.srt", *option),
                f"{option[0]}: has no effect on a document (film.srt); "
                "leave it out, or use < FILE for lines",
            )
            for option in [
                ("--resume",),
                ("--nbest", "2"),
                ("--alignments", "y"),
                ("--prefixes", "film.srt"),
                ("--constraints", "film.srt"),
            ]
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(toy_run, tformer, film, options, message):
    result = tformer("translate", toy_run, "-i", "film.srt", *options)
    assert (result.exit_code, result.stderr) == (2, f"{message}\n")
    assert list(film.parent.iterdir()) == [film]


def test_messages_keep_their_placeholders(toy_run, tformer, tmp_path):
    sources = ["ab %s cd", "%(name)s ef", "ab {} %d%%"]
    catalog = tmp_path / "app.po"
    catalog.write_text(
        "".join(f'msgid "{source}"\nmsgstr ""\n\n' for source in sources), encoding="utf-8"
    )
    output = tmp_path / "app.aa.po"
    tformer("translate", toy_run, "--input", catalog, "--output", output)
    found = re.findall('msgstr "(.*)"', output.read_text(encoding="utf-8"))
    assert len(found) == len(sources)
    for text, spans in zip(found, (["%s"], ["%(name)s"], ["{}", "%d"]), strict=True):
        assert [text.count(span) for span in spans] == [1] * len(spans)


def test_an_xliff_file_of_other_languages_is_warned_of(toy_run, tformer, tmp_path):
    unit = "<body><trans-unit id='1'><source>ab</source></trans-unit></body>"
    file = tmp_path / "a.xlf"
    own = Translator.load(toy_run).direction.languages
    for languages, is_warned in (((own[0], "x" * len(own[1])), True), (own, False)):
        names = " ".join(
            f'{side}-language="{language}"'
            for side, language in zip(("source", "target"), languages, strict=True)
        )
        file.write_text(f"<xliff version='1.2'><file {names}>{unit}</file></xliff>")
        result = tformer("translate", toy_run, "-i", file, "-o", tmp_path / "b.xlf")
        assert result.exit_code == 0
        warning = f"{file}: is of other languages than the model ({' to '.join(languages)}, and the"
        assert (warning in result.stderr) is is_warned


def test_a_field_needs_a_document(toy_run, tformer):
    result = tformer("translate", toy_run, "--field", "body", stdin="ab\n")
    message = "--field: has no effect without a document (body); leave it out\n"
    assert (result.exit_code, result.stderr) == (2, message)


def test_lines_of_a_document_come_by_stdin(toy_run, tformer, film):
    assert tformer("translate", toy_run, stdin=film.read_bytes()).stdout.count("\n") == 7


def test_a_hyphen_is_stdin_and_stdout(toy_run, tformer, film):
    plain = tformer("translate", toy_run, stdin="ab cd\n")
    result = tformer("translate", toy_run, "-i", "-", "-o", "-", stdin="ab cd\n")
    assert (result.exit_code, result.stdout) == (0, plain.stdout)
    output = film.parent / "output"
    words = ("--alignments", "-", "-o", output)
    result = tformer("translate", toy_run, *words, stdin="ab cd\n")
    assert re.fullmatch(r"\d-\d( \d-\d)*\n", result.stdout)
    assert (result.exit_code, output.read_text()) == (0, plain.stdout)
    assert sorted(film.parent.iterdir()) == sorted([film, output])
