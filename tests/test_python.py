"""The Python interface: a program that uses public names alone, and what a type checker sees."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import sacrebleu
from toy import CONFIG, write_toy

import tformer_cli
from tformer_cli import (
    BeamConfig,
    Config,
    GreedyConfig,
    ParallelText,
    Problem,
    SearchOptions,
    TformerError,
    Translator,
    build_vocabulary,
    clean,
    compare,
    evaluate,
    extract_phrases,
    load_config,
    report_vocabulary,
    train,
)

TEXT = ParallelText(source=Path("a.en"), target=Path("a.de"))
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
# What the package is built on takes a type checker minutes, and none of it is ours.
FOREIGN = ["torch", "numpy", "sacrebleu", "sentencepiece", "torchtext", "tqdm", "typer", "yaml"]

USER = """\
from pathlib import Path
from tformer_cli import (
    BeamConfig, Config, Evaluation, Score, TformerError, Translation, Translator, evaluate,
    load_config, train,
)

def main(file: Path) -> str:
    config: Config = load_config(file, ["training.max_steps=2"])
    run: Path = train(config, run="runs/x", device="cpu")
    found: dict[str, Evaluation] = evaluate(run, metrics=["bleu", "chrf"], device="cpu")
    score: Score = found["toy"].scores["bleu"]
    try:
        translator: Translator = Translator.load(str(run))
        best: list[list[Translation]] = list(
            translator.nbest(["a"], 2, decoding=BeamConfig(beam_size=2))
        )
        return best[0][0].text + translator.translate(["a"])[0] + f"{score.score:.2f}"
    except TformerError as error:
        return error.problems[0].where
