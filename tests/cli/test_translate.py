import itertools
import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from forked import PIPES, forked_tformer
from sacrebleu.metrics.chrf import CHRF
from storage.saving import remove_settings

from tformer_cli import Translator
from tformer_cli.cli.line_formats import json_line, numbered_lines
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.storage.integrity import write_checksums
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.translate import translator as translator_module
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.translator import TranslatedLine

LINES = ["ab cd", "", "feg", "   ", "a", "bcd ef ag", "ab cd"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "input.txt"
    file.write_text("".join(f"{line}\n" for line in LINES))
    return file


def test_python_and_command_line_translate_alike(toy_run, tformer, source):
    expected = Translator.load(toy_run).translate(LINES)
    output = tformer("translate", toy_run, "--input", source).stdout
    assert output == "".join(f"{line}\n" for line in expected)
    assert len(set(expected)) > 3, "a model that says the same to all shows little"


def test_stdin_and_file_translate_alike(toy_run, tformer, source):
    from_file = tformer("translate", toy_run, "--input", source).stdout
    from_stdin = tformer("translate", toy_run, stdin=source.read_bytes()).stdout
    assert from_stdin == from_file
    assert from_file.count("\n") == len(LINES)


def test_an_empty_line_gives_an_empty_line_in_its_place(toy_run, tformer):
    output = tformer("translate", toy_run, stdin="\nab\n\n").stdout.split("\n")
    assert len(output) == 4
    assert output[0] == output[2] == output[3] == ""
    assert output[1] != ""


def test_no_line_gives_no_line(toy_run, tformer):
    result = tformer("translate", toy_run, stdin="")
    assert (result.exit_code, result.stdout) == (0, "")


def test_output_file_equals_stdout(toy_run, tformer, source, tmp_path):
    target = tmp_path / "new folder" / "output.txt"
    assert tformer("translate", toy_run, "-i", source, "-o", target).stdout == ""
    assert target.read_text() == tformer("translate", toy_run, "-i", source).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "input.txt"), "--output: is also --input (input.txt)"),
        (("-o", "input.txt", "--resume"), "--output: is also --input (input.txt)"),
        (("--alignments", "./input.txt"), "--alignments: is also --input (input.txt)"),
        (("-o", "x", "--alignments", "x"), "--alignments: is also --output (x)"),
        (("-o", "terms", "--terminology", "terms"), "--output: is also --terminology (terms)"),
        (("-o", "begin", "--prefixes", "begin"), "--output: is also --prefixes (begin)"),
        (("-o", "has", "--constraints", "has"), "--output: is also --constraints (has)"),
    ],
)
def test_no_output_takes_the_place_of_an_input_or_of_another_output(
    toy_run, tformer, source, monkeypatch, options, message
):
    monkeypatch.chdir(source.parent)
    result = tformer("translate", toy_run, "-i", "input.txt", *options)
    assert (result.exit_code, result.stderr) == (2, f"{message}; name another file\n")
    assert source.read_text().splitlines() == LINES
    assert list(source.parent.iterdir()) == [source]


def test_no_output_takes_the_place_of_the_file_behind_stdin(toy_run, source):
    with source.open() as lines:
        process = forked_tformer("translate", toy_run, "-o", source, stdin=lines, **PIPES)
    message = f"--output: is also --input ({source}); name another file\n"
    assert process.communicate() == ("", message)
    assert process.returncode == 2
    assert source.read_text().splitlines() == LINES


@pytest.mark.parametrize("option", ["--output", "--alignments"])
def test_an_output_that_is_named_gzip_is_refused(toy_run, tformer, source, tmp_path, option):
    file = tmp_path / "out.de.gz"
    result = tformer("translate", toy_run, "-i", source, option, file)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{option}: is written as plain text ({file}); drop .gz from its name\n",
    )
    assert not file.exists()


