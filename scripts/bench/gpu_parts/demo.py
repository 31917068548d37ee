"""A small training from text to BLEU, on a GPU."""

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

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo.yaml"


def demo(
    config_file: str = str(DEMO), *, device: str = "cuda", overrides: Sequence[str] = ()
) -> dict[str, object]:
    """Train a config from its vocabulary on, and translate and score its test sets.

    The number format of the training is the config's, and that of the translations float32, as on
    the command line.

    Args:
        config_file: what to train.
        device: where.
        overrides: KEY=VALUE settings.
    """
    config, place = load_config(Path(config_file), overrides), resolve_device(device)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        state = train(config, run, device=place)
        trained_at = time.perf_counter()
        training_memory_mib = peak_memory(place) / 2**20
        trained = load_trained_model(run)
    translator = Translator.from_model(trained.model, trained.tokenizers, trained.config, place)
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
        "steps": state.step,
        "seconds": trained_at - begun,
        "step_seconds": state.seconds / state.step,
        "target_tokens_per_second": state.num_tokens / state.seconds,
        "peak_memory_mib": training_memory_mib,
        "valid_score": state.best_score,
        "test": scores,
        "test_seconds": time.perf_counter() - trained_at,
    }
