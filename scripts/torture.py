"""Kill a training at random moments, and compare its end with that of an uninterrupted one.

The training is small and saves at every other step, with gradient accumulation and EMA weights, so
that many kills hit the writing of a checkpoint. Its files must be the same, bit for bit.

Example: python scripts/torture.py --minutes 10
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

from tformer_cli.storage.run_directory import RunDirectory

CONFIG = """\
seed: 3
data:
  train: [{source: train.src, target: train.tgt}]
  valid: {source: valid.src, target: valid.tgt}
tokenizer: {kind: char}
model: {dim: 32, num_encoder_layers: 1, num_decoder_layers: 1, num_heads: 2, feedforward_dim: 64}
training:
  schedule: {kind: cosine, warmup_steps: 10}
  batch_tokens: 300
  gradient_accumulation_steps: 2
  ema_decay: 0.9
  max_steps: 120
  validate_every: 40
  save_every: 2
  report_every: 5
"""
# Keys that differ between runs of the same bits.
TIMINGS = ("seconds", "tokens_per_second")


def write_task(folder: Path) -> Path:
    """Write a corpus of letters to reverse; return the config of its training."""
    folder.mkdir(parents=True)
    chooser = random.Random(1)
    for split, count in (("train", 300), ("valid", 10)):
        lines = ["".join(chooser.choices("abcdefg", k=chooser.randint(2, 9))) for _ in range(count)]
        for suffix, text in (("src", lines), ("tgt", [line[::-1] for line in lines])):
            (folder / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in text))
    config_file = folder / "task.yaml"
    config_file.write_text(CONFIG)
    return config_file


def start(config_file: Path, run: Path) -> subprocess.Popen[bytes]:
    """Start or resume a training in a process of its own."""
    with (run.parent / f"{run.name}.stderr").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tformer_cli", "train", str(config_file), "--run", str(run)],
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def train_unbroken(config_file: Path, run: Path) -> float:
    """Train to the end; return the seconds."""
    started = time.perf_counter()
    if start(config_file, run).wait() != 0:
        raise RuntimeError(f"the training failed; see {run}.stderr")
    return time.perf_counter() - started


def train_killed(
    config_file: Path, run: Path, *, kills: int, longest: float, chooser: random.Random
) -> int:
    """Train to the end through kills at random moments; return their number.

    Args:
        config_file: what to train.
        run: where.
        kills: their maximum.
        longest: maximum seconds before a kill.
        chooser: of the moments.
    """
    for killed in range(kills):
        process = start(config_file, run)
        try:
            if process.wait(chooser.uniform(0, longest)) == 0:
                return killed
            raise RuntimeError(f"the training failed; see {run}.stderr")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    train_unbroken(config_file, run)
    return kills


def differences(one: RunDirectory, other: RunDirectory) -> list[str]:
    """Return the names of what differs between two finished runs."""
    differing: list[str] = []
    for name in ("last", "best"):
        if (one.path / name).read_text() != (other.path / name).read_text():
            differing.append(name)
    last, others_last = one.step_checkpoints()[-1], other.step_checkpoints()[-1]
    if [x.name for x in one.step_checkpoints()] != [x.name for x in other.step_checkpoints()]:
        differing.append("checkpoints")
    for file in sorted(last.glob("*.safetensors")):
        tensors, others = load_file(file), load_file(others_last / file.name)
        differing += [
            f"{file.name}: {name}"
            for name in sorted(tensors.keys() | others.keys())
            if name not in tensors
            or name not in others
            or tensors[name].numpy().tobytes() != others[name].numpy().tobytes()
        ]
    if _reports(one) != _reports(other):
        differing.append("metrics.jsonl")
    if _samples(one) != _samples(other):
        differing.append("samples")
    return differing


def _reports(run: RunDirectory) -> list[dict[str, object]]:
    lines = run.metrics_file.read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(x).items() if k not in TIMINGS} for x in lines]


def _samples(run: RunDirectory) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in run.samples.iterdir()}


def main() -> None:
    """Kill trainings for some minutes; exit with 1 when one of them ends otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    options = parser.parse_args()
    chooser, end = random.Random(options.seed), time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config_file = write_task(folder / "task")
        seconds = train_unbroken(config_file, folder / "unbroken")
        num_runs, num_kills, num_failed = 0, 0, 0
        while num_runs == 0 or time.monotonic() < end:
            run = folder / f"run-{num_runs}"
            killed = train_killed(config_file, run, kills=10, longest=seconds, chooser=chooser)
            differing = differences(RunDirectory(folder / "unbroken"), RunDirectory(run))
            num_runs, num_kills = num_runs + 1, num_kills + killed
            num_failed += bool(differing)
            verdict = f"differs in {', '.join(differing)}" if differing else "the same to the bit"
            print(f"run {num_runs}: {killed} kills, {verdict}", flush=True)
    print(f"{num_runs} runs, {num_kills} kills, {num_failed} of the runs ended otherwise")
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