def test_a_bad_line_is_named_and_nothing_is_translated(toy_run, tformer, tmp_path):
    file, target = tmp_path / "bad.txt", tmp_path / "output.txt"
    file.write_bytes(b"ab\ncd\n\xff\xfe\n")
    result = tformer("translate", toy_run, "-i", file, "-o", target)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:3: not UTF-8")
    assert not list(tmp_path.glob("*output.txt*"))


def test_beam_of_one_is_greedy(toy_run, tformer, source):
    expected = Translator.load(toy_run).translate(LINES, decoding=GreedyConfig(max_length=20))
    output = tformer("translate", toy_run, "-i", source, "--beam", 1).stdout
    assert output.split("\n")[:-1] == expected


def test_nbest_lists_each_line_under_its_number(toy_run, tformer):
    output = tformer("translate", toy_run, "--nbest", 2, stdin="ab\n\nfeg\n").stdout
    rows = [row.split(" ||| ") for row in output.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2", "3", "3"]
    assert float(rows[0][2]) > float(rows[1][2])
    assert rows[0][1] == tformer("translate", toy_run, stdin="ab\n").stdout.rstrip("\n")


def test_json_holds_text_tokens_and_scores(toy_run, tformer):
    output = tformer("translate", toy_run, "--json", "--length-penalty", 0.5, stdin="ab c\n").stdout
    (line,) = map(json.loads, output.splitlines())
    assert (line["line"], line["source"]) == (1, "ab c")
    (best,) = line["translations"]
    assert "".join(best["tokens"]) == best["text"]
    length = len(best["tokens"]) + 1
    assert best["score"] == pytest.approx(best["log_prob"] / length**0.5, abs=1e-4)


def test_numbers_that_differ_by_rounding_are_written_alike():
    found = Translation("A B", ("A", " ", "B"), -0.906526, -3.626104, finished=True)
    other = replace(found, score=-0.906525, log_prob=-3.626101)
    for translation in (found, other):
        line = json.loads(json_line(TranslatedLine(1, "b a", [translation])))
        (best,) = line["translations"]
        assert (best["score"], best["log_prob"]) == (-0.9065, -3.6261)
        assert numbered_lines(TranslatedLine(1, "b a", [translation])) == "1 ||| A B ||| -0.9065\n"


def test_without_a_run_the_newest_is_taken(toy_run, tformer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(toy_run, "runs/old")
    shutil.copytree(toy_run, "runs/new")
    os.utime("runs/old/last", (1, 1))
    shutil.rmtree("runs/old/checkpoints")
    result = tformer("translate", stdin="ab\n")
    assert result.stdout
    step = int((toy_run / "best").read_text().removeprefix("step-"))
    assert result.stderr == f"using runs/new (step {step}, best)\n"


def test_without_any_run_there_is_a_remedy(tformer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = tformer("translate", stdin="ab\n")
    assert result.exit_code == 2
    assert result.stderr == (
        "runs/: no run with a checkpoint in it; "
        "train one with `tformer train CONFIG`, or name a run folder\n"
    )


def test_a_damaged_checkpoint_is_refused_and_another_is_named(toy_run, tformer, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    best = run / "checkpoints" / (run / "best").read_text().strip()
    weights = best / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    others = sorted({x.name for x in (run / "checkpoints").iterdir()} - {best.name})
    result = tformer("translate", run, "--backend", "native", stdin="ab\n")
    assert (result.exit_code, result.stdout) == (2, "")
    problem = f"{best}: is damaged: model.safetensors does not match its checksum"
    assert result.stderr == f"{problem}; use --checkpoint {others[-1]}\n"
    assert tformer("translate", run, "--checkpoint", others[-1], stdin="ab\n").exit_code == 0
    for name in others:
        (run / "checkpoints" / name / "state.json").unlink()
    result = tformer("translate", run, "--backend", "native", stdin="ab\n")
    assert result.stderr == f"{problem}; no other checkpoint is intact: train again with --fresh\n"


def test_a_folder_for_a_file_is_refused(toy_run, tformer, tmp_path, source):
    result = tformer("translate", toy_run, "-i", tmp_path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path}: is a folder; name a file in it\n",
    )
    result = tformer("translate", toy_run, "-i", source, "-o", tmp_path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path}: cannot be written (Is a directory); name a file\n",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_stdout_is_one_line(toy_run, source):
    with open("/dev/full", "w") as full:
        words = ("translate", toy_run, "-i", source)
        process = forked_tformer(*words, stdout=full, stderr=subprocess.PIPE)
    assert process.communicate()[1] == (
        "<stdout>: cannot be written (No space left on device); what came out is not whole\n"
    )
    assert process.returncode == 2


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("runs/nothing", "name the folder of a run, such as runs/demo"),
        (
            "The dog sleeps.",
            "to translate a sentence: tformer translate 'The dog sleeps.'",
        ),
    ],
)
def test_what_is_no_run_gets_a_hint(tformer, name, remedy):
    result = tformer("eval", name)
    assert result.exit_code == 2
    assert result.stderr == f"{name}: no such run folder; {remedy}\n"


@pytest.mark.parametrize("name", ["step-000001", "1", "0" * 200 + "1"])
def test_a_checkpoint_that_is_not_there_is_named(toy_run, tformer, name):
    result = tformer("translate", toy_run, "--checkpoint", name)
    assert result.stderr == (
        f"{toy_run}: has no such checkpoint ({name}); there are "
        + ", ".join(sorted(path.name for path in (toy_run / "checkpoints").iterdir()))
        + "\n"
    )


def test_a_checkpoint_of_more_digits_than_python_reads_is_no_traceback(toy_run, tformer):
    result = tformer("translate", toy_run, "--checkpoint", "1" * 5000)
    assert result.exit_code == 2
    assert result.stderr.endswith("1: cannot be read or written (File name too long)\n")


def test_more_translations_than_the_beam_holds_are_refused(toy_run, tformer):
    result = tformer("translate", toy_run, "--nbest", 3, stdin="ab\n")
    assert result.exit_code == 2
    assert result.stderr == "--nbest: must be at most the beam size 2 (3); use --beam 3\n"


def test_a_length_penalty_for_greedy_search_is_refused(toy_run, tformer):
    result = tformer("translate", toy_run, "--beam", 1, "--length-penalty", 2, stdin="ab\n")
    assert result.stderr == ("--length-penalty: has no effect on greedy search (2); add --beam 5\n")


def test_a_setting_changes_the_search_of_the_run(toy_run, tformer, source):
    changed = tformer(
        "translate", toy_run, "-i", source, "--set", "decoding={kind: greedy, max_length: 2}"
    )
    config = GreedyConfig(max_length=2)
    expected = Translator.load(toy_run).translate(LINES, decoding=config)
    assert changed.stdout == "".join(f"{line}\n" for line in expected)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.max_steps=3", "--set training.max_steps: only keys of decoding can be changed"),
        ("decoding.top_k=3", "--set decoding.top_k: belongs to kind: sample"),
    ],
)
def test_a_setting_that_is_none_of_the_search_is_refused(toy_run, tformer, setting, message):
    result = tformer("translate", toy_run, "--set", setting, stdin="ab\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(message)


def test_samples_are_as_many_as_asked_for_and_the_same_again(toy_run, tformer, source):
    words = ("translate", toy_run, "-i", source, "--nbest", 4, "--set", "decoding={kind: sample}")

    def drawn(*words: object) -> list[list[str]]:
        # The last digits of a score depend on who shares its batch.
        return [line.split(" ||| ")[:2] for line in tformer(*words).stdout.splitlines()]

    first = drawn(*words)
    assert first == drawn(*words, "--workers", 1)
    assert first != drawn(*words[:-1], "decoding={kind: sample, seed: 7}")
    numbers = [int(number) for number, _ in first]
    assert numbers == [number for number in range(1, len(LINES) + 1) for _ in range(4)]


def test_each_translation_begins_with_its_prefix(toy_run, tformer, source, tmp_path):
    plain = tformer("translate", toy_run, "-i", source).stdout.splitlines()
    prefixes = ["gf", "ab", "", "c", "e", "gf", ""]
    file = tmp_path / "prefixes.txt"
    file.write_text("".join(f"{prefix}\n" for prefix in prefixes))
    begun = tformer("translate", toy_run, "-i", source, "--prefixes", file).stdout.splitlines()
    for line, prefix, expected, translation in zip(LINES, prefixes, plain, begun, strict=True):
        if line.strip() and prefix:
            assert translation.startswith(prefix)
        else:
            assert translation == expected


def test_prefixes_without_a_file_of_lines_are_refused(toy_run, tformer, source):
    result = tformer("translate", toy_run, "--prefixes", source, stdin="ab\n")
    assert result.stderr == "--prefixes: needs --input, line by line; name that file\n"


def test_fewer_prefixes_than_lines_are_refused(toy_run, tformer, source, tmp_path):
    file = tmp_path / "prefixes.txt"
    file.write_text("ab\n")
    result = tformer("translate", toy_run, "-i", source, "--prefixes", file)
    assert result.exit_code == 2
    assert str(file) in result.stderr
    assert str(len(LINES)) in result.stderr


def test_a_banned_word_is_in_no_translation(toy_run, tformer, source):
    plain = tformer("translate", toy_run, "-i", source).stdout
    word = plain.split()[0]
    others = tformer("translate", toy_run, "-i", source, "--ban", word).stdout
    assert word in plain.split()
    assert word not in others.split()
    assert others.count("\n") == len(LINES)


def test_a_line_is_answered_while_the_pipe_stays_open(toy_run):
    with forked_tformer("translate", toy_run, stdin=subprocess.PIPE, **PIPES) as process:
        answers = []
        for line in ("ab cd", "feg"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answers.append(process.stdout.readline().rstrip("\n"))
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    assert answers == Translator.load(toy_run).translate(["ab cd", "feg"])


def test_a_reader_that_leaves_early_ends_the_command_quietly(toy_run, tmp_path):
    many = tmp_path / "many.txt"
    many.write_text("ab\n" * 30_000)
    with forked_tformer("translate", toy_run, "-i", many, **PIPES) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) in (0, -signal.SIGPIPE)


def test_a_reader_that_leaves_while_the_writer_waits_ends_the_command_quietly(toy_run):
    with forked_tformer("translate", toy_run, stdin=subprocess.PIPE, **PIPES) as process:
        process.stdin.write("ab\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        process.stdin.write("cd\n")
        process.stdin.flush()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def test_a_writer_that_leaves_within_a_line_gets_all_it_wrote_translated(toy_run, tformer):
    result = tformer("translate", toy_run, stdin="ab cd\nfeg")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split("\n")[:-1] == Translator.load(toy_run).translate(["ab cd", "feg"])


def test_a_long_line_is_named_and_its_neighbours_are_translated_as_if_alone(
    toy_run, tformer, tmp_path, monkeypatch
):
    monkeypatch.setattr(translator_module, "WINDOW_LINES", 2)
    file = tmp_path / "long.txt"
    file.write_text("ab cd\nfeg\n\n" + "abc def gab. " * 3 + "\na\n")
    result = tformer("translate", toy_run, "-i", file, "--max-source-length", 20)
    assert (result.exit_code, result.stderr) == (
        0,
        f"{file}:4: is longer than 20 tokens (39); translated in 3 pieces\n",
    )
    first, second, empty, _, last, nothing = result.stdout.split("\n")
    assert (empty, nothing) == ("", "")
    alone = tformer("translate", toy_run, stdin="ab cd\nfeg\na\n").stdout
    assert [first, second, last] == alone.split("\n")[:-1]


def test_pieces_are_translated_as_lines_and_joined(toy_run, tformer):
    result = tformer("translate", toy_run, "--max-source-length", 8, stdin="ab cd, feg. abcdefgabc")
    assert result.stderr == "line 1: is longer than 8 tokens (22); translated in 4 pieces\n"
    pieces = tformer("translate", toy_run, stdin="ab cd,\nfeg.\nabcdefga\nbc").stdout
    assert result.stdout == pieces.rstrip("\n").replace("\n", " ") + "\n"


def test_a_line_of_several_sentences_is_translated_as_its_sentences(toy_run, tformer, tmp_path):
    file = tmp_path / "text"
    file.write_text("ab\nab cd. fed. bca\nba. dc.\n")
    result = tformer("translate", toy_run, "--input", file)
    assert result.stderr == (
        f"{file}:2: has more sentences than a training line (3); "
        "such lines are translated sentence by sentence\n"
    )
    first, *rest = tformer(
        "translate", toy_run, stdin="ab\nab cd.\nfed.\nbca\nba.\ndc.\n"
    ).stdout.split("\n")
    assert result.stdout.split("\n") == [first, " ".join(rest[:3]), " ".join(rest[3:5]), ""]
    for whole in (("--max-source-sentences", 3), ("--long-lines", "error")):
        result = tformer("translate", toy_run, *whole, stdin="ab cd. fed. bca\n")
        (found,) = result.stdout.splitlines()
        assert (result.stderr, found != " ".join(rest[:3])) == ("", True)
    words = ("--max-source-sentences", 3, "--long-lines", "truncate")
    result = tformer("translate", toy_run, *words, stdin="ab cd. fed. bca\n")
    assert (result.exit_code, result.stderr) == (
        2,
        "--max-source-sentences: has no effect on --long-lines truncate (3); "
        "leave one of them out\n",
    )


def test_a_run_that_counted_no_sentences_translates_lines_as_they_are(toy_run, tformer, tmp_path):
    older = RunDirectory(shutil.copytree(toy_run, tmp_path / "run"))
    for checkpoint in older.step_checkpoints():
        state = json.loads((checkpoint / "state.json").read_text())
        assert state.pop("max_source_sentences") == 1
        (checkpoint / "state.json").write_text(json.dumps(state))
        (checkpoint / "SHA256SUMS").unlink()
        write_checksums(checkpoint)
    whole = ("translate", toy_run, "--max-source-sentences", 3)
    words = ("translate", older.path, "--backend", "native")
    result = tformer(*words, stdin="ab cd. fed. bca\n")
    assert (result.stderr, result.stdout) == ("", tformer(*whole, stdin="ab cd. fed. bca\n").stdout)


@pytest.mark.parametrize(
    ("long_lines", "exit_code", "message"),
    [
        ("truncate", 0, "only the first 4 are translated"),
        ("error", 2, "split it, or use --long-lines split"),
    ],
)
def test_a_long_line_is_cut_or_refused_by_choice(toy_run, tformer, long_lines, exit_code, message):
    options = ("--long-lines", long_lines, "--max-source-length", 4)
    result = tformer("translate", toy_run, *options, stdin="ab\nabcdefg\n")
    assert (result.exit_code, result.stderr) == (
        exit_code,
        f"line 2: is longer than 4 tokens (7); {message}\n",
    )
    kept = tformer("translate", toy_run, stdin="ab\nabcd\n").stdout if exit_code == 0 else ""
    assert result.stdout == kept


def test_the_longest_pair_of_training_is_the_limit(toy_run, tformer):
    result = tformer("translate", toy_run, "--beam", 1, stdin=f"{'a' * 256}\n{'a' * 257}\n")
    assert result.stderr == "line 2: is longer than 256 tokens (257); translated in 2 pieces\n"


def test_alignments_are_a_line_of_word_pairs_for_each_line(toy_run, tformer, source, tmp_path):
    words = ("translate", toy_run, "-i", source, "--alignments")
    output = tformer(*words, tmp_path / "pairs.txt", "--json").stdout
    results = [json.loads(line) for line in output.splitlines()]
    rows = (tmp_path / "pairs.txt").read_text().split("\n")
    assert rows.pop() == ""
    assert [result["line"] for result in results] == [*range(1, len(LINES) + 1)]
    for line, result, row in zip(LINES, results, rows, strict=True):
        (best,) = result["translations"]
        assert row == " ".join(f"{one}-{other}" for one, other in best["alignments"])
        assert result["source_tokens"] == list(line if line.strip() else "")
        # Every word comes from somewhere, and no number is beyond the words.
        assert {other for _, other in best["alignments"]} == {*range(len(best["text"].split()))}
        assert {one for one, _ in best["alignments"]} <= {*range(len(line.split()))}
    assert rows[1] == rows[3] == ""
    tformer(*words, tmp_path / "again.txt", "--workers", 1)
    assert (tmp_path / "again.txt").read_text() == (tmp_path / "pairs.txt").read_text()


def test_alignments_of_a_command_that_fails_leave_no_file(toy_run, tformer, tmp_path):
    file, pairs = tmp_path / "long.txt", tmp_path / "pairs.txt"
    file.write_text("ab\nabcdefg\n")
    options = ("--long-lines", "error", "--max-source-length", 4)
    result = tformer("translate", toy_run, "-i", file, "--alignments", pairs, *options)
    assert result.exit_code == 2
    assert not list(tmp_path.glob("*pairs*"))


def test_alignments_cannot_be_resumed(toy_run, tformer, source, tmp_path):
    files = ("-i", source, "-o", tmp_path / "out.txt", "--alignments", tmp_path / "pairs.txt")
    result = tformer("translate", toy_run, *files, "--resume")
    assert (result.exit_code, result.stderr) == (
        2,
        "--alignments: contradicts --resume; use --json, which holds them too\n",
    )


SAMPLING = ("--set", "decoding={kind: sample, max_length: 20, temperature: 2.0}")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_candidate_that_is_most_like_all_is_chosen(toy_run, tformer, source, workers):
    words = ("translate", toy_run, "-i", source, *SAMPLING)
    rows = [row.split(" ||| ") for row in tformer(*words, "--nbest", 6).stdout.split("\n") if row]
    chosen = tformer(*words, "--mbr", "chrf", "--candidates", 6, "--workers", workers).stdout
    for number, text in enumerate(chosen.split("\n")[:-1], start=1):
        texts = [row[1] for row in rows if row[0] == str(number)]
        means = {
            one: sum(CHRF().sentence_score(one, [other]).score for other in texts) for one in texts
        }
        assert means[text] == pytest.approx(max(means.values()))


def test_nbest_by_utility_has_each_text_once(toy_run, tformer, source):
    words = ("translate", toy_run, "-i", source, *SAMPLING, "--mbr", "bleu", "--nbest", 5)
    output = tformer(*words, "--candidates", 12).stdout
    rows = [row.split(" ||| ") for row in output.splitlines()]
    assert len({(number, text) for number, text, _ in rows}) == len(rows)
    assert {number for number, *_ in rows} == {str(n) for n in range(1, len(LINES) + 1)}
    for (number, _, score), (other, _, next_score) in itertools.pairwise(rows):
        assert 0 <= float(score) <= 100
        assert number != other or float(score) >= float(next_score)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--candidates", 4), "--candidates: has no effect without --mbr (4); add --mbr chrf"),
        (
            ("--beam", 5, "--set", "decoding.num_beam_groups=2"),
            "--set decoding.num_beam_groups: must divide beam_size 5 (2)",
        ),
        (
            ("--beam", 5, "--set", "decoding={beam_size: 4, num_beam_groups: 2}"),
            "--beam: contradicts --set, by which beam_size is 4 (5); leave one of them out",
        ),
    ],
)
def test_choices_without_effect_are_refused(toy_run, tformer, options, message):
    result = tformer("translate", toy_run, *options, stdin="ab\n")
    assert (result.exit_code, result.stderr) == (2, f"{message}\n")


