"""`tformer compare`, on runs and on files."""

import json
import shutil

import pytest
import sacrebleu
from pages import Reader

from tformer_cli import compare
from tformer_cli.evaluation.evaluate import Evaluator


@pytest.fixture(scope="module")
def other_run(toy_run, tmp_path_factory):
    """The same run at its other checkpoint, which translates otherwise."""
    run = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(toy_run, run, ignore=shutil.ignore_patterns("eval", "exports"))
    use_other_checkpoint(run)
    return run


def use_other_checkpoint(run):
    """Let a run translate by a checkpoint that was not the best."""
    names = {folder.name for folder in (run / "checkpoints").iterdir()}
    (run / "best").write_text(f"{min(names - {(run / 'best').read_text().strip()})}\n")


@pytest.fixture
def runs(toy_run, other_run, tmp_path):
    """Two runs that nothing has evaluated."""
    copies = []
    for name, run in (("one", toy_run), ("other", other_run)):
        shutil.copytree(run, tmp_path / name, ignore=shutil.ignore_patterns("eval", "exports"))
        copies.append(tmp_path / name)
    return copies


@pytest.fixture
def files(toy_run, tmp_path):
    """Two files of translations, and their references."""
    reference = toy_run.parent / "data" / "test.tgt"
    lines = reference.read_text().splitlines()
    names = tmp_path / "one.txt", tmp_path / "other.txt"
    for name, cut in zip(names, (1, 4), strict=True):
        name.write_text("".join(f"{line[:-cut]} x\n" for line in lines))
    return *names, reference


def change(run, old, new):
    file = run / "config.yaml"
    content = file.read_text()
    assert old in content
    file.write_text(content.replace(old, new))


def evaluated(monkeypatch):
    """Record the runs that are translated."""
    calls = []

    def load(run, **arguments):
        calls.append(run)
        return original(run, **arguments)

    original = Evaluator.load
    monkeypatch.setattr(Evaluator, "load", load)
    return calls


@pytest.mark.parametrize("position", range(3))
def test_files_that_are_cut_into_subwords_are_named(files, tformer, tmp_path, position):
    cut = tmp_path / "cut.txt"
    lines = files[position].read_text().splitlines()
    cut.write_text("".join(f"A@@ {line}\n" for line in lines))
    one, other, reference = [*files[:position], cut, *files[position + 1 :]]
    command = "compare", one, other, "--reference", reference
    assert tformer(*command).stderr == (
        f"{cut}: is cut into subwords, which BLEU counts as words (A@@); "
        "join them to words: BLEU is of raw text\n"
    )
    assert tformer(*command, "--tokenize", "none").stderr == ""
    assert tformer(*command, "--chrf").stderr == ""


def test_references_that_are_tokenized_are_named(files, tformer, tmp_path):
    *systems, reference = files
    tokenized = tmp_path / "tokenized.txt"
    tokenized.write_text("".join(f"{line} .\n" for line in reference.read_text().splitlines()))
    command = "compare", *systems, "--reference", tokenized
    assert tformer(*command).stderr == (
        "--tokenize: tokenizes tokenized text: most references end in a space and a period (13a); "
        "choose none, or detokenize the text\n"
    )
    assert tformer(*command, "--tokenize", "none").stderr == ""


@pytest.mark.parametrize("line", ["ab c .", "两只狗在玩耍。"])
def test_what_is_wrong_of_several_references_is_named_once(tformer, tmp_path, line):
    files = [tmp_path / name for name in ("one", "other", "reference", "second")]
    for file in files:
        file.write_text(f"{line}\n" * 3, encoding="utf-8")
    one, other, *references = files
    words = [word for file in references for word in ("--reference", file)]
    assert len(tformer("compare", one, other, *words).stderr.splitlines()) == 1