"""


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def test_a_program_trains_scores_and_translates(tmp_path, monkeypatch):
    data = write_toy(tmp_path / "data").parent
    monkeypatch.chdir(tmp_path)
    run = train("data/toy.yaml", device="cpu")
    assert run == Path("runs/toy")
    evaluation = evaluate(str(run), metrics=["bleu", "chrf"], device="cpu")["toy"]
    references = lines(data / "test.tgt")
    expected = {
        "bleu": sacrebleu.corpus_bleu(evaluation.hypotheses, [references]).score,
        "chrf": sacrebleu.corpus_chrf(evaluation.hypotheses, [references]).score,
    }
    assert {name: score.score for name, score in evaluation.scores.items()} == expected
    assert lines(run / "eval" / "toy.hyp.txt") == list(evaluation.hypotheses)
    translator = Translator.load(run, device="cpu")
    assert translator.translate(lines(data / "test.src")) == list(evaluation.hypotheses)
    step = (run / "best").read_text().strip().removeprefix("step-").lstrip("0")
    assert repr(translator) == f"Translator(source -> target, cpu, runs/toy at step {step})"


def test_a_config_object_trains_as_its_file_does(tmp_path):
    file = write_toy(tmp_path / "data")
    keys = ("max_steps", "validate_every", "save_every", "schedule.warmup_steps")
    settings = [f"training.{key}=2" for key in keys]
    config = load_config(os.fspath(file), settings)
    assert isinstance(config, Config)
    runs = (
        train(config, tmp_path / "object", device="cpu"),
        train(file, str(tmp_path / "file"), settings=settings, device="cpu"),
    )
    of_object, of_file = (
        (run / "checkpoints" / "step-000002" / "model.safetensors").read_bytes() for run in runs
    )
    assert of_object == of_file


def test_evaluate_says_what_the_command_says(toy_run, tformer):
    printed = tformer("eval", toy_run, "--ter", "--split", "valid", "--beam", 1).stdout
    found = evaluate(
        toy_run, metrics=["ter"], split="valid", decoding=SearchOptions(beam_size=1), device="cpu"
    )
    assert list(found) == ["valid"]
    assert str(found["valid"].scores["ter"]) in printed.splitlines()


def test_evaluate_counts_the_lines_of_all_texts_up_to_their_number(toy_run):
    counts: dict[str, list[int]] = {"start": [], "done": []}
    evaluate(toy_run, device="cpu", on_start=counts["start"].append, on_done=counts["done"].append)
    assert counts["start"] == [10]
    assert sum(counts["done"]) == 10


def test_evaluate_warns_of_a_text_seen_in_training_as_the_command_does(toy_run, tformer, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    config = (run / "config.yaml").read_text()
    seen = config.replace("test.src", "train.src").replace("test.tgt", "train.tgt")
    (run / "config.yaml").write_text(seen)
    warnings: list[Problem] = []
    search = GreedyConfig(max_length=20)
    evaluate(run, split="toy", decoding=search, device="cpu", on_warning=warnings.append)
    printed = tformer("eval", run, "--split", "toy", "--beam", 1).stderr.splitlines()
    assert [str(one) in printed for one in warnings] == [True]


def test_a_vocabulary_is_reported_as_the_command_prints_it(tmp_path, tformer):
    file = write_toy(tmp_path / "data")
    settings = ["tokenizer.shared=false", "model.tie_embeddings=output"]
    built = build_vocabulary(file, tmp_path / "run", settings=settings)
    again = build_vocabulary(load_config(file, settings), tmp_path / "run", overwrite=True)
    assert again == report_vocabulary(tmp_path / "run") == built
    printed = json.loads(tformer("vocab", tmp_path / "run", "--json").stdout)
    assert printed.pop("tokenizer") == str(tmp_path / "run" / "tokenizer")
    assert printed == {
        text: {side: asdict(report) for side, report in sides.items()}
        for text, sides in built.items()
    }
    assert built["valid"]["source"].num_sentences == 12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: load_config("no.yaml"), "no.yaml: no such file; "),
        (lambda run: train("no.yaml"), "no.yaml: no such file; "),
        (
            lambda run: train(load_config(run / "config.yaml")),
            "`run`: is required for a config without a file; name a folder",
        ),
        (
            lambda run: train(load_config(run / "config.yaml"), run, settings=["seed=2"]),
            "`settings`: have no effect on a config without a file; pass them to load_config",
        ),
        (
            lambda run: train(run / "config.yaml", settings="seed=2"),
            "`settings`: must be a list of texts (a text); put brackets around it",
        ),
        (
            lambda run: load_config(run / "config.yaml", "seed=2"),
            "`settings`: must be a list of texts (a text); put brackets around it",
        ),
        (
            lambda run: build_vocabulary(run / "config.yaml", run),
            "{run}/tokenizer: belongs to the model that this run has trained; ",
        ),
        (lambda run: report_vocabulary("no/run"), "no/run/config.yaml: no such file; "),
        (lambda run: evaluate("no/run"), "no/run: no such run folder; "),
        (lambda run: evaluate(run, split="tset"), "`split`: the config has no such split (tset); "),
        (
            lambda run: evaluate(run, metrics="bleu"),
            "`metrics`: must be a list of texts (a text); put brackets around it",
        ),
        (
            lambda run: evaluate(run, metrics=["blue"]),
            "`metrics`: must be one of bleu, chrf, ter (blue)",
        ),
        (
            lambda run: compare([run, run / "config.yaml"], metrics=[]),
            "`metrics`: needs at least one metric; name bleu or chrf",
        ),
        (
            lambda run: evaluate(run, decoding=SearchOptions(settings="decoding.beam_size=2")),
            "`settings`: must be a list of texts (a text); put brackets around it",
        ),
        (
            lambda run: clean(TEXT, "x", languages=("en", "de"), held_out="test.en"),
            "`held_out`: must be a list of texts (a text); put brackets around it",
        ),
        (
            lambda run: clean(TEXT, "x", languages="en"),
            "`languages`: must be a list of texts (a text); put brackets around it",
        ),
        (
            lambda run: extract_phrases(TEXT, "x", languages="en"),
            "`languages`: must be a list of texts (a text); put brackets around it",
        ),
        (
            lambda run: Translator.load(run).translate(["a"], decoding={"kind": "beam"}),
            "`decoding`: must be a search ({'kind': 'beam'}); "
            "pass BeamConfig(beam_size=5), GreedyConfig() or SampleConfig()",
        ),
        (
            lambda run: Translator.load(run).translate(["a"], decoding=BeamConfig),
            "`decoding`: must be a search (<class ",
        ),
    ],
)
def test_a_mistake_is_an_error_of_the_package(toy_run, call, message):
    with pytest.raises(TformerError) as caught:
        call(toy_run)
    assert str(caught.value).startswith(message.replace("{run}", str(toy_run)))


def environment_after(statements: str) -> str:
    """A variable that torch reads when it is imported, after some statements."""
    code = f"{statements}; import os; print(os.environ.get('GOMP_SPINCOUNT'))"
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


def test_a_program_runs_with_the_settings_of_the_command_unless_torch_is_there():
    assert environment_after("import tformer_cli") == "None"
    assert environment_after("from tformer_cli import BeamConfig") == "30000"
    assert environment_after("import torch; from tformer_cli import BeamConfig") == "None"


def test_every_public_name_is_seen_before_it_is_used():
    code = "import tformer_cli; print(*dir(tformer_cli))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(tformer_cli.__all__) <= set(done.stdout.split())


@pytest.mark.parametrize("name", [name for name in tformer_cli.__all__ if name[0] != "_"])
def test_every_public_name_stands_in_the_reference(name):
    reference = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
    assert re.search(rf"^::: [\w.]+\.{name}$|`{name}`", reference.read_text("utf-8"), re.MULTILINE)


@pytest.mark.slow
def test_a_strict_type_checker_knows_the_interface(tmp_path):
    mypy = pytest.importorskip("mypy.api")
    wrong = USER.replace("metrics=", "metric=").replace("(\n    BeamConfig", "(\n    Beam")
    programs = {"right.py": USER, "wrong.py": wrong}
    for name, program in programs.items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = true\nmypy_path = {Path(tformer_cli.__file__).parents[1]}\n"
        "[mypy-tformer_cli.*]\nignore_errors = true\n"
        f"[mypy-{','.join(f'{name}.*' for name in FOREIGN)}]\n"
        "follow_imports = skip\nignore_missing_imports = true\n",
        encoding="utf-8",
    )
    options = ["--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    said, errors, _ = mypy.run([*options, *(str(tmp_path / name) for name in programs)])
    assert not errors
    assert "right.py" not in said
    assert 'Module "tformer_cli" has no attribute "Beam"' in said
    assert 'Unexpected keyword argument "metric" for "evaluate"' in said


def test_the_lines_of_the_readme_run_as_they_stand(tmp_path, monkeypatch, capsys):
    section = README.split("\n## Python\n")[1].split("\n## ")[0]
    program = "\n".join(re.findall(r"^    (.*)$", section, re.MULTILINE))
    assert len(program.splitlines()) == 5
    config = CONFIG.replace("toy:", "demo:").replace("max_steps: 24", "max_steps: 6")
    file = write_toy(tmp_path / "configs", config=config.replace("_every: 12", "_every: 6"))
    file.rename(file.with_name("demo.yaml"))
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    score, translation = capsys.readouterr().out.splitlines()[-2:]
    assert score.startswith("BLEU = ")
    assert "runs/demo at step 6" in translation