def test_groups_of_a_beam_are_chosen_together_with_its_size(toy_run, tformer, source):
    words = ("translate", toy_run, "-i", source, "--beam", 6, "--nbest", 6)
    options = ("--set", "decoding.num_beam_groups=3", "--set", "decoding.diversity_penalty=9")

    def beginnings(*words):
        rows = [row.split(" ||| ") for row in tformer(*words).stdout.splitlines()]
        return {(number, text[:1]) for number, text, _ in rows}

    assert len(beginnings(*words, *options)) > len(beginnings(*words))


@pytest.fixture
def other_run(toy_run, tmp_path) -> Path:
    """The same training at an earlier checkpoint."""
    run = tmp_path / "other"
    shutil.copytree(toy_run, run)
    names = {folder.name for folder in (run / "checkpoints").iterdir()}
    (run / "best").write_text(min(names - {(run / "best").read_text().strip()}) + "\n")
    return run


def test_a_run_with_its_copy_translates_as_it_does_alone(toy_run, tformer, source, tmp_path):
    copy = shutil.copytree(toy_run, tmp_path / "copy")
    alone = tformer("translate", toy_run, "-i", source).stdout
    assert tformer("translate", toy_run, "-i", source, "--ensemble", copy).stdout == alone


def test_a_run_that_is_named_twice_is_refused(toy_run, tformer, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(toy_run)
    for command in ("translate", "eval"):
        result = tformer(command, toy_run, "--ensemble", link, stdin="ab\n")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"--ensemble: names a run twice ({toy_run} and {link}); name each once\n"
        )


