"""Ids of special tokens, and the vocabulary of word and character tokenizers."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tformer_cli.config.schema.data import MAX_TAGS
from tformer_cli.errors import CheckpointError, UsageError
from tformer_cli.storage.atomic import parse_json

PAD_ID, UNK_ID, BOS_ID, EOS_ID, MASK_ID, SEP_ID = range(6)
# First decoder input by kind of network; a masked encoder ignores it.
DECODER_START_IDS = {
    "encoder_decoder": BOS_ID,
    "decoder_only": SEP_ID,
    "masked_encoder": BOS_ID,
}
FIRST_TAG_ID = 6
NUM_SPECIAL = FIRST_TAG_ID + MAX_TAGS
SPECIAL_TOKENS = (
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "<mask>",
    "<sep>",
    *(f"<tag_{i}>" for i in range(FIRST_TAG_ID, NUM_SPECIAL)),
)
# Special ids that no translation contains.
SUPPRESSED_IDS = tuple(i for i in range(NUM_SPECIAL) if i != EOS_ID)

TRAIN_AGAIN = "restore the file, or train again"


def with_eos(ids: Sequence[int]) -> list[int]:
    """Add EOS to the ids of a source, with which every model was trained.

    An empty source stays empty: it is not translated.
    """
    return [*ids, EOS_ID] if ids else []


def tag_ids(names: Sequence[str], known: Sequence[str]) -> tuple[int, ...]:
    """Return the reserved ids of tags; those that a model knows have them in order.

    Raises:
        UsageError: the model does not know a tag.
    """
    for name in names:
        if name not in known:
            what = "no training text has this tag"
            remedy = f"choose from: {', '.join(known)}" if known else "leave it out"
            raise UsageError("`tags`", what, got=name, remedy=remedy)
    return tuple(FIRST_TAG_ID + known.index(name) for name in names)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens of a word or character tokenizer by id; all differ, the special ones come first.

    Text never gets a special id: a word spelled like a special token is unknown.
    """

    tokens: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tokens[:NUM_SPECIAL] != SPECIAL_TOKENS:
            raise ValueError("the special tokens must come first")
        ids = {token: i for i, token in enumerate(self.tokens)}
        if len(ids) < len(self.tokens):
            duplicate = next(token for i, token in enumerate(self.tokens) if ids[token] != i)
            raise ValueError(f"the token {duplicate!r} is there twice")
        for token in SPECIAL_TOKENS:
            del ids[token]
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def of(cls, words: Iterable[str]) -> "Vocabulary":
        """Return the vocabulary of the special tokens, then `words` in order."""
        return cls(SPECIAL_TOKENS + tuple(word for word in words if word not in SPECIAL_TOKENS))

    def __len__(self) -> int:
        return len(self.tokens)

    def id_of(self, word: str) -> int:
        """Return the id of a word of text, `UNK_ID` if it has none."""
        return self._ids.get(word, UNK_ID)

    def to_json(self) -> bytes:
        """Return the content of a vocabulary file: a JSON list in UTF-8, one token a line."""
        lines = ",\n".join(json.dumps(token, ensure_ascii=False) for token in self.tokens)
        return f"[\n{lines}\n]\n".encode()

    @classmethod
    def from_json(cls, content: bytes, name: str) -> "Vocabulary":
        """Parse the content of the file `name`; raise CheckpointError if it is no vocabulary."""
        try:
            tokens = parse_json(content.decode("utf-8"))
            if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
                raise ValueError("something other than a list of strings")
            return cls(tuple(tokens))
        except ValueError as error:
            raise CheckpointError(
                name,
                "is not a vocabulary",
                got=str(error),
                remedy=TRAIN_AGAIN,
            ) from None
