"""Part of gpu.py: a small training from text to BLEU."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tformer_cli.config.load import load_config
from tformer_cli.device import peak_memory, resolve_device
from tformer_cli.evaluation.evaluate import Evaluator
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training.trainer import train
from tformer_cli.translate.translator import Translator

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo.yaml"


def demo(
    config_file: str = str(DEMO), *, device: str = "cuda", overrides: Sequence[str] = ()
) -> dict[str, object]:
    """Train a config from its vocabulary on, and translate and score its test sets.

    Precision of the training is the config's, that of the translations float32.
    """
    config, on = load_config(Path(config_file), overrides), resolve_device(device)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        progress = train(config, run, device=on)
        trained_at = time.perf_counter()
        training_memory_mib = peak_memory(on) / 2**20
        trained = load_trained_model(run)
    translator = Translator.from_model(trained.model, trained.tokenizers, trained.config, on)
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    scores = {}
    for name, text in config.data.test.items():
        evaluation = Evaluator([trained.model], translator).evaluate(text, [metric])
        scores[name] = {
            "bleu": evaluation.scores["bleu"].score,
            "signature": evaluation.scores["bleu"].signature,
            "loss": evaluation.likelihood.loss,
            "num_sentences": len(evaluation.hypotheses),
        }
    return {
        "steps": progress.step,
        "seconds": trained_at - begun,
        "step_seconds": progress.seconds / progress.step,
        "target_tokens_per_second": progress.num_tokens / progress.seconds,
        "peak_memory_mib": training_memory_mib,
        "valid_score": progress.best_score,
        "test": scores,
        "test_seconds": time.perf_counter() - trained_at,
    }
