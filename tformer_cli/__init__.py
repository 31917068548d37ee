"""Train and run Transformer translation models.

    from tformer_cli import Translator, evaluate, train
    run = train("configs/demo.yaml")
    print(evaluate(run)["demo"].scores["bleu"])
    print(Translator.load(run).translate(["The girl has danced with us."]))

Importing the package costs nothing: each name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tformer_cli.api import compare as compare
    from tformer_cli.api import evaluate as evaluate
    from tformer_cli.api import score as score
    from tformer_cli.api import train as train
    from tformer_cli.api import tune as tune
    from tformer_cli.config.load import load_config as load_config
    from tformer_cli.config.schema.config import Config as Config
    from tformer_cli.config.schema.data import FilterConfig as FilterConfig
    from tformer_cli.config.schema.decoding import BeamConfig as BeamConfig
    from tformer_cli.config.schema.decoding import GreedyConfig as GreedyConfig
    from tformer_cli.config.schema.decoding import SampleConfig as SampleConfig
    from tformer_cli.config.schema.text import PairsFile as PairsFile
    from tformer_cli.config.schema.text import ParallelText as ParallelText
    from tformer_cli.corpus.clean import Cleaning as Cleaning
    from tformer_cli.corpus.clean import clean as clean
    from tformer_cli.corpus.phrases import Phrases as Phrases
    from tformer_cli.corpus.phrases import extract_phrases as extract_phrases
    from tformer_cli.corpus.statistics import VocabularyReport as VocabularyReport
    from tformer_cli.errors import Problem as Problem
    from tformer_cli.errors import TformerError as TformerError
    from tformer_cli.evaluation.calibration import calibrate as calibrate
    from tformer_cli.evaluation.compare import Comparison as Comparison
    from tformer_cli.evaluation.evaluate import Evaluation as Evaluation
    from tformer_cli.evaluation.metrics import Score as Score
    from tformer_cli.evaluation.report import Report as Report
    from tformer_cli.evaluation.report import report as report
    from tformer_cli.evaluation.tuning import Tuning as Tuning
    from tformer_cli.text.segments import Terminology as Terminology
    from tformer_cli.training.vocabulary import build_vocabulary as build_vocabulary
    from tformer_cli.training.vocabulary import report_vocabulary as report_vocabulary
    from tformer_cli.translate.options import MBR as MBR
    from tformer_cli.translate.options import SearchOptions as SearchOptions
    from tformer_cli.translate.postprocess import Translation as Translation
    from tformer_cli.translate.score import ScoredPair as ScoredPair
    from tformer_cli.translate.synthesis import Synthesis as Synthesis
    from tformer_cli.translate.synthesis import synthesize as synthesize
    from tformer_cli.translate.translator import Translator as Translator

__version__ = "0.1.0"

# Module of each public name.
_HOMES = {
    "BeamConfig": "tformer_cli.config.schema.decoding",
    "Cleaning": "tformer_cli.corpus.clean",
    "Comparison": "tformer_cli.evaluation.compare",
    "Config": "tformer_cli.config.schema.config",
    "Evaluation": "tformer_cli.evaluation.evaluate",
    "FilterConfig": "tformer_cli.config.schema.data",
    "GreedyConfig": "tformer_cli.config.schema.decoding",
    "MBR": "tformer_cli.translate.options",
    "PairsFile": "tformer_cli.config.schema.text",
    "ParallelText": "tformer_cli.config.schema.text",
    "Phrases": "tformer_cli.corpus.phrases",
    "Problem": "tformer_cli.errors",
    "Report": "tformer_cli.evaluation.report",
    "SampleConfig": "tformer_cli.config.schema.decoding",
    "Score": "tformer_cli.evaluation.metrics",
    "ScoredPair": "tformer_cli.translate.score",
    "SearchOptions": "tformer_cli.translate.options",
    "Synthesis": "tformer_cli.translate.synthesis",
    "Terminology": "tformer_cli.text.segments",
    "TformerError": "tformer_cli.errors",
    "Translation": "tformer_cli.translate.postprocess",
    "Translator": "tformer_cli.translate.translator",
    "Tuning": "tformer_cli.evaluation.tuning",
    "VocabularyReport": "tformer_cli.corpus.statistics",
    "build_vocabulary": "tformer_cli.training.vocabulary",
    "calibrate": "tformer_cli.evaluation.calibration",
    "clean": "tformer_cli.corpus.clean",
    "compare": "tformer_cli.api",
    "evaluate": "tformer_cli.api",
    "extract_phrases": "tformer_cli.corpus.phrases",
    "load_config": "tformer_cli.config.load",
    "report": "tformer_cli.evaluation.report",
    "report_vocabulary": "tformer_cli.training.vocabulary",
    "score": "tformer_cli.api",
    "synthesize": "tformer_cli.translate.synthesis",
    "train": "tformer_cli.api",
    "tune": "tformer_cli.api",
}
__all__ = sorted([*_HOMES, "__version__"])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# A type checker uses the imports above.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tformer_cli.process import tune_environment

        tune_environment()
        return getattr(importlib.import_module(_HOMES[name]), name)
