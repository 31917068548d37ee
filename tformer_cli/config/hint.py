"""What a user may have meant: near keys, words of other toolkits and of other languages."""

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

NULL_WORDS = frozenset({"none", "nil", "no", "off", "false"})
"""Words for null in other languages than YAML."""

BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), "write true"),
    **dict.fromkeys(("false", "no", "off", "0"), "write false"),
}
"""What to write instead of other words for true and false."""

# Names that other toolkits use for our keys.
_SYNONYMS = {
    "beam": "beam_size",
    "num_beams": "beam_size",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
    "batch_size": "batch_tokens",
    "max_tokens": "batch_tokens",
    "update_freq": "gradient_accumulation_steps",
    "train_steps": "max_steps",
    "d_model": "dim",
    "hidden_size": "dim",
    "heads": "num_heads",
    "num_attention_heads": "num_heads",
    "ffn_dim": "feedforward_dim",
    "d_ff": "feedforward_dim",
    "src": "source",
    "tgt": "target",
    "trg": "target",
}


def our_key(key: str) -> str:
    """Return our name for a key that may be another toolkit's."""
    return _SYNONYMS.get(key, key)


def same_key(key: str, paths: Iterable[str]) -> str | None:
    """Ask about the key path that ends in our name for a key of another toolkit, if one does."""
    ours = _SYNONYMS.get(key)
    return next(
        (f"did you mean {path}?" for path in paths if path.rpartition(".")[2] == ours), None
    )


def did_you_mean(text: str, choices: Iterable[str]) -> str | None:
    """Ask about the choice whose last key is most like a text, if one is; case does not count."""
    paths = {path.rpartition(".")[2].lower(): path for path in choices}
    close = difflib.get_close_matches(text.lower(), paths, n=1)
    return f"did you mean {paths[close[0]]}?" if close else None


def kind_with(word: str, kinds: Mapping[str, Any]) -> str | None:
    """Return what to write for a word that is no kind, but a choice of a key that one kind has."""
    for kind, cls in kinds.items():
        for key, hint in typing.get_type_hints(cls).items():
            is_choice = typing.get_origin(hint) is Literal and key != "kind"
            if is_choice and word.lower() in typing.get_args(hint):
                return f"write {{kind: {kind}, {key}: {word.lower()}}}"
    return None
