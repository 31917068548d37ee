"""What a validation needs of the config: the metrics, of which some load a model."""

from toy import write_languages

from tformer_cli.config.load import load_config
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.training import validation as module
from tformer_cli.training.validation import validation_fingerprint


def test_a_fingerprint_builds_one_metric_for_each_text(tmp_path, monkeypatch):
    config = load_config(write_languages(tmp_path / "data"))
    built = []

    def counted(*arguments):
        built.append(arguments)
        return build_metric(*arguments)

    monkeypatch.setattr(module, "build_metric", counted)
    validation_fingerprint(config)
    assert len(built) == len(config.data.valid_texts) == 2
