"""The tests that are marked `gpu`, and what came of them."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "gpu"
# What these need is torch, numpy and pytest; the others need all that a training does.
FRUGAL = ("test_gpu_model.py", "test_gpu_decoding.py", "test_gpu_memory.py")
OPTIONS = (
    *("--quiet", "-m", "gpu"),
    # What the other tests share needs packages that may be missing where the GPU is.
    "--noconftest",
    "-pno:cacheprovider",
    # Other versions of Python and torch warn of other things.
    "--override-ini=filterwarnings=default",
)


def run(kind: Literal["frugal", "other"]) -> dict[str, object]:
    """Run the frugal tests of tests/gpu, or the others.

    Returns:
        How many passed, failed and were skipped, and what the latter two said; and the properties
        that tests recorded, by test. There is an `error` unless some passed and none failed.
    """
    files = [
        str(file)
        for file in sorted(FOLDER.glob("test_*.py"))
        if (file.name in FRUGAL) == (kind == "frugal")
    ]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "tests.xml"
        code = pytest.main([*files, f"--junitxml={file}", *OPTIONS])
        if not file.exists():
            return {"error": f"pytest has not begun: exit code {int(code)}"}
        return outcome(ElementTree.parse(file).getroot())


def outcome(report: ElementTree.Element) -> dict[str, object]:
    """Return what a report in JUnit's format says."""
    counts: Counter[str] = Counter()
    said: dict[str, dict[str, str]] = {"failed": {}, "skipped": {}}
    properties: dict[str, dict[str, str]] = {}
    for case in report.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kind, words = _verdict(case)
        counts[kind] += 1
        if kind != "passed":
            said[kind][name] = words
        for item in case.iter("property"):
            properties.setdefault(name, {})[item.get("name", "")] = item.get("value", "")
    figures: dict[str, object] = {
        **{kind: counts[kind] for kind in ("passed", "failed", "skipped")},
        "failures": said["failed"],
        "skips": said["skipped"],
        "properties": properties,
    }
    if counts["failed"] or not counts["passed"]:
        figures["error"] = f"{counts['failed']} tests failed, {counts['passed']} passed"
    return figures


def _verdict(case: ElementTree.Element) -> tuple[str, str]:
    for kind, tag in (("failed", "failure"), ("failed", "error"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            return kind, (found.get("message") or "").strip()
    return "passed", ""
