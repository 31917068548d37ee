"""Model cards: what a model is, how good it is, and how to use it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import yaml

from tformer_cli import __version__
from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.decoding import search_in_words
from tformer_cli.config.schema.text import has_phrases
from tformer_cli.errors import CheckpointError, quantity
from tformer_cli.evaluation.metrics import Score
from tformer_cli.export.format import Format, filled
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.trained_model import ModelFiles, TrainedModel

CARD_FILE = "README.md"
UNKNOWN_LICENSE = "unknown"


@dataclass(frozen=True, slots=True)
class Card:
    """What a card says beyond the model and its format."""

    name: str
    license: str  # SPDX identifier
    line: str  # that the code example translates
    translation: str  # that it prints
    checks: Sequence[str]


class KnownScore(NamedTuple):
    """A score, and the search of the translations, in words."""

    score: Score
    search: str


def known_scores(files: ModelFiles) -> dict[str, list[KnownScore]]:
    """Return the scores of a model for each test set, as `tformer eval` left them in its run.

    Those of ensembles and of other checkpoints are left out. Earlier versions noted no model.
    """
    own = [files.fingerprint]
    scores: dict[str, list[KnownScore]] = {}
    for file in sorted(files.run.eval.glob("*.json")):
        try:
            evaluation = read_json(file)
            if evaluation.get("num_models", 1) > 1 or evaluation.get("models", own) != own:
                continue
            search = _search(evaluation)
            for score in evaluation["scores"]:
                name, signature = str(score["name"]), str(score["signature"])
                number, count = float(score["score"]), int(score["num_sentences"])
                known = KnownScore(Score(name, number, signature, count), search)
                scores.setdefault(file.stem, []).append(known)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            got = repr(error)
            remedy = "remove it, or run `tformer eval` again"
            raise CheckpointError(str(file), "is no evaluation", got=got, remedy=remedy) from None
    return scores


def _search(evaluation: Mapping[str, Any]) -> str:
    """Return the search of an evaluation; earlier versions noted none, or other keys."""
    try:
        words = search_in_words(evaluation["decoding"])
    except KeyError:
        return "not recorded"
    return words if evaluation.get("mbr") is None else f"{words}, MBR"


def table_code(text: str) -> str:
    """Return code as a cell of a table in Markdown; few renderers know an escaped bar in one."""
    return f"<code>{text.replace('|', '&#124;')}</code>"


def model_card(
    trained: TrainedModel, form: Format, card: Card, scores: Mapping[str, Sequence[KnownScore]]
) -> str:
    """Return the card: Markdown after the YAML front matter that model hubs read."""
    config = trained.config
    versions = {"tformer": __version__, "torch": torch.__version__, **form.versions()}
    matter = _front_matter(trained, form, card, scores)
    page = filled(
        "card.md",
        front_matter=yaml.safe_dump(matter, sort_keys=False, allow_unicode=True),
        name=card.name,
        directions=", ".join(map(" into ".join, config.data.directions)),
        num_parameters=f"{trained.model.num_parameters():,}",
        **_history(trained),
        program=form.program,
        packages=" ".join(form.packages(trained)),
        example=form.example(trained, card.line).rstrip("\n"),
        translation="\n".join(f"> {line}" for line in card.translation.splitlines() or [""]),
        scores=_score_table(scores),
        checks="\n".join(f"- {check}" for check in card.checks),
        config=_config_yaml(trained),
        versions="\n".join(f"- {name} {version}" for name, version in versions.items()),
        license="To be filled in: nobody has said under which terms the weights may be used."
        if card.license == UNKNOWN_LICENSE
        else card.license,
    )
    # Names of files need not be UTF-8.
    return page.encode(errors="backslashreplace").decode()


def _history(trained: TrainedModel) -> dict[str, str]:
    """Return what is said of the training; a model of no step was imported, or is cut or extended.

    The config of such a model has defaults, and names text that a further training would read.
    """
    data = trained.config.data
    texts = "\n".join(
        f"- `data.{key}`: "
        + ", ".join(f"`{file.name}`" for file in text.files.values())
        + (", the phrase pairs" if has_phrases(text) else "")
        for key, text in data.texts().items()
    )
    limit = f"more than {quantity(data.filters.max_length, 'token')}"
    if trained.step == 0:
        return {
            "training": " that its run did not train",
            "longest": f"Split lines of {limit}.",
            "data": f"The run has read no text. Its config names, for a training:\n\n{texts}",
        }
    return {
        "training": f" after {quantity(trained.step, 'step')} of training by tformer",
        "longest": f"Training has seen none of {limit}: split longer ones.",
        "data": texts,
    }


def _front_matter(
    trained: TrainedModel, form: Format, card: Card, scores: Mapping[str, Sequence[KnownScore]]
) -> dict[str, Any]:
    data = trained.config.data
    library = form.program.lower()
    matter: dict[str, Any] = {
        "language": list(dict.fromkeys(itertools.chain(*data.directions))),
        "license": card.license,
        "library_name": library,
        "pipeline_tag": "translation",
        "tags": list(dict.fromkeys(["translation", library, "tformer"])),
    }
    results = [
        {
            "task": {"type": "translation"},
            "dataset": {"name": name, "type": name},
            "metrics": [
                {"type": score.name.lower(), "name": score.name, "value": round(score.score, 2)}
                for score, _ in own
            ],
        }
        for name, own in scores.items()
    ]
    if results:
        matter["model-index"] = [{"name": card.name, "results": results}]
    return matter


def _score_table(scores: Mapping[str, Sequence[KnownScore]]) -> str:
    if not scores:
        return "None yet: `tformer eval` before the export puts them here."
    rows = [
        f"| {name} | {score.name} | {score.score:.2f} | {score.num_sentences:,} "
        f"| {search} | {table_code(score.signature)} |"
        for name, own in scores.items()
        for score, search in own
    ]
    return filled("scores.md", rows="\n".join(rows)).rstrip("\n")


def _config_yaml(trained: TrainedModel) -> str:
    plain = as_plain(trained.config)
    shown = {key: plain[key] for key in ("seed", "tokenizer", "model", "training", "decoding")}
    if (pretrained := trained.config.training.init_from) is not None:
        # Paths of this machine stay private.
        shown["training"]["init_from"] = pretrained.name
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None)
