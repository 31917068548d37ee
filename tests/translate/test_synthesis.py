"""Synthetic pairs: what translators give, line by line, whatever the lines and the kills."""

import json
import os
import random
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from killing import killed
from sacrebleu.metrics.chrf import CHRF

from tformer_cli import MBR, BeamConfig, SearchOptions, TformerError, Translator, synthesize
from tformer_cli.corpus.lines import read_lines
from tformer_cli.export.run import export_run
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.translate import translator as translator_module
from tformer_cli.translate.teachers import Teachers

# Nothing here but LF ends a line of a file, though much of it ends one for str.splitlines.
HOSTILE = [
    "abc de",
    "",
    " \t ",
    "a\x0bb c\x0cd\x1ce",
    "ab\u2028cd\u2029e\x85f",
    "a\rb",
    '{"line": 7} "b',
    "\ufeffgab",
    " ".join(["abc fed. gab"] * 60),
    "abc de",
    "日本 a",
    "",
]
SHORT = ["ab", "cde f", "", "g", "ab", "bad cafe", "f e d", "abc de", "", "gab", "c"]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(translator_module, "WINDOW_LINES", 3)


@pytest.fixture(scope="module")
def teachers(toy_run, tmp_path_factory) -> list[str]:
    """Two models that differ: of the best checkpoint, and of another one."""
    folder = tmp_path_factory.mktemp("teachers")
    for name in ("one", "other"):
        shutil.copytree(toy_run, folder / name, ignore=shutil.ignore_patterns("exports"))
    best = (toy_run / "best").read_text()
    names = sorted(path.name for path in (toy_run / "checkpoints").iterdir())
    (folder / "other" / "best").write_text(next(x for x in names if x != best.strip()))
    return [str(folder / "one"), str(folder / "other")]


def write(file: Path, lines: list[str]) -> Path:
    file.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return file


def lines_of(file: Path) -> list[str]:
    *lines, last = file.read_bytes().decode().split("\n")
    assert last == ""
    return lines


def rows_of(file: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, lines_of(file)))


@pytest.fixture
def make(teachers, tmp_path):
    """Synthesize from some lines by both teachers."""

    def call(lines=HOSTILE, names=teachers, real="source", output="new/pairs", **options):
        text = write(tmp_path / "text", lines)
        options = {"backend": "native", **options}
        return synthesize(names, text, tmp_path / output, real=real, **options)

    return call


@pytest.mark.parametrize("real", ["source", "target"])
@pytest.mark.parametrize("count", [1, 2])
def test_pairs_are_those_of_each_translator_line_by_line(make, teachers, real, count):
    result = make(real=real, count=count)
    by_teacher = [
        list(Translator.load(name, backend="native").nbest(HOSTILE, count)) for name in teachers
    ]
    expected = [
        (number, teacher, rank, line, best.text, best.log_prob / (len(best.tokens) + 1))
        for number, line in enumerate(HOSTILE, start=1)
        for teacher, translated in zip(teachers, by_teacher, strict=True)
        for rank, best in enumerate(translated[number - 1], start=1)
        if best.text.strip()
    ]
    real_side, other = (real, "target" if real == "source" else "source")
    rows = rows_of(result.record)
    names = ("line", "teacher", "rank", real_side, other)
    assert [tuple(row[name] for name in names) for row in rows] == [x[:5] for x in expected]
    assert [row["score"] for row in rows] == pytest.approx([x[5] for x in expected], abs=1e-4)
    assert lines_of(result.text.source) == [row["source"] for row in rows]
    assert lines_of(result.text.target) == [row["target"] for row in rows]
    with_pairs = {number for number, *_ in expected}
    assert set(result.omitted) == set(range(1, len(HOSTILE) + 1)) - with_pairs
    assert {2, 3, 12} <= set(result.omitted)
    assert result.num_lines == len(HOSTILE)
    assert result.num_pairs == {
        name: sum(teacher == name for _, teacher, *_ in expected) for name in teachers
    }


def test_teachers_of_this_test_differ(make, teachers):
    rows = rows_of(make().record)
    one, other = ([row["target"] for row in rows if row["teacher"] == x] for x in teachers)
    assert one != other