def test_references_without_spaces_between_words_are_named(tformer, tmp_path):
    files = [tmp_path / name for name in ("one", "other", "reference")]
    for file, line in zip(files, ("两只狗玩耍。", "两只狗在玩。", "两只狗在玩耍。"), strict=True):
        file.write_text(f"{line}\n" * 3, encoding="utf-8")
    one, other, reference = files
    command = "compare", one, other, "--reference", reference
    assert tformer(*command).stderr == (
        "--tokenize: splits words at spaces, but the references look like language zh (13a); "
        "choose zh\n"
    )
    chosen = tformer(*command, "--tokenize", "zh", "--json")
    assert chosen.stderr == ""
    expected = sacrebleu.corpus_bleu(
        ["两只狗玩耍。"] * 3, [["两只狗在玩耍。"] * 3], tokenize="zh"
    ).score
    assert json.loads(chosen.stdout)["scores"]["bleu"][0]["score"]["score"] == expected
    assert tformer(*command, "--chrf").stderr == ""


@pytest.mark.parametrize(("position", "name"), [(0, "SYSTEM"), (1, "SYSTEM"), (2, "--reference")])
def test_a_page_replaces_neither_a_system_nor_a_reference(files, tformer, position, name):
    page = files[position].with_name("page.html")
    shutil.copy(files[position], page)
    content = page.read_bytes()
    one, other, reference = [*files[:position], page, *files[position + 1 :]]
    result = tformer("compare", one, other, "--reference", reference, "--output", page)
    message = f"--output: is also {name} ({page}); name another file\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert page.read_bytes() == content


def test_translations_of_another_search_are_not_replaced(runs, tformer, monkeypatch):
    run, _ = runs
    tformer("eval", run, "--beam", 1)
    file = run / "eval" / "toy.hyp.txt"
    content = file.read_bytes()
    monkeypatch.chdir(file.parent)
    result = tformer("compare", run, "toy.hyp.txt")
    message = f"toy.hyp.txt: would be replaced by the translations of {run}"
    assert (result.exit_code, result.stderr) == (2, f"{message}; copy it, and name the copy\n")
    assert file.read_bytes() == content
    tformer("eval", run)
    assert tformer("compare", run, "toy.hyp.txt").exit_code == 0


def test_runs_have_the_scores_of_eval(runs, tformer):
    content = json.loads(tformer("compare", *runs, "--bleu", "--chrf", "--ter", "--json").stdout)
    assert (content["text"], content["num_sentences"]) == ("toy", 10)
    for position, run in enumerate(runs):
        expected = json.loads(tformer("eval", run, "--bleu", "--chrf", "--ter", "--json").stdout)[
            "toy"
        ]["scores"]
        scored = [systems[position] for systems in content["scores"].values()]
        assert [one["score"] for one in scored] == expected
        assert {one["system"] for one in scored} == {str(run)}
    assert [systems[0]["contrast"] for systems in content["scores"].values()] == [None] * 3
    assert content["scores"]["chrf"][1]["contrast"]["num_ties"] < 10


def test_translations_of_eval_are_used_and_others_are_made(runs, tformer, monkeypatch):
    one, other = runs
    tformer("eval", one)
    calls = evaluated(monkeypatch)
    result = tformer("compare", one, other)
    assert result.stderr.startswith(f"{other}: translating toy\n")
    assert calls == [other]
    again = tformer("compare", one, other)
    assert (again.stdout, again.stderr) == (result.stdout, "")
    assert calls == [other]


def by_another_search(run, tformer):
    tformer("eval", run, "--beam", 1)


def by_several_candidates(run, tformer):
    tformer("eval", run, "--mbr", "chrf")


def by_an_ensemble(run, tformer):
    copy = shutil.copytree(run, run.with_name("copy"))
    tformer("eval", run, "--ensemble", copy)


def by_another_precision(run, tformer):
    tformer("eval", run, "--precision", "bfloat16")


def by_another_checkpoint(run, tformer):
    use_other_checkpoint(run)


def by_another_search_of_the_run(run, tformer):
    change(run, "beam_size: 2", "beam_size: 3")


