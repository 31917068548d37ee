"""A toy corpus and config that train in seconds: translate letters into upper case, reversed."""

import random
from pathlib import Path

CONFIG = """\
seed: 3
data:
  train: [{source: train.src, target: train.tgt}]
  valid: {source: valid.src, target: valid.tgt}
  test:
    toy: {source: test.src, target: test.tgt}
tokenizer: {kind: char}
model:
  dim: 32
  num_encoder_layers: 1
  num_decoder_layers: 1
  num_heads: 2
  feedforward_dim: 64
  dropout: 0.1
training:
  optimizer: {kind: adamw, learning_rate: 5e-3}
  schedule: {kind: cosine, warmup_steps: 5}
  batch_tokens: 300
  max_steps: 24
  validate_every: 12
  validation_decoding: {kind: greedy, max_length: 20}
  save_every: 6
  report_every: 5
  precision: float32
decoding: {kind: beam, beam_size: 2, max_length: 20}
"""

# The same text's source side alone, for a masked encoder.
MASKED = (
    CONFIG.replace("{source: train.src, target: train.tgt}", "{text: train.src}")
    .replace("{source: valid.src, target: valid.tgt}", "{text: valid.src}")
    .replace("  test:\n    toy: {source: test.src, target: test.tgt}\n", "")
    .replace("model:\n", "model:\n  kind: masked_encoder\n")
    .replace("  num_encoder_layers: 1\n  num_decoder_layers: 1\n", "  num_layers: 1\n")
    .replace(
        "  validation_decoding: {kind: greedy, max_length: 20}\n", "  selection_metric: loss\n"
    )
    .replace("decoding: {kind: beam, beam_size: 2, max_length: 20}\n", "")
)


def sentence(chooser: random.Random) -> str:
    words = ["".join(chooser.choices("abcdefg", k=chooser.randint(1, 3))) for _ in range(3)]
    return " ".join(words[: chooser.randint(1, 3)])


def translation(line: str) -> str:
    return line.upper()[::-1]


def write_toy(folder: Path, *, pairs: int = 300, config: str = CONFIG) -> Path:
    """Write the corpus and the config into a folder; return the config file."""
    folder.mkdir(parents=True, exist_ok=True)
    chooser = random.Random(1)
    for split, count in (("train", pairs), ("valid", 12), ("test", 10)):
        lines = [sentence(chooser) for _ in range(count)]
        for suffix, text in (("src", lines), ("tgt", map(translation, lines))):
            (folder / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in text))
    file = folder / "toy.yaml"
    file.write_text(config)
    return file