@pytest.mark.parametrize(
    ("lines", "options", "got"),
    [
        (["ab"] * 9 + ["x", "", " "], {}, None),
        (["ab"] * 8 + ["x", "x c", "", " "], {}, "2 of 10"),
        (["x"] * 3, {}, "3 of 3"),
        # The lines without a pair have that of the first one.
        (["ab"] * 10, {"drop_duplicates": True}, None),
        (["ab"] * 8 + ["x"] * 2, {"drop_duplicates": True}, "2 of 10"),
        (["", " "], {}, None),
    ],
)
def test_many_lines_with_empty_translations_are_a_warning(
    make, tmp_path, monkeypatch, lines, options, got
):
    choose = Teachers.choose

    def choose_nothing_for_x(teachers, translated):
        return [] if "x" in translated[0].source else choose(teachers, translated)

    monkeypatch.setattr(Teachers, "choose", choose_nothing_for_x)
    warnings = []
    make(lines, on_warning=warnings.append, **options)
    expected = (
        f"{tmp_path / 'text'}: has lines whose translations are all empty ({got}); "
        "train the teachers longer, or name others"
    )
    assert list(map(str, warnings)) == ([] if got is None else [expected])


def test_an_ensemble_is_one_teacher(make, teachers):
    one, other = teachers
    result = make(names=[one], ensemble=[other], count=2)
    translated = Translator.load(one, ensemble=[other], backend="native").nbest(HOSTILE, 2)
    name = f"{one} + {other}"
    expected = [
        (number, name, rank, best.text, round(best.log_prob / (len(best.tokens) + 1), 4))
        for number, translations in enumerate(translated, start=1)
        for rank, best in enumerate(translations, start=1)
        if best.text.strip()
    ]
    keys = ("line", "teacher", "rank", "target", "score")
    assert [tuple(row[key] for key in keys) for row in rows_of(result.record)] == expected
    assert result.num_pairs == {name: len(expected)}
    for alone in teachers:
        rows = rows_of(make(names=[alone], count=2, output="new/alone").record)
        assert [row["score"] for row in rows] != [row[-1] for row in expected]


def test_mbr_chooses_among_the_candidates_of_all_teachers(make, teachers):
    search = BeamConfig(beam_size=4, max_length=20)
    result = make(SHORT, mbr=MBR("chrf", 3), decoding=search, count=2)
    chrf = CHRF()
    by_teacher = [
        list(Translator.load(name, backend="native").nbest(SHORT, 3, decoding=search))
        for name in teachers
    ]
    rows = rows_of(result.record)
    for number in range(1, len(SHORT) + 1):
        found = [row for row in rows if row["line"] == number]
        pool = [
            (one.text, name)
            for name, translated in zip(teachers, by_teacher, strict=True)
            for one in translated[number - 1]
        ]
        if not SHORT[number - 1]:
            assert found == []
            continue
        means = {
            text: sum(chrf.sentence_score(text, [x]).score for x, _ in pool) / len(pool)
            for text, _ in pool
        }
        best = sorted(means.values(), reverse=True)[:2]
        assert [row["utility"] for row in found] == pytest.approx(best, abs=1e-3)
        for rank, row in enumerate(found, start=1):
            assert row["rank"] == rank
            assert means[row["target"]] == pytest.approx(row["utility"], abs=1e-3)
            assert row["teacher"] == next(name for text, name in pool if text == row["target"])


