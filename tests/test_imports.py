"""The import ladder of CONTRIBUTING.md, and what importing costs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tformer_cli

PACKAGE = Path(tformer_cli.__file__).parent

# Each rung may import from itself and from the rungs above it.
LADDER = [
    ["choices", "errors", "kernels", "process", "terminal"],
    ["config.schema", "device", "distributed", "extras", "padding", "storage"],
    ["plotting"],
    ["config"],
    ["text"],
    ["documents"],
    ["model"],
    ["corpus"],
    ["inference", "search"],
    [
        *("storage.checkpoint", "storage.integrity", "storage.notes", "storage.state"),
        "storage.trained_model",
    ],
    ["evaluation.metrics"],
    ["export"],
    ["translate"],
    ["evaluation"],
    ["training"],
    ["__init__", "api", "doctor"],
    ["serve"],
    ["cli", "__main__"],
]
# What a rung may not import although it stands below.
APART = {
    "kernels": ("errors", "process", "terminal"),
    "plotting": ("config", "device", "distributed"),
    "text": ("model",),
    "model": ("text", "config.load", "config.parse", "inference"),
    "inference": ("text", "corpus"),
    "search": ("text", "corpus"),
    "corpus": ("model",),
    "storage": ("corpus", "search"),
    "training": ("export",),
    "serve": ("api", "evaluation", "export", "model", "training"),
}


def modules() -> dict[str, Path]:
    return {
        ".".join(file.relative_to(PACKAGE).with_suffix("").parts): file
        for file in sorted(PACKAGE.rglob("*.py"))
    }


def rung(module: str) -> tuple[int, str]:
    """The longest name on the ladder that the module begins with."""
    names = [
        (len(name), number, name)
        for number, rungs in enumerate(LADDER)
        for name in rungs
        if module == name or module.startswith(f"{name}.")
    ]
    assert names, f"{module} stands on no rung of the ladder"
    _, number, name = max(names)
    return number, name


def imports(file: Path) -> list[str]:
    """The modules of the package that a file imports, wherever in it."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = f"{node.module.replace('.', '/')}"
            for alias in node.names:
                is_module = (PACKAGE.parent / inside / f"{alias.name}.py").exists()
                found.append(f"{node.module}.{alias.name}" if is_module else node.module)
    prefix = "tformer_cli."
    return [name.removeprefix(prefix) for name in found if name.startswith(prefix)]


@pytest.mark.parametrize("module", modules())
def test_modules_import_only_from_above(module):
    if module == "__init__":
        # For a type checker it imports what `test_light_imports_leave_torch_alone` never meets.
        return
    number, name = rung(module.removesuffix(".__init__"))
    for imported in imports(modules()[module]):
        above, other = rung(imported)
        assert above <= number, f"{module} imports {imported}, which stands below it"
        for forbidden in APART.get(name, ()):
            assert not f"{imported}.".startswith(f"{forbidden}."), f"{module} imports {imported}"
        assert other != "cli" or name in ("cli", "__main__")


def test_the_network_asks_for_no_device():
    for module, file in modules().items():
        if module.startswith("model."):
            source = file.read_text(encoding="utf-8")
            assert not re.search(r"device\.type|\bis_cuda\b|\bis_cpu\b", source), module


@pytest.mark.parametrize(
    "statement",
    [
        "import tformer_cli",
        "from tformer_cli.cli.app import app",
        "import tformer_cli.config.load",
        "import tformer_cli.plotting.curves",
        "import tformer_cli.plotting.heatmap",
    ],
)
def test_light_imports_leave_torch_alone(statement):
    heavy = ("torch", "sentencepiece", "sacrebleu", "numpy", "torchtext", "matplotlib")
    code = f"{statement}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# What a host program may have set in torch.
TORCH_FLAGS = """
import torch
def flags():
    cuda = torch.backends.cuda
    return [
        cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(), cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic,
        torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),
        torch.is_grad_enabled(), torch.initial_seed(), torch.get_rng_state().sum().item(),
    ]
before = flags()
"""


def test_imports_leave_a_host_programs_torch_as_it_was():
    code = (
        f"{TORCH_FLAGS}import tformer_cli.api, tformer_cli.model.build\n"
        "for was, now in zip(before, flags(), strict=True):\n    assert now == was, (was, now)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_public_names_are_sorted_and_all_there():
    assert sorted(tformer_cli.__all__) == tformer_cli.__all__
    assert {*tformer_cli._HOMES, "__version__"} == set(tformer_cli.__all__)
    for name in tformer_cli.__all__:
        assert getattr(tformer_cli, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tformer_cli.nothing
