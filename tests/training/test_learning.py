"""Small models must learn small tasks: the whole road, from text to BLEU."""

import random
from pathlib import Path

import pytest
import torch

from tformer_cli.config.load import load_config
from tformer_cli.evaluation.evaluate import Evaluator
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training.trainer import train
from tformer_cli.translate.translator import Translator

CPU = torch.device("cpu")
TASKS = {"copy": lambda words: words, "reverse": lambda words: words[::-1]}

CONFIG = """\
data:
  train: [{source: train.src, target: train.tgt}]
  valid: {source: valid.src, target: valid.tgt}
tokenizer: {kind: word, min_frequency: 1, shared: true}
model: {dim: 64, num_encoder_layers: 2, num_decoder_layers: 2, num_heads: 4, feedforward_dim: 128}
training:
  optimizer: {kind: adamw, learning_rate: 3e-3}
  schedule: {kind: cosine, warmup_steps: 100}
  batch_tokens: 1500
  max_steps: 2400
  validate_every: 800
evaluation: {bleu: {lowercase: true}}
"""


@pytest.mark.parametrize(
    "task",
    [
        pytest.param("reverse", marks=pytest.mark.slow),
        pytest.param("copy", marks=pytest.mark.exhaustive),
    ],
)
def test_a_small_model_learns_the_task(task, tmp_path: Path):
    chooser = random.Random(1)
    words = [f"w{number}" for number in range(30)]
    for split, count in (("train", 4000), ("valid", 100)):
        sources = [chooser.choices(words, k=chooser.randint(3, 12)) for _ in range(count)]
        for suffix, lines in (("src", sources), ("tgt", map(TASKS[task], sources))):
            text = "".join(f"{' '.join(line)}\n" for line in lines)
            (tmp_path / f"{split}.{suffix}").write_text(text)
    file = tmp_path / "task.yaml"
    file.write_text(CONFIG)
    config, run = load_config(file), RunDirectory(tmp_path / "run")
    train(config, run, device=CPU)
    trained = load_trained_model(run)
    translator = Translator.from_model(trained.model, trained.tokenizers, config, CPU)
    metric = build_metric("bleu", config.evaluation, "source")
    evaluation = Evaluator([trained.model], translator).evaluate(config.data.valid, [metric])
    assert evaluation.scores["bleu"].score > 98
    assert evaluation.likelihood.accuracy > 0.99