@pytest.mark.parametrize("options", [{}, {"count": 2, "drop_duplicates": True}, {"mbr": MBR()}])
def test_what_is_killed_again_and_again_ends_with_the_same_bytes(make, tmp_path, options):
    lines = SHORT * 2
    whole = make(lines, output="whole/pairs", **options)
    chooser, num_kills = random.Random(3), 0
    while killed(lambda: make(lines, **options), chooser.randrange(20, 60)):
        num_kills += 1
    assert num_kills > 0
    result = make(lines, **options)
    assert (result.num_pairs, result.omitted) == (whole.num_pairs, whole.omitted)
    names = ["pairs.jsonl", "pairs.source", "pairs.target"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names
    for name in names:
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_compressed_files_hold_the_same_and_kills_change_no_byte(make, tmp_path):
    plain, whole = make(SHORT), make(SHORT, output="whole/pairs.gz")
    num_kills = 0
    while killed(lambda: make(SHORT, output="gz/pairs.gz"), 40 + num_kills):
        num_kills += 1
    result = make(SHORT, output="gz/pairs.gz")
    assert num_kills > 0
    names = ["pairs.jsonl.gz", "pairs.source.gz", "pairs.target.gz"]
    assert sorted(path.name for path in (tmp_path / "gz").iterdir()) == names
    outputs = [(x.record, x.text.source, x.text.target) for x in (plain, whole, result)]
    for file, compressed, resumed in zip(*outputs, strict=True):
        assert list(read_lines(compressed)) == list(read_lines(file))
        assert resumed.read_bytes() == compressed.read_bytes()


def test_lines_that_are_done_are_not_translated_again(make, tmp_path, monkeypatch):
    assert killed(lambda: make(SHORT), 24)
    record = json.loads((tmp_path / "new" / "pairs.jsonl.partial.json").read_text())
    assert 0 < record["num_lines"] < len(SHORT)
    started: list[int] = []
    make(SHORT, on_start=started.append)
    assert started == [2 * (len(SHORT) - record["num_lines"])]


def test_equal_pairs_are_dropped_wherever_they_stand(make):
    every, distinct = make(SHORT * 2), make(SHORT * 2, drop_duplicates=True, output="new/other")
    pairs = [(row["source"], row["target"]) for row in rows_of(every.record)]
    assert len(set(pairs)) < len(pairs)
    assert [(row["source"], row["target"]) for row in rows_of(distinct.record)] == list(
        dict.fromkeys(pairs)
    )
    assert lines_of(distinct.text.source) == [source for source, _ in dict.fromkeys(pairs)]
    assert set(range(len(SHORT) + 1, 2 * len(SHORT) + 1)) <= set(distinct.omitted)


def test_progress_counts_each_line_for_each_teacher(make):
    started: list[int] = []
    done: list[int] = []
    make(SHORT, on_start=started.append, on_done=done.append)
    assert started == [2 * len(SHORT)]
    assert sum(done) == 2 * len(SHORT)


def test_a_gzip_text_is_read_and_an_empty_one_has_no_pairs(make, teachers, tmp_path):
    import gzip

    (tmp_path / "text.gz").write_bytes(gzip.compress(b"abc\nde\n"))
    found = synthesize(teachers[:1], tmp_path / "text.gz", tmp_path / "x", real="target")
    assert lines_of(found.text.target) == ["abc", "de"]
    empty = make([])
    assert (empty.num_lines, sum(empty.num_pairs.values()), empty.omitted) == (0, 0, ())
    assert empty.text.source.read_bytes() == empty.record.read_bytes() == b""


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")
def test_an_export_teaches_as_its_run_does(make, teachers, tmp_path):
    export_run(RunDirectory(Path(teachers[0])), tmp_path / "ct2", "ctranslate2", check_lines=3)
    names = [str(tmp_path / "ct2"), teachers[1]]
    rows = rows_of(make(SHORT, names, backend="auto").record)
    expected = rows_of(make(SHORT, output="new/runs").record)
    assert [row["target"] for row in rows] == [row["target"] for row in expected]
    assert {row["teacher"] for row in rows} == set(names)


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")
def test_what_an_export_cannot_do_is_refused_before_a_run_translates(make, teachers, tmp_path):
    export_run(RunDirectory(Path(teachers[0])), tmp_path / "ct2", "ctranslate2", check_lines=3)
    names = [teachers[1], str(tmp_path / "ct2")]
    done: list[int] = []
    for setting in ("decoding.kind=sample", "decoding.no_repeat_ngram_size=3"):
        with pytest.raises(TformerError, match="has no exact counterpart in CTranslate2"):
            make(
                SHORT,
                names,
                backend="auto",
                decoding=SearchOptions(settings=[setting]),
                on_done=done.append,
            )
    assert done == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"count": 2}, "count"),
        ({"real": "target"}, "real side"),
        ({"drop_duplicates": True}, "treatment of duplicates"),
        ({"lines": [*SHORT, "ab"]}, "text"),
        ({"mbr": MBR()}, "mbr"),
        ({"decoding": SearchOptions(beam_size=3)}, "search"),
    ],
)
def test_what_was_begun_from_something_else_is_refused_by_name(make, tmp_path, options, named):
    assert killed(lambda: make(SHORT), 24)
    with pytest.raises(TformerError) as raised:
        make(**{"lines": SHORT, **options})
    assert str(raised.value) == (
        f"{tmp_path / 'new' / 'pairs.jsonl.partial'}: was begun from something else "
        f"(different {named}); remove it, or name another file"
    )


