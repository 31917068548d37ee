"""Model cards and code examples: what a model is, how good it is, and how to use it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch
import yaml

from tformer_cli import __version__
from tformer_cli.config.load import as_plain
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.subword import MarianTokenizer
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers

CARD_FILE = "README.md"
UNKNOWN_LICENSE = "unknown"
TEMPLATES = Path(__file__).with_name("templates")

# Packages that tokenize in a code example, by tokenizer kind.
TOKENIZER_PACKAGES = {
    "subword": ["sentencepiece"],
    "marian": ["sentencepiece"],
    "word": ["torchtext==0.6.0"],
    "char": [],
}


def filled(template: str, **values: object) -> str:
    """Return a template of this folder with its values."""
    return Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)


def sentencepiece_models(tokenizers: Tokenizers) -> dict[str, bytes]:
    """Return the sentencepiece models of both sides by file name without suffix."""
    source, target = tokenizers.source, tokenizers.target
    if isinstance(source, MarianTokenizer) and isinstance(target, MarianTokenizer):
        return {"source": source.model, "target": target.model}
    if source.kind != "subword":
        return {}
    if tokenizers.shared:
        return {"shared": source.content}
    return {"source": source.content, "target": target.content}


def write_sentencepiece_models(tokenizers: Tokenizers, folder: Path) -> None:
    """Write the sentencepiece models that `token_code` loads."""
    for name, content in sentencepiece_models(tokenizers).items():
        (folder / f"{name}.model").write_bytes(content)


def token_code(
    tokenizers: Tokenizers, line: str, *, modules: Sequence[str], target_tokens: str
) -> dict[str, str]:
    """Return the Python code that a template needs to tokenize and detokenize.

    These are modules to import, statements that load models, and expressions for the tokens of a
    line and for the text of `target_tokens`.
    """
    source, models = tokenizers.source, list(sentencepiece_models(tokenizers))
    imports = [*modules, *(["sentencepiece"] if models else [])]
    if source.normalizer.nfkc:
        imports.append("unicodedata")
    loads = [
        f'{name} = sentencepiece.SentencePieceProcessor(model_file="{name}.model")\n'
        for name in models
    ]
    if source.kind == "word":
        loads = ["from torchtext.data.utils import get_tokenizer\n"]
    match tokenizers.target.kind:
        case "char":
            text = f'"".join({target_tokens})'
        case "word":
            text = f'" ".join({target_tokens})'
        case _:
            text = f"{models[-1]}.decode({target_tokens})"
    tokens = _source_tokens_code(source, line, models)
    return {"modules": ", ".join(imports), "models": "".join(loads), "tokens": tokens, "text": text}


def _source_tokens_code(source: Tokenizer, line: str, models: Sequence[str]) -> str:
    # Marian's target language code is one token, which sentencepiece does not know.
    code = re.match(">>.*?<<", line) if source.kind == "marian" else None
    text = repr(line[code.end() :] if code else line)
    if source.normalizer.nfkc:
        text = f'unicodedata.normalize("NFKC", {text})'
    if source.normalizer.lowercase:
        text = f"{text}.lower()"
    match source.kind:
        case "char":
            return f"list({text})"
        case "word":
            return f'get_tokenizer("basic_english")({text})'
        case _:
            pieces = f"{models[0]}.encode({text}, out_type=str)"
            return f"[{code[0]!r}, *{pieces}]" if code else pieces


@dataclass(frozen=True, slots=True)
class Card:
    """What a card says beyond the model itself."""

    name: str
    program: str
    license: str  # SPDX identifier
    packages: Sequence[str]  # that the example needs
    example: str  # Python code
    translation: str  # that the example prints
    checks: Sequence[str]
    versions: Mapping[str, str]  # of packages that wrote the files


@dataclass(frozen=True, slots=True)
class SetScore:
    """A score on a test set, with sacrebleu's signature."""

    test_set: str
    name: str
    score: float
    signature: str
    num_sentences: int