def test_python_and_command_line_ensembles_translate_alike(toy_run, other_run, tformer, source):
    words = ("translate", toy_run, "-i", source, "--ensemble", other_run, "--json")
    output = [json.loads(line) for line in tformer(*words).stdout.splitlines()]
    translator = Translator.load(toy_run, ensemble=[other_run])
    alone = Translator.load(toy_run)
    for line, found in zip(LINES, output, strict=True):
        ((expected,),) = translator.nbest([line], 1)
        (best,) = found["translations"]
        assert best["text"] == expected.text
        assert best["log_prob"] == pytest.approx(expected.log_prob, abs=1e-4)
        if line.strip():
            assert expected.log_prob != next(alone.nbest([line], 1))[0].log_prob


def test_runs_of_two_vocabularies_are_refused_by_name(toy_run, other_run, tformer):
    remove_settings(RunDirectory(other_run))
    file = other_run / "tokenizer" / "tokenizer.json"
    header = json.loads(file.read_text())
    header["source"]["lowercase"] = not header["source"]["lowercase"]
    file.write_text(json.dumps(header))
    result = tformer("translate", toy_run, "--ensemble", other_run, stdin="ab\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{other_run}: has other tokenizers than {toy_run}; ")


def test_each_translation_has_the_phrases_of_its_line(toy_run, tformer, source, tmp_path):
    plain = tformer("translate", toy_run, "-i", source).stdout.splitlines()
    phrases = ["GA\tB", "AB", "", "G", "FFF\tGGG\tDA", "", "AB\tBA\tAB"]
    file = tmp_path / "phrases.txt"
    file.write_text("".join(f"{line}\n" for line in phrases))
    words = ("translate", toy_run, "-i", source, "--constraints", file)
    output = tformer(*words).stdout
    for line, wanted, expected, translation in zip(
        LINES, phrases, plain, output.splitlines(), strict=True
    ):
        if line.strip() and wanted:
            assert all(phrase in translation for phrase in wanted.split("\t"))
        else:
            assert translation == expected
    assert tformer(*words, "--workers", 1).stdout == output
    assert tformer(*words, "--workers", 2).stdout == output


