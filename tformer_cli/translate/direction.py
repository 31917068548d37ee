"""From which language to which a model translates, and what tells the model."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tformer_cli.config.schema.data import DataConfig, target_token
from tformer_cli.config.schema.text import Direction
from tformer_cli.errors import UsageError
from tformer_cli.text.m2m import M2MTokenizer
from tformer_cli.text.tokenizer import Tokenizers


@dataclass(frozen=True, slots=True)
class TranslationDirection:
    """The languages of a translation by a model.

    Attributes:
        data: of the model's config.
        tokenizers: of the model.
        languages: source and target language.
        to: target language that was chosen, if any.
        source: source language that was chosen, if any.
    """

    data: DataConfig = field(compare=False)
    tokenizers: Tokenizers = field(compare=False)
    languages: Direction
    to: str | None = None
    source: str | None = None

    @classmethod
    def first(cls, data: DataConfig, tokenizers: Tokenizers) -> Self:
        """Return the direction of a model, or of several its first, which is not chosen yet."""
        return cls(data, tokenizers, data.direction_into(data.targets[0]))

    @property
    def targets(self) -> Sequence[str]:
        """The target languages of the model."""
        target = self.tokenizers.target
        return tuple(target.languages) if isinstance(target, M2MTokenizer) else self.data.targets

    def into(self, to: str | None, source: str | None = None) -> Self:
        """Return the direction into a target language; None for the one at present.

        The source language is by default one that was chosen before, unless that is the target; or
        that of all training texts into it, or of `data` if they have several.

        Raises:
            UsageError: one of them is no language of the model.
        """
        if to is not None and to not in self.targets:
            what = "is no target language of the model"
            raise UsageError("`to`", what, got=to, remedy=_choose_from(self.targets))
        target = to or self.languages[1]
        own, _ = self.data.direction_into(target)
        is_known = source is None or source in self.targets
        if isinstance(self.tokenizers.source, M2MTokenizer) and not is_known:
            what, remedy = "is no source language of the model", _choose_from(self.targets)
            raise UsageError("`source_language`", what, got=source, remedy=remedy)
        before = self.source if self.source != target else None
        languages = (source or before or own, target)
        return replace(self, languages=languages, to=to or self.to, source=source or self.source)

    def start_of_source(self, tags: Sequence[str] = ()) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the ids that each source begins with, and the tags behind them.

        Raises:
            UsageError: the model has several target languages, and none is chosen, or one by a tag.
        """
        ids, _ = self.tokenizers.language_ids(self.languages)
        if self.data.prefixes is not None:
            prefix = self.data.prefixes[self.languages[1]]
            ids = (*ids, *self.tokenizers.source.encode(prefix))
        if ids or len(self.targets) < 2:
            return ids, tuple(tags)
        if self.to is None:
            what = "is required, since the model has several target languages"
            raise UsageError("`to`", what, remedy=_choose_from(self.targets))
        tokens = set(map(target_token, self.targets))
        if others := [name for name in tags if name in tokens]:
            what, got = "is the tag of a target language", ", ".join(others)
            remedy = "leave it out, since `to` chooses the language"
            raise UsageError("`tags`", what, got=got, remedy=remedy)
        return ids, (target_token(self.to), *tags)

    @property
    def target_ids(self) -> tuple[int, ...]:
        """The ids that each translation begins with: the token of its language, or none."""
        _, ids = self.tokenizers.language_ids(self.languages)
        return ids


def _choose_from(languages: Sequence[str]) -> str:
    return f"choose from: {', '.join(languages)}"
