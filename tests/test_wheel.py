"""What an installed wheel brings: the package, its types, the configs and the demo text."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FEW_STEPS = ("max_steps", "validate_every", "save_every", "schedule.warmup_steps")


def run(*words: object, folder: Path) -> str:
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, for building leaves files in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("tformer_cli", "configs", "data/demo"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True)
    words = ("wheel", "./tree", "--no-deps", "--no-build-isolation", "--wheel-dir", ".")
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *words, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for name in ("configs", "data/demo")
        for file in (folder / name).iterdir()
    }


@pytest.mark.slow
def test_a_wheel_holds_every_module_config_and_demo_text(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    package = ROOT / "tformer_cli"
    kept = [
        *package.rglob("*.py"),
        *package.rglob("templates/*"),
        *package.rglob("static/*"),
        package / "py.typed",
    ]
    assert {str(file.relative_to(ROOT)) for file in kept} <= held.keys()
    shipped = {f"tformer_cli/shipped/{name}": content for name, content in files(ROOT).items()}
    assert {name: held[name] for name in held if "/shipped/" in name} == shipped


@pytest.mark.slow
def test_an_installed_wheel_trains_the_demo(wheel, tmp_path):
    """The environment sees the packages of this one, and the installed tformer before ours."""
    environment, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", environment, folder=tmp_path)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel, folder=work)
    (site,) = environment.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("-packages")]
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in shared))
    tformer = environment / "bin" / "tformer"
    where = run(python, "-c", "import tformer_cli; print(tformer_cli.__file__)", folder=work)
    assert Path(where.strip()).is_relative_to(environment)
    assert "next: tformer train configs/demo.yaml" in run(tformer, "init", folder=work)
    assert files(work) == files(ROOT)
    settings = [
        *(f"training.{key}=2" for key in FEW_STEPS),
        "training.validation_decoding={kind: greedy, max_length: 4}",
        "tokenizer.vocab_size=400",
        "model.dim=32",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    run(tformer, "train", "configs/demo.yaml", *words, folder=work)
    assert (work / "runs" / "demo" / "best").read_text() == "step-000002\n"
