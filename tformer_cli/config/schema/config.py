"""The whole tree."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from operator import attrgetter

from tformer_cli.config.schema.data import DataConfig, ParallelText, PlainText
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.evaluation import EvaluationConfig
from tformer_cli.config.schema.limits import Conflict, Seed
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    MaskedEncoderConfig,
    ModelConfig,
)
from tformer_cli.config.schema.positions import LearnedPositions
from tformer_cli.config.schema.tokenizer import SubwordConfig, TokenizerConfig
from tformer_cli.config.schema.training import TrainingConfig

# What has no effect where nothing is translated.
OF_TRANSLATIONS = (
    "training.validation_decoding",
    "training.sample_translations",
    "decoding",
    "evaluation",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that decides a run."""

    seed: Seed = 1
    """Seed of the weights, the order of the data, dropout and masks."""
    data: DataConfig
    """The text."""
    tokenizer: TokenizerConfig = field(default_factory=SubwordConfig)
    """How text becomes tokens."""
    model: ModelConfig = field(default_factory=EncoderDecoderConfig)
    """The network."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """The training loop."""
    decoding: DecodingConfig = field(default_factory=BeamConfig)
    """How translations are searched for."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """The scores."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.model.tie_embeddings == "all" and not self.tokenizer.shared:
            yield Conflict(
                "model.tie_embeddings",
                "source and target embeddings can be tied only with tokenizer.shared: true",
                "all",
                "write tie_embeddings: output, or share the vocabulary",
            )
        if self.model.kind == "decoder_only" and not self.tokenizer.shared:
            yield Conflict(
                "tokenizer.shared",
                "must be true with model.kind decoder_only, whose source and target are one stream",
                "false",
            )
        yield from self._conflicts_of_positions()
        if self.training.batch_tokens <= self.data.filters.max_length:
            yield Conflict(
                "training.batch_tokens",
                f"must be above data.filters.max_length ({self.data.filters.max_length}), "
                "or a long sentence fits no batch",
                str(self.training.batch_tokens),
            )
        if self._lowercases_target() and self._searches() and not self.evaluation.bleu.lowercase:
            yield Conflict(
                "evaluation.bleu.lowercase",
                "must be true, for this tokenizer lower-cases what the model writes",
                "false",
            )
        if isinstance(self.model, MaskedEncoderConfig):
            yield from self._conflicts_of_masking()
        else:
            yield from self._conflicts_of_translation()

    def _lowercases_target(self) -> bool:
        tokenizer = self.tokenizer
        if tokenizer.kind == "marian":
            return False
        return tokenizer.kind == "word" or tokenizer.lowercase in ("target", "both")

    def _searches(self) -> dict[str, DecodingConfig]:
        """Return by their keys the searches for translations; a masked encoder has none."""
        if isinstance(self.model, MaskedEncoderConfig):
            return {}
        return {
            "decoding": self.decoding,
            "training.validation_decoding": self.training.validation_decoding,
        }

    def _conflicts_of_translation(self) -> Iterator[Conflict]:
        for key, text in self.data.texts().items():
            if isinstance(text, PlainText):
                yield Conflict(
                    f"data.{key}",
                    f"must be a text and its translation with model.kind {self.model.kind}",
                    "text",
                    "write {source: FILE, target: FILE}",
                )

    def _conflicts_of_masking(self) -> Iterator[Conflict]:
        for key, text in self.data.texts().items():
            if isinstance(text, ParallelText):
                yield Conflict(
                    f"data.{key}",
                    "must be a text alone with model.kind masked_encoder, which does not translate",
                    "source and target",
                    "remove it" if key.startswith("test.") else "write {text: FILE}",
                )
        if not self.tokenizer.shared:
            yield Conflict(
                "tokenizer.shared",
                "must be true with model.kind masked_encoder, whose text has one side",
                "false",
            )
        if self.data.filters.max_ratio is not None:
            yield Conflict(
                "data.filters.max_ratio",
                "must be null with model.kind masked_encoder, whose text has one side",
                f"{self.data.filters.max_ratio:g}",
            )
        if self.training.selection_metric != "loss":
            yield Conflict(
                "training.selection_metric",
                "must be loss with model.kind masked_encoder, which does not translate",
                self.training.selection_metric,
            )
        default = Config(data=self.data)
        for key in OF_TRANSLATIONS:
            value = attrgetter(key)
            if value(self) != value(default):
                yield Conflict(
                    key, "must be left out with model.kind masked_encoder, which does not translate"
                )

    def _conflicts_of_positions(self) -> Iterator[Conflict]:
        positions, longest = self.model.positions, self.model.max_length
        if not isinstance(positions, LearnedPositions) or longest is None:
            return
        needed = self.data.filters.max_length + 1
        if longest < needed:
            what = f"must be at least data.filters.max_length + 1 ({needed})"
            if longest < positions.max_length:
                what = f"must be at least twice data.filters.max_length + 1 ({2 * needed})"
            yield Conflict("model.positions.max_length", what, str(positions.max_length))
        for key, search in self._searches().items():
            for conflict in search.conflicts_of_positions(longest):
                yield replace(conflict, key=f"{key}.{conflict.key}")


def leaves(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every setting of a configuration, or of a part of it, with its key path."""
    if is_dataclass(node):
        parts = [(part.name, getattr(node, part.name)) for part in fields(node)]
    elif isinstance(node, dict):
        parts = list(node.items())
    elif isinstance(node, tuple):
        parts = [(str(index), item) for index, item in enumerate(node)]
    else:
        yield path, node
        return
    for name, value in parts:
        yield from leaves(value, f"{path}.{name}" if path else name)
