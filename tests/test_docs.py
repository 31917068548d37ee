"""Every command and program of the documentation runs, or the page says why it is not run."""

import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from opus import TARGETS, save_opus

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# A block, and the comment above it that says why it is not run.
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Exports to ONNX take half a minute, and so do the trainings of a tutorial.
PAGES = [
    pytest.param(page, marks=pytest.mark.slow)
    if page.name == "export.md" or page.parent.name == "tutorial"
    else page
    for page in sorted(DOCS.rglob("*.md"))
    if re.search(r"^```(sh|python)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
SHORT_TRAINING = [
    "--set=training.max_steps=4",
    "--set=training.validate_every=2",
    "--set=training.save_every=2",
    "--set=training.schedule.warmup_steps=1",
    "--set=training.validation_decoding.max_length=8",
    "--set=decoding.max_length=8",
]
SHORT = [*SHORT_TRAINING, "--set=model.dim=32", "--set=model.feedforward_dim=64"]
# Settings to add to `tformer train CONFIG`. An imported model has its shape already.
CHANGES = {"my.yaml": SHORT, "runs/opus/config.yaml": SHORT_TRAINING}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages name: configs, the demo, a corpus of one's own, a file to translate."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "data" / "demo").mkdir(parents=True)
    for side in ("en", "de"):
        for split, num_lines in {"train": 1000, "valid": 10, "test": 10}.items():
            lines = (ROOT / "data" / "demo" / f"{split}.{side}").read_bytes().splitlines(True)
            (folder / "data" / "demo" / f"{split}.{side}").write_bytes(b"".join(lines[:num_lines]))
        lines = (ROOT / "data" / "demo" / f"train.{side}").read_bytes().splitlines(True)
        (folder / f"corpus.{side}").write_bytes(b"".join(lines[:1500]))
    shutil.copy(folder / "data" / "demo" / "test.en", folder / "crawl.en")
    subprocess.run(["gzip", "crawl.en"], cwd=folder, check=True)
    return folder


@pytest.fixture
def shell(tformer, folder, monkeypatch):
    """Run a line of a block: tformer in this process, everything else by bash."""
    monkeypatch.chdir(folder)

    def run(line: str) -> None:
        before, is_piped, command = line.rpartition(" | ")
        if not command.startswith("tformer "):
            subprocess.run(["bash", "-c", line], check=True, capture_output=True)
            return
        stdin = subprocess.check_output(["bash", "-c", before]) if is_piped else b""
        words = shlex.split(command)[1:]
        if words[0] == "train":
            # What shortens a training may hide that a reader's command is refused.
            settings = [word for pair in pairwise(words) if pair[0] == "--set" for word in pair]
            shown = tformer("config", "show", words[1], *settings)
            assert shown.exit_code == 0, f"{line}\n{shown.stderr}"
            words += CHANGES.get(words[1], [])
        result = tformer(*words, stdin=stdin)
        assert result.exit_code == 0, f"{line}\n{result.stderr}"

    return run


@pytest.mark.parametrize(
    ("file", "name"),
    re.findall(
        r"`(tests/[\w/]+\.py)`: ([^|`;]+?) *\|",
        (DOCS / "explanation" / "mutants.md").read_text(encoding="utf-8"),
    ),
)
def test_a_test_that_finds_a_mutant_is_there(file, name):
    definition = f"def test_{re.sub(r'[^0-9A-Za-z]+', '_', name)}("
    assert definition in (ROOT / file).read_text(encoding="utf-8")


def test_there_are_pages():
    assert len(PAGES) > 5


def new_folder(folder: Path, copy: Path) -> Path:
    """What a reader of a tutorial has: the demo, trained, and a pretrained model."""
    for name in ("configs", "data", "runs/demo"):
        shutil.copytree(folder / name, copy / name)
    # Its tokens have the letters of the glossary.
    save_opus(copy / "opus-mt-en-de", targets=[*TARGETS, "Mediziner", "Anwohner"])
    return copy


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page, folder, shell, tformer, tmp_path, monkeypatch):
    if not (folder / "runs" / "demo").exists():
        monkeypatch.chdir(folder)
        config = tformer("config", "show", "configs/demo.yaml", *SHORT).stdout
        Path("configs/demo.yaml").write_text(config, encoding="utf-8")
        assert tformer("train", "configs/demo.yaml").exit_code == 0
    if page.parent.name == "tutorial":
        monkeypatch.chdir(new_folder(folder, tmp_path / "new"))
    text = page.read_text(encoding="utf-8")
    blocks = [block for block in BLOCK.finditer(text) if block["language"] in ("sh", "python")]
    assert len(blocks) == len(re.findall(r"^```(?:sh|python)$", text, re.MULTILINE))
    for block in blocks:
        if block["reason"]:
            continue
        if block["language"] == "python":
            exec(compile(block["text"], page.name, "exec"), {})
            continue
        for line in block["text"].replace("\\\n", " ").splitlines():
            shell(line)


NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))


def code_cells(notebook: Path) -> list[dict]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_are_stripped_and_linked(notebook):
    for cell in code_cells(notebook):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    page = notebook.with_suffix(".md").read_text(encoding="utf-8")
    assert f"]({notebook.name})" in page


@pytest.mark.slow
def test_the_notebook_shows_what_a_model_computes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (notebook,) = NOTEBOOKS
    names: dict = {}
    for cell in code_cells(notebook):
        exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    assert (tmp_path / "look-inside" / "heatmap.html").is_file()
    assert names["cross"].weights.sum(-1) == pytest.approx(1, abs=1e-5)
    # The cache gives the logits of teacher forcing.
    assert torch.stack(names["steps"]).numpy() == pytest.approx(
        names["logits"][0].numpy(), abs=1e-3
    )
    assert names["cache"].length == names["target_ids"].shape[1]