def edited(run, tformer):
    file = run / "eval" / "toy.hyp.txt"
    file.write_text(file.read_text().replace("\n", "!\n", 1))


def of_another_source(run, tformer):
    config = run / "config.yaml"
    source = run.parent / "test.src"
    source.write_text("a\n" * 10)
    (old,) = {line.split()[-1] for line in config.read_text().split("\n") if "test.src" in line}
    change(run, old, str(source))


def of_an_earlier_version(run, tformer):
    file = run / "eval" / "toy.json"
    content = json.loads(file.read_text())
    del content["fingerprint"]
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "made",
    [
        by_another_search,
        by_several_candidates,
        by_an_ensemble,
        by_another_precision,
        by_another_checkpoint,
        by_another_search_of_the_run,
        edited,
        of_another_source,
        of_an_earlier_version,
    ],
    ids=lambda made: made.__name__,
)
def test_translations_that_are_not_those_of_the_run_are_not_used(runs, tformer, monkeypatch, made):
    run = runs[0]
    file = run.parent / "x.txt"
    file.write_text("x\n" * 10)
    tformer("eval", run)
    made(run, tformer)
    calls = evaluated(monkeypatch)
    tformer("compare", run, file)
    assert calls == [run]
    expected = json.loads(tformer("eval", run, "--json").stdout)["toy"]["scores"]
    content = json.loads(tformer("compare", run, file, "--bleu", "--json").stdout)
    assert [content["scores"]["bleu"][0]["score"]] == expected


def test_a_run_is_compared_with_a_file(toy_run, tformer):
    tformer("eval", toy_run)
    file = toy_run / "eval" / "toy.hyp.txt"
    _, scored = compare([toy_run, str(file)], metrics=["bleu"], device="cpu").scores["bleu"]
    assert (scored.contrast.difference, scored.contrast.num_ties) == (0, 10)


def test_files_are_compared_in_a_table_and_a_sentence(files, tformer):
    one, other, reference = files
    result = tformer("compare", one, other, "--reference", reference, "--chrf")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    (first, second) = compare(
        [one, other], references=[reference], metrics=["chrf"], device="cpu"
    ).scores["chrf"]
    contrast = second.contrast
    assert lines[0] == f"{reference}: 10 sentences, 1 reference; 1,000 resamples, seed 12345"
    assert lines[1:3] == [f"A  {one}", f"B  {other}"]
    assert lines[4] == f"chrF2  ({first.score.signature})"
    assert lines[5].split("  ")[-3:] == ["wins", "ties", "losses"]
    cells = [
        ["A", f"{first.score.score:.2f}", "{:.2f}-{:.2f}".format(*first.interval)],
        ["B", f"{second.score.score:.2f}", "{:.2f}-{:.2f}".format(*second.interval)],
    ]
    cells[1] += [
        f"{contrast.difference:+.2f}",
        f"{contrast.p_bootstrap:.3f}",
        f"{contrast.p_randomization:.3f}",
        *map(str, (contrast.num_wins, contrast.num_ties, contrast.num_losses)),
    ]
    assert [line.split() for line in lines[6:8]] == cells
    amount = second.score.score - first.score.score
    assert contrast.p_value < 0.05
    assert lines[9:] == [f"B is worse than A by {-amount:.2f} chrF2 (p = {contrast.p_value:.3f})."]


def test_no_difference_is_said_of_each_system_and_metric(files, tformer, tmp_path):
    one, _, reference = files
    copies = [tmp_path / name for name in ("two.txt", "three.txt")]
    for copy in copies:
        shutil.copy(one, copy)
    lines = tformer("compare", one, *copies, "--reference", reference).stdout.splitlines()
    assert lines[-4:] == [
        f"{metric}: no significant difference between {letter} and A (p = 1.000)."
        for metric in ("BLEU", "chrF2")
        for letter in "BC"
    ]


