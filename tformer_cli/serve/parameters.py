"""Fields of a request to /api/translate: the table that checks them, and that documents them."""

from typing import Any, get_args

from tformer_cli.choices import Utility
from tformer_cli.config.schema.text import Direction
from tformer_cli.errors import Problem
from tformer_cli.serve.model import ServedModel
from tformer_cli.serve.queue import JobOptions, TranslationJob
from tformer_cli.serve.refusal import Unprocessable
from tformer_cli.serve.schema import Schema, problems
from tformer_cli.serve.service import Limits, Service
from tformer_cli.text.spans import PATTERNS
from tformer_cli.translate.options import MBR, SearchOptions, resolve_num_hypotheses
from tformer_cli.translate.preprocess import InputLine

# Characters of an override, overrides, and characters of a term: to read a config and to look for
# terms takes time beyond that of the translation.
MAX_SETTING = 200
MAX_SETTINGS = 32
MAX_TERM = 200
# Phrases that are banned, or required in a text, each of which takes time in every step; and tags.
MAX_PHRASES = 100
MAX_REQUEST_TAGS = 32


def texts_of(schema: Schema, **limits: int) -> dict[str, Any]:
    """Return the schema of a list of what another schema describes."""
    return {"type": "array", "items": schema, **limits}


def text_or_texts(limits: Limits) -> dict[str, Any]:
    """Return the schema of what is translated."""
    text = {"type": "string", "maxLength": limits.max_characters}
    texts = texts_of(text, minItems=1, maxItems=limits.max_texts)
    return texts | text | {"type": ["string", "array"]}


def request_schema(limits: Limits) -> dict[str, Any]:
    """Return the schema of a body; options have the names of those of `tformer translate`."""
    word: dict[str, Any] = {"type": "string"}
    text = {"type": "string", "maxLength": limits.max_characters}
    term = {"type": "string", "maxLength": MAX_TERM}
    count = {"type": "integer", "minimum": 1, "maximum": limits.max_candidates}
    described: dict[str, tuple[str, dict[str, Any]]] = {
        "text": (
            "A text, or a list of texts. A line break counts as a space.",
            text_or_texts(limits),
        ),
        "model": ("Name of a model; needed where there are several and no language.", word),
        "source": ("Language of the text: chooses the first model of it.", word),
        "target": ("Language of the translation: chooses the first model of it.", word),
        "beam": ("Beam size; 1 is greedy search. Default: the run's.", count),
        "length_penalty": (
            "Exponent A of score = log probability / length ** A. Default: the run's.",
            {"type": "number", "minimum": 0, "maximum": 10},
        ),
        "set": (
            "Overrides of keys of the run's search: decoding.KEY=VALUE.",
            texts_of({"type": "string", "maxLength": MAX_SETTING}, maxItems=MAX_SETTINGS),
        ),
        "mbr": (
            "Minimum Bayes risk decoding with this utility.",
            {"type": "string", "enum": list(get_args(Utility))},
        ),
        "candidates": ("Candidates of mbr. Default: the beam size, or 32 samples.", count),
        "nbest": ("Translations of each text, best first. Default: 1.", count),
        "alignments": ("Whether to add tokens, words and their alignments.", {"type": "boolean"}),
        "defects": (
            "Whether to name what is wrong with each translation, such as lost numbers; repair and "
            "keep name it too.",
            {"type": "boolean"},
        ),
        "repair": (
            "Whether to translate again by other means what has defects; for an nbest of 1.",
            {"type": "boolean"},
        ),
        "keep": (
            "What each translation keeps unchanged; for an nbest of 1.",
            texts_of({"type": "string", "enum": list(PATTERNS)}, maxItems=len(PATTERNS)),
        ),
        "stream": (
            "Whether to send events: drafts as the translations grow, then the answer.",
            {"type": "boolean"},
        ),
        "prefixes": (
            "Forced beginning of each translation.",
            texts_of(text, maxItems=limits.max_texts),
        ),
        "tag": (
            "Tags of the training text that each source begins with.",
            texts_of(word, maxItems=MAX_REQUEST_TAGS),
        ),
        "ban": (
            "Words and phrases that no translation contains.",
            texts_of(text, maxItems=MAX_PHRASES),
        ),
        "constraints": (
            "Required phrases of each text. A text that is split can have none.",
            texts_of(texts_of(text, maxItems=MAX_PHRASES), maxItems=limits.max_texts),
        ),
        "terminology": (
            "Target terms by source terms; each is required where a text has its source term.",
            {"type": "object", "additionalProperties": term, "propertyNames": term},
        ),
    }
    return {
        "type": "object",
        "required": ["text"],
        "additionalProperties": False,
        "properties": {
            name: {"description": words, **schema} for name, (words, schema) in described.items()
        },
    }


def check_fields(fields: dict[str, Any], schema: Schema) -> None:
    """Refuse fields that break a schema, or lists that are not as long as that of the texts.

    Raises:
        Unprocessable: what is wrong.
    """
    broken = problems(fields, schema)
    if not broken:
        count = 1 if isinstance(fields["text"], str) else len(fields["text"])
        broken = [
            Problem(name, "must have an item for each text", got=f"{len(fields[name])} and {count}")
            for name in ("prefixes", "constraints")
            if name in fields and len(fields[name]) != count
        ]
        if "candidates" in fields and "mbr" not in fields:
            what, got = "has no effect without mbr", str(fields["candidates"])
            broken.append(Problem("candidates", what, got=got, remedy="add mbr=chrf"))
    if broken:
        raise Unprocessable(broken)


def job_of(
    fields: dict[str, Any], model: ServedModel, direction: Direction, service: Service
) -> TranslationJob:
    """Return the job of checked fields in a direction of a model.

    Raises:
        TformerError: the search is invalid, or takes far longer than that of the run.
    """
    has_phrases = any(fields.get("constraints", ()))
    terms = fields.get("terminology", {})
    requiring = "`required`" if has_phrases else "`terminology`" if terms else None
    changes = SearchOptions(
        fields.get("beam"), fields.get("length_penalty"), tuple(fields.get("set", ()))
    )
    decoding = model.resolve_search(changes, requiring)
    mbr = MBR(fields["mbr"], fields.get("candidates")) if "mbr" in fields else None
    count = fields.get("nbest", 1)
    service.check_search(decoding, resolve_num_hypotheses(decoding, count, mbr), model)
    texts = [fields["text"]] if isinstance(fields["text"], str) else fields["text"]
    prefixes = fields.get("prefixes", [""] * len(texts))
    phrases = fields.get("constraints", [()] * len(texts))
    options = JobOptions(
        decoding,
        direction,
        count,
        terminology=tuple(f"{source}\t{target}" for source, target in terms.items()),
        has_phrases=has_phrases,
        drafted=fields.get("stream", False),
        inspected=any(fields.get(name) for name in ("defects", "repair", "keep")),
        others={
            "mbr": mbr,
            "tags": fields.get("tag", ()),
            "banned": fields.get("ban", ()),
            "aligned": fields.get("alignments", False),
            "repair": fields.get("repair", False),
            "keep": fields.get("keep", ()),
        },
    )
    return TranslationJob(list(map(InputLine, texts, prefixes, phrases)), options)
