"""The page that goes with a model: what it is, how good it is, and how to use it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import yaml

from tformer_cli import __version__
from tformer_cli.config.load import as_plain
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel

CARD_FILE = "README.md"
UNKNOWN_LICENSE = "unknown"


@dataclass(frozen=True, slots=True)
class Card:
    """What a page says that the model does not know itself.

    Attributes:
        name: of the model.
        program: that runs it.
        license: of the weights, by its SPDX name.
        packages: that the example needs.
        example: Python that translates a line.
        translation: what it prints.
        checks: what a comparison with tformer has said, a sentence each.
        versions: of what it was written by, besides tformer and torch.
    """

    name: str
    program: str
    license: str
    packages: Sequence[str]
    example: str
    translation: str
    checks: Sequence[str]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class SetScore:
    """A score on a test set.

    Attributes:
        test_set: its name.
        name: of the metric.
        score: in points of 100.
        signature: sacrebleu's.
        num_sentences: of the test set.
    """

    test_set: str
    name: str
    score: float
    signature: str
    num_sentences: int


def known_scores(run: RunDirectory) -> list[SetScore]:
    """Return what `tformer eval` has written into a run; scores of ensembles are left out.

    Raises:
        CheckpointError: a file is damaged.
    """
    found = []
    for file in sorted(run.eval.glob("*.json")):
        try:
            evaluation = read_json(file)
            if evaluation.get("num_models", 1) > 1:
                continue
            found += [
                SetScore(
                    file.stem,
                    str(one["name"]),
                    float(one["score"]),
                    str(one["signature"]),
                    int(one["num_sentences"]),
                )
                for one in evaluation["scores"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                str(file),
                "is no evaluation",
                got=repr(error),
                remedy="remove it, or run `tformer eval` again",
            ) from None
    return found


def model_card(trained: TrainedModel, card: Card, scores: Sequence[SetScore]) -> str:
    """Return the page: Markdown, with the YAML before it that model hubs read.

    Args:
        trained: the model.
        card: what else is known.
        scores: of the model on test sets.
    """
    sections = [
        _front_matter(trained, card, scores),
        f"# {card.name}",
        _summary(trained, card),
        "## Use",
        f"Inside this folder, with `pip install {' '.join(card.packages)}`:",
        f"```python\n{card.example}\n```",
        f"It prints:\n\n{_quoted(card.translation)}",
        _limits(trained),
        "## Scores",
        _score_table(scores),
        "## Checked",
        "\n".join(f"- {check}" for check in card.checks),
        "## Data",
        _data(trained),
        "## Network and training",
        _yaml_block(trained),
        "## Versions",
        "\n".join(f"- {name} {version}" for name, version in _versions(card).items()),
        "## Licence",
        _license(card),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(trained: TrainedModel, card: Card, scores: Sequence[SetScore]) -> str:
    data = trained.config.data
    results = [
        {
            "task": {"type": "translation"},
            "dataset": {"name": name, "type": name},
            "metrics": [
                {"type": one.name.lower(), "name": one.name, "value": round(one.score, 2)}
                for one in scores
                if one.test_set == name
            ],
        }
        for name in dict.fromkeys(one.test_set for one in scores)
    ]
    matter: dict[str, Any] = {
        "language": list(dict.fromkeys([data.source_language, data.target_language])),
        "license": card.license,
        "library_name": card.program.lower(),
        "pipeline_tag": "translation",
        "tags": list(dict.fromkeys(["translation", card.program.lower(), "tformer"])),
    }
    if results:
        matter["model-index"] = [{"name": card.name, "results": results}]
    return f"---\n{yaml.safe_dump(matter, sort_keys=False, allow_unicode=True)}---"


def _summary(trained: TrainedModel, card: Card) -> str:
    data = trained.config.data
    return (
        f"Translates {data.source_language} into {data.target_language}: a Transformer of "
        f"{trained.model.num_parameters():,} parameters after {trained.step:,} steps of training "
        f"by tformer. {card.program} runs it."
    )


def _limits(trained: TrainedModel) -> str:
    most = trained.config.data.filters.max_length
    return (
        f"A line is a sentence or a few. Training has seen none of more than {most:,} tokens: "
        "split longer ones."
    )


def _score_table(scores: Sequence[SetScore]) -> str:
    if not scores:
        return "None yet: `tformer eval` before the export puts them here."
    rows = [
        f"| {one.test_set} | {one.name} | {one.score:.2f} | {one.num_sentences:,} "
        f"| `{one.signature}` |"
        for one in scores
    ]
    head = (
        "| Test set | Metric | Score | Sentences | Signature of sacrebleu |\n|---|---|---|---|---|"
    )
    return "\n".join([head, *rows]) + "\n\nOf tformer's own translations."


def _data(trained: TrainedModel) -> str:
    data = trained.config.data
    texts = [(f"data.{key}", text) for key, text in data.texts().items()]
    return "\n".join(
        f"- `{key}`: " + ", ".join(f"`{file.name}`" for file in text.files.values())
        for key, text in texts
    )


def _yaml_block(trained: TrainedModel) -> str:
    plain = as_plain(trained.config)
    kept = {key: plain[key] for key in ("seed", "tokenizer", "model", "training", "decoding")}
    if (first := trained.config.training.init_from) is not None:
        # Where it lies on this machine is nobody's business.
        kept["training"]["init_from"] = first.name
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return f"```yaml\n{text}```"


def _versions(card: Card) -> dict[str, str]:
    return {"tformer": __version__, "torch": torch.__version__, **card.versions}


def _license(card: Card) -> str:
    if card.license == UNKNOWN_LICENSE:
        return "To be filled in: nobody has said under which terms the weights may be used."
    return card.license


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines() or [""])