def test_one_sentence_is_no_plural(tmp_path, tformer):
    for name in ("one", "other", "reference"):
        (tmp_path / name).write_text("A dog runs.\n")
    files = [tmp_path / name for name in ("one", "other", "--reference", "reference")]
    words = [file if file.exists() else file.name for file in files]
    result = tformer("compare", *words, "--resamples", 1)
    first, *_ = result.stdout.splitlines()
    assert first == f"{tmp_path}/reference: 1 sentence, 1 reference; 1 resample, seed 12345"


def test_the_table_has_80_columns_with_100000_sentences():
    from tformer_cli.cli.compare import _report
    from tformer_cli.evaluation.compare import Comparison, Contrast, SystemScore
    from tformer_cli.evaluation.metrics import Score

    score = Score("TER", 98.76, "signature", 99_999)
    contrast = Contrast(-10.12, 0.001, 0.001, 40_000, 19_999, 40_000, "better")
    systems = [
        SystemScore(name, score, (97.61, 99.83), None if name == "a" else contrast) for name in "ab"
    ]
    report = _report(Comparison("x", 99_999, 2, {"ter": tuple(systems)}, 1000, 1))
    assert "2 references" in report
    assert max(map(len, report.splitlines())) <= 80


def test_more_references_and_another_bleu_are_options(files, tformer, tmp_path):
    one, other, reference = files
    second = tmp_path / "second.txt"
    second.write_text(reference.read_text().lower())
    words = ("compare", one, other, "--reference", reference, "--reference", second, "--bleu")
    words = (*words, "--tokenize", "char", "--lowercase", "--resamples", 20, "--seed", 3, "--json")
    content = json.loads(tformer(*words).stdout)
    numbers = [content[key] for key in ("num_references", "resamples", "seed")]
    assert numbers == [2, 20, 3]
    signature = content["scores"]["bleu"][0]["score"]["signature"]
    assert signature.startswith("nrefs:2|case:lc|eff:no|tok:char|")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["{one}"],
            "SYSTEM: must be two different ones ({one}); "
            "name a baseline, and what to compare with it",
        ),
        (
            ["{one}", "{one}", "--reference", "{reference}"],
            "SYSTEM: must be two different ones ({one}, {one}); "
            "name a baseline, and what to compare with it",
        ),
        (
            ["{one}", "{other}"],
            "--reference: is required for files of translations; name a file of references",
        ),
        (
            ["{one}", "{other}", "--reference", "{reference}", "--test", "toy"],
            "--test: has no effect on files of translations (toy); leave it out",
        ),
        (
            ["{run}", "{other}", "--reference", "{reference}"],
            "--reference: has no effect on runs, whose test sets have references ({reference}); "
            "leave it out",
        ),
        (
            ["{run}", "{one}", "--test", "tset"],
            "--test: is no test set of all runs (tset); choose from: valid, toy",
        ),
        (
            ["{run}", "runs/nothing"],
            "runs/nothing: is neither a run folder nor a file; name what is there",
        ),
        (
            ["{one}", "{data}"],
            "{data}: is not a run folder: it has no config.yaml; name a run folder",
        ),
        (
            ["{one}", "{short}", "--reference", "{reference}"],
            "{short}: must have as many lines as {reference} (2 and 10); "
            "line n of each must belong to the same source line",
        ),
        (
            ["{run}", "{short}"],
            "{short}: must have as many lines as {reference} (2 and 10); "
            "line n of each must belong to the same source line",
        ),
        (
            ["{one}", "{other}", "--reference", "{reference}", "--reference", "{short}"],
            "{short}: must have as many lines as {reference} (2 and 10); "
            "line n of each must belong to the same source line",
        ),
        (
            ["{empty}", "{other}", "--reference", "{empty}"],
            "{empty}: no lines; name a file with text",
        ),
        (
            ["{one}", "{other}", "--reference", "{reference}", "--output", "page.pdf"],
            "--output: must end in .html (page.pdf)",
        ),
        (
            ["{one}", "{other}", "{short}", "--reference", "{reference}", "--output", "page.html"],
            "--output: shows two systems (3); leave the others out",
        ),
        (
            ["{one}", "{other}", "--reference", "{reference}", "--chrf", "--tokenize", "zh"],
            "--tokenize: has no effect without BLEU (chrf); leave it out",
        ),
        (
            ["{run}", "{one}", "--chrf", "--ter", "--lowercase"],
            "--lowercase: has no effect without BLEU (chrf, ter); leave it out",
        ),
        (
            ["{one}", "{other}", "--reference", "{reference}", "--resamples", "0"],
            "--resamples: must be at least 1 (0)",
        ),
    ],
)
def test_mistakes_are_one_clear_line(files, toy_run, tformer, tmp_path, words, message):
    one, other, reference = files
    names = {"one": one, "other": other, "reference": reference, "run": toy_run}
    for name, text in (("short", "a\nb\n"), ("empty", "")):
        names[name] = tmp_path / name
        names[name].write_text(text)
    names["data"] = toy_run.parent / "data"
    result = tformer("compare", *(word.format(**names) for word in words))
    assert (result.exit_code, result.stderr) == (2, f"{message.format(**names)}\n")