def test_phrases_stand_behind_a_prefix_and_beside_terms(toy_run, tformer, tmp_path):
    texts = {
        "input.txt": "ab cd\nfeg ab\na\n",
        "prefixes.txt": "FF\n\nG\n",
        "phrases.txt": "EE\t \nBB\tGG\n\n",
        "terms.tsv": "ab\tDDD\nfeg ab\tFCF\ncd\tEE\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    first, second, third = tformer(
        "translate",
        toy_run,
        "-i",
        tmp_path / "input.txt",
        "--prefixes",
        tmp_path / "prefixes.txt",
        "--constraints",
        tmp_path / "phrases.txt",
        "--terminology",
        tmp_path / "terms.tsv",
    ).stdout.splitlines()
    assert first.startswith("FF")
    assert "EE" in first
    assert "DDD" in first
    assert all(phrase in second for phrase in ("BB", "GG", "FCF"))
    assert "DDD" not in second
    assert third.startswith("G")


def test_terms_are_translated_as_the_terminology_says(toy_run, tformer, tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("ab\tFFF\n\nab cd\tGGG\n")
    output = tformer("translate", toy_run, "--terminology", file, stdin="ab\nabc\ng ab cd\n").stdout
    first, second, third = output.splitlines()
    assert "FFF" in first
    assert f"{second}\n" == tformer("translate", toy_run, stdin="abc\n").stdout
    assert "GGG" in third
    assert "FFF" not in third


def test_a_line_that_is_no_term_is_refused_before_any_is_translated(toy_run, tformer, tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("ab\tFFF\ncd FFF\n")
    result = tformer("translate", toy_run, "--terminology", file, stdin="ab\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"{file}:2: must be a source term, a tab and a target term ('cd FFF')\n"
    )


def test_phrases_without_a_file_of_lines_are_refused(toy_run, tformer, source):
    result = tformer("translate", toy_run, "--constraints", source, stdin="ab\n")
    assert result.stderr == "--constraints: needs --input, line by line; name that file\n"


def test_fewer_lines_of_phrases_than_lines_are_refused(toy_run, tformer, source, tmp_path):
    file = tmp_path / "phrases.txt"
    file.write_text("AB\n" * (len(LINES) + 1))
    result = tformer("translate", toy_run, "-i", source, "--constraints", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:8: has no counterpart in {source} (")


@pytest.mark.parametrize(
    ("options", "got"),
    [(("--beam", 1), "greedy"), (("--set", "decoding={kind: sample}"), "sample")],
)
def test_searches_that_cannot_wait_for_a_phrase_are_refused(toy_run, tformer, source, options, got):
    for option in ("--constraints", "--terminology"):
        file = source.with_name("terms.tsv")
        file.write_text("ab\tAB\n" * len(LINES))
        result = tformer("translate", toy_run, "-i", source, option, file, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"{option}: needs beam search ({got}); use --beam 5\n"


def test_defects_are_named_and_counted(toy_run, tformer):
    stdin = "ab 2008\nab c\n\n"
    result = tformer("translate", toy_run, "--json", stdin=stdin)
    bests = [json.loads(line)["translations"][0] for line in result.stdout.splitlines()]
    assert {"kind": "lost numbers", "words": ["2008"]} in bests[0]["defects"]
    assert (bests[2]["defects"], bests[2]["repair"]) == ([], None)
    num_defective = sum(best["defects"] != [] for best in bests)
    assert f"{num_defective} of 3 translations have defects (" in result.stderr
    plain = tformer("translate", toy_run, stdin=stdin)
    assert (plain.stdout, plain.stderr) == ("".join(f"{best['text']}\n" for best in bests), "")


def test_kept_spans_are_in_the_translations_and_other_lines_stay(toy_run, tformer):
    stdin = "ab {x} 2008 ACME-7\nab c\n"
    options = ("--keep", "placeholders", "--keep", r"ACME-\d", "--keep", "numbers")
    result = tformer("translate", toy_run, *options, stdin=stdin)
    kept, other = result.stdout.splitlines()
    assert all(kept.count(span) == 1 for span in ("{x}", "2008", "ACME-7"))
    assert other == tformer("translate", toy_run, stdin="ab c\n").stdout.rstrip("\n")
    assert "; 1 repaired\n" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--repair", "--nbest", 2),
            "--repair: is for one translation of each line (2); use --nbest 1",
        ),
        (
            ("--keep", "["),
            "--keep: names no spans ([); choose from: addresses, placeholders, numbers",
        ),
    ],
)
def test_guards_without_sense_are_refused(toy_run, tformer, options, message):
    result = tformer("translate", toy_run, *options, stdin="ab\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
