"""The vocabulary of word and character tokenizers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import parse_json
from tformer_cli.text.special_tokens import NUM_SPECIAL, SPECIAL_TOKENS, UNK_ID

TRAIN_AGAIN = "restore the file, or train again"


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