def test_a_page_of_runs_has_what_the_table_says_and_the_sentences(runs, tformer, tmp_path):
    one, other = runs
    file = tmp_path / "page.html"
    result = tformer("compare", one, other, "--output", file)
    assert result.stdout.endswith(f"{file}: written\n")
    content = Reader(file.read_text(encoding="utf-8")).content()
    bleu, chrf = content["tables"]
    rows = [line.split() for line in result.stdout.splitlines()]
    for table in (bleu, chrf):
        assert [[cell for cell in row if cell] for row in table["rows"]] == [
            row for row in rows if row[:2] in [cells[:2] for cells in table["rows"]]
        ]
    verdicts = result.stdout.splitlines()[-3:-1]
    for table, sentence in zip((bleu, chrf), verdicts, strict=True):
        assert table["note"].startswith(sentence)
    texts = [(run / "eval" / "toy.hyp.txt").read_text().splitlines() for run in runs]
    shown = [
        ["".join(segments) for segments in sentence["hypotheses"]]
        for sentence in content["sentences"]
    ]
    assert shown == [list(pair) for pair in zip(*texts, strict=True)]
    wins, _, losses = map(int, chrf["rows"][1][-3:])
    better, worse, equal = content["lists"]
    num_changed = sum(pair[0] != pair[1] for pair in shown)
    assert (better["total"], worse["total"]) == (wins, losses)
    assert equal["total"] == num_changed - wins - losses
    for each in (better, worse):
        gains = [
            abs(content["sentences"][line]["scores"][1] - content["sentences"][line]["scores"][0])
            for line, _ in each["lines"]
        ]
        assert gains == sorted(gains, reverse=True)
    assert [each["title"] for each in content["breakdowns"]] == [
        "Length of the source",
        "Rarest word",
    ]
    for breakdown in content["breakdowns"]:
        assert sum(bucket["num_sentences"] for bucket in breakdown["buckets"]) == 10


def test_a_page_of_files_has_no_source(files, tformer, tmp_path):
    one, other, reference = files
    file = tmp_path / "page.html"
    words = ("compare", one, other, "--reference", reference, "--reference", one, "--ter")
    assert tformer(*words, "--output", file).exit_code == 0
    content = Reader(file.read_text(encoding="utf-8")).content()
    assert {sentence["source"] for sentence in content["sentences"]} == {None}
    assert {len(sentence["references"]) for sentence in content["sentences"]} == {2}
    (breakdown,) = content["breakdowns"]
    assert breakdown["title"] == "Length of the reference"
    assert list(breakdown["buckets"][0]["scores"]) == ["TER"]


