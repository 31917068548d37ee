"""A store on disk of texts alone: without tags, languages, held-out text and sampling."""

from collections.abc import Sequence
from typing import Any

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.config.schema.text import AnyTrainingText
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.store_builder import load_or_build_store
from tformer_cli.text.tokenizer import Tokenizers


def load_or_build(
    texts: Sequence[AnyTrainingText], tokenizers: Tokenizers, filters: FilterConfig, **options: Any
) -> tuple[TokenStore, FilterReport]:
    plain: dict[str, Any] = {
        "first_ids": [((), ())] * len(texts),
        "directions": [("source", "target")] * len(texts),
        "held_out": (),
        "weights_of": lambda num_pairs: [text.weight for text in texts],
    }
    return load_or_build_store(texts, tokenizers, filters, **plain | options)
