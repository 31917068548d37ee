"""Tokenizer of imported M2M-100, NLLB and mBART-50 models, whose languages are tokens."""

import base64
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import parse_json
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, MASK_ID, NUM_SPECIAL, PAD_ID, UNK_ID
from tformer_cli.text.subword import IMPORT_AGAIN, MarianTokenizer, imported_file, without_pieces

# Our ids of the special tokens that these models have; the first four come first there.
M2M_IDS = {"<s>": BOS_ID, "<pad>": PAD_ID, "</s>": EOS_ID, "<unk>": UNK_ID, "<mask>": MASK_ID}
# Name of an embedding row that has no token.
UNUSED = "<unused_{}>"


class M2MTokenizer(MarianTokenizer):
    """Subwords as Marian's, with a token for each language and none of its codes in text.

    Attributes:
        vocabulary: tokens in the order of the imported model, special ones included.
        languages: the id of the token of each language.
    """

    kind: ClassVar = "m2m"
    vocabulary: tuple[str, ...]
    language_tokens: dict[str, str]

    def __init__(self, content: bytes, normalizer: Normalizer, *, name: str) -> None:
        """Parse the content of `m2m_file`; raise CheckpointError for another file."""
        super().__init__(content, normalizer, name=name)
        ids = {token: i for i, token in enumerate(self.pieces, start=NUM_SPECIAL)}
        self.languages = {name: ids[token] for name, token in self.language_tokens.items()}
        unused = (UNUSED.format(i) for i in range(len(self.vocabulary)))
        self._silent = {*self.languages.values(), *(ids[token] for token in unused if token in ids)}

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([i for i in ids if i not in self._silent])

    def to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        pairs = zip(ids, super().to_bytes(ids), strict=True)
        return [b"" if i in self._silent else content for i, content in pairs]

    def trimmed(self, ids: Sequence[int]) -> "M2MTokenizer":
        """Return the tokenizer that has only some pieces, and all languages."""
        kept = {*self.tokens(ids), *M2M_IDS, *self.language_tokens.values()}
        own = (self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size()))
        dropped = {*self.pieces} - kept
        model = without_pieces(self.model, [piece not in dropped for piece in own])
        vocabulary = [token for token in self.vocabulary if token in kept]
        content = m2m_file(model, vocabulary, self.language_tokens)
        return M2MTokenizer(content, self.normalizer, name="the trimmed vocabulary")

    @property
    def start_id(self) -> int:
        """The id that translations begin after."""
        return EOS_ID

    def subwords(self) -> dict[str, int]:
        """Return the id of each token of the imported model before its languages."""
        first = min(map(self.vocabulary.index, self.language_tokens.values()))
        return {token: i for i, token in enumerate(self.vocabulary[:first])}

    def _split(self, line: str) -> tuple[str, str]:
        return "", line

    def _parse(self, content: bytes, name: str) -> tuple[bytes, tuple[str, ...]]:
        try:
            parsed = parse_json(content)
            model = base64.b64decode(parsed["sentencepiece"], validate=True)
            self.vocabulary = tuple(map(str, parsed["tokens"]))
            self.language_tokens = {str(x): str(token) for x, token in parsed["languages"].items()}
            if not {*self.language_tokens.values()} <= {*self.vocabulary}:
                raise ValueError("a language without a token")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = "is not the vocabulary of an M2M-100, NLLB or mBART model"
            raise CheckpointError(name, what, got=repr(error), remedy=IMPORT_AGAIN) from None
        return model, tuple(token for token in self.vocabulary if token not in M2M_IDS)


def m2m_file(model: bytes, tokens: Sequence[str], languages: Mapping[str, str]) -> bytes:
    """Return the content of the tokenizer file.

    Args:
        model: of sentencepiece.
        tokens: all tokens, in the order of the imported model.
        languages: the token of each language.
    """
    return imported_file(model, languages=dict(languages), tokens=list(tokens))