def test_runs_of_different_references_are_refused(runs, tformer):
    one, other = runs
    data = other.parent / "data"
    data.mkdir()
    config = (other / "config.yaml").read_text()
    (target,) = {line.split()[-1] for line in config.split("\n") if "test.tgt" in line}
    (data / "test.tgt").write_text("X\n" * 10)
    change(other, target, str(data / "test.tgt"))
    result = tformer("compare", one, other)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{other}: has other references of toy than {one} ({data / 'test.tgt'}); "
        "translate one text with each, and compare the files with --reference\n",
    )


def test_runs_with_different_metrics_are_refused_unless_an_option_unites_them(runs, tformer):
    one, other = runs
    change(other, "lowercase: false\n  chrf", "lowercase: true\n  chrf")
    result = tformer("compare", one, other, "--test", "valid")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{other}: has another bleu than {one} (-tok 13a -lc and -tok 13a); "
        "pass --tokenize or --lowercase for all, or leave the metric out\n",
    )
    content = json.loads(tformer("compare", one, other, "--lowercase", "--json").stdout)
    assert "|case:lc|" in content["scores"]["bleu"][0]["score"]["signature"]
    assert tformer("compare", one, other, "--chrf").exit_code == 0


def test_a_page_needs_no_common_chrf_unless_it_is_asked_for(runs, tformer, tmp_path):
    one, other = runs
    change(other, "word_order: 0", "word_order: 2")
    result = tformer("compare", one, other)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{other}: has another chrf than {one} (--chrf-word-order 2 and --chrf-word-order 0); "
        "leave the metric out\n",
    )
    file = tmp_path / "page.html"
    result = tformer("compare", one, other, "--bleu", "--output", file)
    assert result.exit_code == 0, result.stderr
    content = Reader(file.read_text(encoding="utf-8")).content()
    for sentence in content["sentences"]:
        (reference,) = sentence["references"]
        assert sentence["scores"] == [
            round(sacrebleu.sentence_chrf("".join(segments), [reference]).score, 1)
            for segments in sentence["hypotheses"]
        ]


def test_the_text_is_the_only_test_set_or_valid_or_has_to_be_named(runs, toy_run, tformer):
    one, other = runs
    data = toy_run.parent / "data"
    toy = f"test:\n    toy:\n      source: {data / 'test.src'}\n      target: {data / 'test.tgt'}\n"
    change(one, toy, toy + toy.removeprefix("test:\n").replace("toy:", "again:"))
    assert tformer("compare", *runs).stdout.startswith("toy: 10 sentences")
    change(other, toy, toy + toy.removeprefix("test:\n").replace("toy:", "again:"))
    result = tformer("compare", *runs)
    assert (result.exit_code, result.stderr) == (
        2,
        "--test: is required, since the runs have several; choose from: valid, toy, again\n",
    )
    assert tformer("compare", *runs, "--test", "again").stdout.startswith("again: 10 sentences")
    change(other, "toy:", "third:")
    change(other, "again:", "fourth:")
    assert tformer("compare", *runs).stdout.startswith("valid: 12 sentences")


@pytest.mark.parametrize("options", [(), ("--test", "valid")])
def test_runs_without_a_text_of_the_same_name_are_refused(runs, tformer, options):
    one, other = runs
    change(other, "    toy:", "    third:")
    # A list, whose texts are named by their direction.
    change(other, "  valid:\n    source:", "  valid:\n  - source:")
    result = tformer("compare", *runs, *options)
    assert (result.exit_code, result.stderr) == (
        2,
        f"SYSTEM: must have a text of the same name as {one} (valid, toy); "
        "translate one text with each, and compare the files\n",
    )


def test_a_run_that_does_not_translate_is_refused(masked_run, toy_run, tformer):
    result = tformer("compare", toy_run, masked_run)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{masked_run}: does not translate (model.kind masked_encoder)")


def test_torchrun_is_refused(toy_run, other_run, tformer, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = tformer("compare", toy_run, other_run)
    assert (result.exit_code, result.stderr) == (
        2,
        "tformer compare: is for one process (2 processes); drop torchrun\n",
    )