def known_scores(run: RunDirectory) -> list[SetScore]:
    """Return the scores that `tformer eval` left in a run, without those of ensembles.

    Raises:
        CheckpointError: a file is damaged.
    """
    scores: list[SetScore] = []
    for file in sorted(run.eval.glob("*.json")):
        try:
            evaluation = read_json(file)
            if evaluation.get("num_models", 1) > 1:
                continue
            for score in evaluation["scores"]:
                name, signature = str(score["name"]), str(score["signature"])
                number, count = float(score["score"]), int(score["num_sentences"])
                scores.append(SetScore(file.stem, name, number, signature, count))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            got, remedy = repr(error), "remove it, or run `tformer eval` again"
            raise CheckpointError(str(file), "is no evaluation", got=got, remedy=remedy) from None
    return scores


def model_card(trained: TrainedModel, card: Card, scores: Sequence[SetScore]) -> str:
    """Return the card: Markdown after the YAML front matter that model hubs read."""
    config = trained.config
    versions = {"tformer": __version__, "torch": torch.__version__, **card.versions}
    texts = config.data.texts().items()
    return filled(
        "card.md",
        front_matter=yaml.safe_dump(
            _front_matter(trained, card, scores), sort_keys=False, allow_unicode=True
        ),
        name=card.name,
        source=config.data.source_language,
        target=config.data.target_language,
        num_parameters=f"{trained.model.num_parameters():,}",
        steps=f"{trained.step:,}",
        program=card.program,
        packages=" ".join(card.packages),
        example=card.example.rstrip("\n"),
        translation="\n".join(f"> {line}" for line in card.translation.splitlines() or [""]),
        max_length=f"{config.data.filters.max_length:,}",
        scores=_score_table(scores),
        checks="\n".join(f"- {check}" for check in card.checks),
        data="\n".join(
            f"- `data.{key}`: " + ", ".join(f"`{file.name}`" for file in text.files.values())
            for key, text in texts
        ),
        config=_config_yaml(trained),
        versions="\n".join(f"- {name} {version}" for name, version in versions.items()),
        license="To be filled in: nobody has said under which terms the weights may be used."
        if card.license == UNKNOWN_LICENSE
        else card.license,
    )


def _front_matter(trained: TrainedModel, card: Card, scores: Sequence[SetScore]) -> dict[str, Any]:
    data, library = trained.config.data, card.program.lower()
    results = [
        {
            "task": {"type": "translation"},
            "dataset": {"name": name, "type": name},
            "metrics": [
                {"type": score.name.lower(), "name": score.name, "value": round(score.score, 2)}
                for score in scores
                if score.test_set == name
            ],
        }
        for name in dict.fromkeys(score.test_set for score in scores)
    ]
    matter: dict[str, Any] = {
        "language": list(dict.fromkeys([data.source_language, data.target_language])),
        "license": card.license,
        "library_name": library,
        "pipeline_tag": "translation",
        "tags": list(dict.fromkeys(["translation", library, "tformer"])),
    }
    if results:
        matter["model-index"] = [{"name": card.name, "results": results}]
    return matter


def _score_table(scores: Sequence[SetScore]) -> str:
    if not scores:
        return "None yet: `tformer eval` before the export puts them here."
    rows = [
        f"| {score.test_set} | {score.name} | {score.score:.2f} | {score.num_sentences:,} "
        f"| `{score.signature}` |"
        for score in scores
    ]
    head = "| Test set | Metric | Score | Sentences | sacrebleu signature |\n|---|---|---|---|---|"
    return "\n".join([head, *rows]) + "\n\nComputed with tformer's own translations."


def _config_yaml(trained: TrainedModel) -> str:
    plain = as_plain(trained.config)
    shown = {key: plain[key] for key in ("seed", "tokenizer", "model", "training", "decoding")}
    if (pretrained := trained.config.training.init_from) is not None:
        # Paths of this machine stay private.
        shown["training"]["init_from"] = pretrained.name
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None)
