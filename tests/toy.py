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

ONE_TEXT = """\
  train: [{source: train.src, target: train.tgt}]
  valid: {source: valid.src, target: valid.tgt}
  test:
    toy: {source: test.src, target: test.tgt}
"""
# Lower case, upper case reversed, and digits. From bb into cc there is no training text.
MANY_TEXTS = """\
  source_language: aa
  target_language: bb
  train:
    - {source: train.aa, target: train.bb}
    - {source: train.bb, target: train.aa, source_language: bb, target_language: aa}
    - {source: train.aa, target: train.cc, target_language: cc, tags: [made]}
  valid:
    - {source: valid.aa, target: valid.bb}
    - {source: valid.bb, target: valid.aa, source_language: bb, target_language: aa}
  test:
    aa-cc: {source: test.aa, target: test.cc, target_language: cc}
    bb-cc: {source: test.bb, target: test.cc, source_language: bb, target_language: cc}
"""
MANY = CONFIG.replace(ONE_TEXT, MANY_TEXTS)

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


def digits(line: str) -> str:
    return line.translate(str.maketrans("abcdefg", "1234567"))


def write_languages(folder: Path, *, pairs: int = 40, config: str = MANY) -> Path:
    """Write the corpus of three languages and the config; return the config file."""
    folder.mkdir(parents=True, exist_ok=True)
    chooser = random.Random(1)
    for split, count in (("train", pairs), ("valid", 12), ("test", 10)):
        lines = [sentence(chooser) for _ in range(count)]
        for language, change in (("aa", str), ("bb", translation), ("cc", digits)):
            text = "".join(f"{change(line)}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text)
    file = folder / "many.yaml"
    file.write_text(config)
    return file