def test_pairs_that_were_begun_when_there_were_no_tags_are_resumed(make, tmp_path):
    expected = make(SHORT, output="whole/pairs").record.read_bytes()
    assert killed(lambda: make(SHORT), 24)
    file = tmp_path / "new" / "pairs.jsonl.partial.json"
    record = json.loads(file.read_text())
    assert 0 < record["num_lines"] < len(SHORT)
    record["made_from"]["tags"] = ["made"]
    file.write_text(json.dumps(record))
    with pytest.raises(TformerError, match=r"different tags"):
        make(SHORT)
    del record["made_from"]["tags"]
    file.write_text(json.dumps(record))
    assert make(SHORT).record.read_bytes() == expected


def test_a_changed_teacher_is_refused(make, teachers, tmp_path):
    assert killed(lambda: make(SHORT), 24)
    with pytest.raises(TformerError, match=r"different model, teachers|different teachers, model"):
        make(SHORT, teachers[::-1])


def test_another_ensemble_is_refused(make, teachers):
    one, other = teachers
    assert killed(lambda: make(SHORT, [one], ensemble=[other]), 24)
    with pytest.raises(TformerError, match=r"different model, teachers|different teachers, model"):
        make(SHORT, [other], ensemble=[one])
    with pytest.raises(TformerError, match=r"different model, teachers|different teachers, model"):
        make(SHORT, [one])


def test_a_model_with_two_paths_is_one_teacher(make, teachers, tmp_path):
    one = Path(teachers[0])
    link = tmp_path / "link"
    link.symlink_to(one)
    for other in (link, one / ".." / one.name, os.path.relpath(one)):
        with pytest.raises(TformerError) as raised:
            make(SHORT, [one, other])
        assert (
            str(raised.value)
            == f"`teachers`: names a model twice ({one} and {other}); name each once"
        )


def test_what_no_pairs_can_be_made_of_is_refused(make, teachers, tmp_path):
    for names, message in [
        ([], "`teachers`: needs at least one model; name a run folder"),
        (
            [teachers[0], f"{teachers[0]}/"],
            f"`teachers`: names a model twice ({teachers[0]}); name each once",
        ),
        (teachers[0], "`teachers`: must be a list of texts (a text); put brackets around it"),
    ]:
        with pytest.raises(TformerError) as raised:
            make(SHORT, names)
        assert str(raised.value) == message
    with pytest.raises(TformerError, match=r"`real`: must be one of source, target \(both\)"):
        make(SHORT, real="both")
    with pytest.raises(TformerError, match="`count`: must be at most the beam size 2"):
        make(SHORT, count=3)
    with pytest.raises(TformerError, match="`mbr`: has no effect on greedy search"):
        make(SHORT, mbr=MBR(), decoding=SearchOptions(beam_size=1))
    for suffix in ("source", "target"):
        text = write(tmp_path / f"mono.{suffix}", SHORT)
        with pytest.raises(TformerError, match="`output`: would replace the text"):
            synthesize(teachers, text, tmp_path / "mono", real="target")
    text = write(tmp_path / "mono.jsonl.gz", SHORT)
    with pytest.raises(TformerError, match="`output`: would replace the text"):
        synthesize(teachers, text, tmp_path / "mono.gz", real="target")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TformerError, match="pipe: must be a regular file; write it to a file"):
        synthesize(teachers, tmp_path / "pipe", tmp_path / "x", real="target")


def test_teachers_of_other_languages_are_named(make, teachers, tmp_path):
    other = shutil.copytree(teachers[1], tmp_path / "backward")
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("source_language: source", "source_language: en"))
    warnings: list[Any] = []
    make(SHORT, [teachers[0], str(other)], on_warning=warnings.append)
    assert [str(one) for one in warnings] == [
        f"{other}: has other languages than {teachers[0]}, source -> target (en -> target); "
        "check that both read the same language"
    ]
