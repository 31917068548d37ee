"""The root of the tree, and `evaluation`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from tformer_cli.config.schema.data import PARALLEL_FILTERS, DataConfig
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.fields import CountOrZero, Seed
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    MaskedEncoderConfig,
    ModelConfig,
)
from tformer_cli.config.schema.text import PlainText
from tformer_cli.config.schema.tokenizer import (
    ImportedTokenizerConfig,
    SubwordConfig,
    TokenizerConfig,
)
from tformer_cli.config.schema.training import (
    BpeDropoutConfig,
    RDropConfig,
    SimCutConfig,
    TrainingConfig,
)
from tformer_cli.errors import Problem

# Keys without effect on a masked encoder.
OF_TRANSLATIONS = (
    "training.validation_decoding",
    "training.sample_translations",
    "decoding",
    "evaluation",
)
# Stacks of each kind of network.
STACKS = {
    "encoder_decoder": ("encoder", "decoder"),
    "decoder_only": ("stream",),
    "masked_encoder": ("encoder",),
}

BleuTokenizer = Literal[
    "auto", "13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab", "spm", "flores200"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class BleuConfig:
    """BLEU options of sacrebleu; its signature states them."""

    tokenize: BleuTokenizer = "auto"
    """sacrebleu's tokenizer; auto is zh, ja-mecab or ko-mecab by the target language, else 13a."""
    lowercase: bool = False
    """Case-insensitive BLEU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChrfConfig:
    """chrF options of sacrebleu."""

    word_order: CountOrZero = 0
    """Maximum word n-gram order in addition to characters; 2 is chrF++."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Metrics."""

    bleu: BleuConfig = field(default_factory=BleuConfig)
    """BLEU (Papineni et al. 2002)."""
    chrf: ChrfConfig = field(default_factory=ChrfConfig)
    """chrF (Popović 2015)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The configuration of a run."""

    seed: Seed = 1
    """Random seed of initialization, data order, dropout and masking."""
    data: DataConfig
    """Data."""
    tokenizer: TokenizerConfig = field(default_factory=SubwordConfig)
    """Tokenization."""
    model: ModelConfig = field(default_factory=EncoderDecoderConfig)
    """Network."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Training."""
    decoding: DecodingConfig = field(default_factory=BeamConfig)
    """Search."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Metrics."""

    def conflicts(self) -> Iterator[Problem]:
        if self.model.tie_embeddings in ("inputs", "all") and not self.tokenizer.shared:
            yield Problem(
                "model.tie_embeddings",
                "source and target embeddings can be tied only with tokenizer.shared: true",
                remedy="write tie_embeddings: output, or share the vocabulary",
            )
        if self.model.kind == "decoder_only" and not self.tokenizer.shared:
            yield Problem(
                "tokenizer.shared",
                "must be true with model.kind decoder_only, which has a single vocabulary",
            )
        marks = "tokens" if self.tokenizer.kind == "m2m" else "tags"
        if self.data.language_marks != marks:
            what = f"must be {marks} with tokenizer.kind {self.tokenizer.kind}"
            yield Problem("data.language_marks", what, self.data.language_marks)
        yield from self._conflicts_of_positions()
        yield from self._conflicts_of_consistency()
        yield from self._conflicts_of_both_directions()
        yield from self._conflicts_of_noise()
        yield from self._conflicts_of_freezing()
        for key in ("subword_sampling", "source_noise", "bidirectional_steps"):
            if self.data.prefixes and getattr(self.training, key) is not None:
                what = "must be null with data.prefixes, which it would change"
                yield Problem(f"training.{key}", what)
        if self.training.batch_tokens <= self.data.max_length:
            yield Problem(
                "training.batch_tokens",
                f"must be above {self.data.max_length}, which is data.filters.max_length with "
                "tags, or a long sentence fits no batch",
            )
        if self._lowercases_target() and self._searches() and not self.evaluation.bleu.lowercase:
            yield Problem(
                "evaluation.bleu.lowercase",
                "must be true, since this tokenizer lowercases the target",
            )
        if isinstance(self.model, MaskedEncoderConfig):
            yield from self._conflicts_of_masking()
        else:
            yield from self._conflicts_of_translation()

    def _lowercases_target(self) -> bool:
        tokenizer = self.tokenizer
        if isinstance(tokenizer, ImportedTokenizerConfig):
            return False
        return tokenizer.kind == "word" or tokenizer.lowercase in ("target", "both")

    def _searches(self) -> dict[str, DecodingConfig]:
        """Return the searches by key path; a masked encoder has none."""
        if isinstance(self.model, MaskedEncoderConfig):
            return {}
        return {
            "decoding": self.decoding,
            "training.validation_decoding": self.training.validation_decoding,
        }

    def _conflicts_of_translation(self) -> Iterator[Problem]:
        for key, text in self.data.texts().items():
            if isinstance(text, PlainText):
                yield Problem(
                    f"data.{key}",
                    f"must be a parallel text with model.kind {self.model.kind}",
                    "text",
                    "write {source: FILE, target: FILE}",
                )

    def _conflicts_of_masking(self) -> Iterator[Problem]:
        for key, text in self.data.texts().items():
            if not isinstance(text, PlainText):
                yield Problem(
                    f"data.{key}",
                    "must be a monolingual text with model.kind masked_encoder",
                    "source and target",
                    "remove it" if key.startswith("test.") else "write {text: FILE}",
                )
        if not self.tokenizer.shared:
            yield Problem(
                "tokenizer.shared",
                "must be true with model.kind masked_encoder, whose text is monolingual",
            )
        for key in PARALLEL_FILTERS:
            if getattr(self.data.filters, key) is not None:
                yield Problem(
                    f"data.filters.{key}",
                    "must be null with model.kind masked_encoder, whose text is monolingual",
                )
        if self.training.selection_metric != "loss":
            yield Problem(
                "training.selection_metric",
                "must be loss with model.kind masked_encoder, which does not translate",
            )
        default = Config(data=self.data)
        for key in OF_TRANSLATIONS:
            value = attrgetter(key)
            if value(self) != value(default):
                yield Problem(
                    key, "must be left out with model.kind masked_encoder, which does not translate"
                )

    def _conflicts_of_consistency(self) -> Iterator[Problem]:
        consistency = self.training.consistency
        if isinstance(consistency, RDropConfig) and not any(self.model.dropouts):
            yield Problem(
                "training.consistency",
                "needs dropout, without which two passes are one",
                "r_drop",
                "raise model.dropout, or write {kind: simcut}",
            )
        if isinstance(consistency, SimCutConfig) and self.model.kind == "masked_encoder":
            yield Problem(
                "training.consistency",
                "cuts a source and a target, and a masked_encoder has none",
                "simcut",
                "write {kind: r_drop}, or null",
            )

    def _conflicts_of_noise(self) -> Iterator[Problem]:
        sampling, tokenizer = self.training.subword_sampling, self.tokenizer
        if sampling is not None:
            algorithm = "bpe" if isinstance(sampling, BpeDropoutConfig) else "unigram"
            own = tokenizer.algorithm if tokenizer.kind == "subword" else f"kind {tokenizer.kind}"
            if own != algorithm:
                yield Problem(
                    "training.subword_sampling",
                    f"needs tokenizer.kind subword with algorithm {algorithm}",
                    own,
                    "change one of them, or write null",
                )
        if self.model.kind == "masked_encoder":
            for key in ("subword_sampling", "source_noise"):
                if getattr(self.training, key) is not None:
                    what = "changes sentence pairs, and a masked_encoder has none"
                    yield Problem(f"training.{key}", what, remedy="write null")

    def _conflicts_of_freezing(self) -> Iterator[Problem]:
        parts = ["embeddings", *STACKS[self.model.kind]]
        model = self.model
        has_bias = isinstance(model, EncoderDecoderConfig) and model.trains_output_bias
        if model.tie_embeddings in ("none", "inputs") or has_bias:
            parts.append("output")
        frozen = self.training.freeze
        for index, part in enumerate(frozen):
            if part not in parts:
                what = f"has no weights of its own with model.kind {self.model.kind}"
                if part == "output":
                    what += f" and tie_embeddings {self.model.tie_embeddings}"
                remedy = f"choose from: {', '.join(parts)}"
                yield Problem(f"training.freeze.{index}", what, remedy=remedy)
        if {*parts} <= {*frozen}:
            what = "leaves no weight to train"
            yield Problem("training.freeze", what, ", ".join(frozen), "leave a part out")
        first, tags = self.training.tags_first, self.data.tags
        for index, name in enumerate(first.tags if first else ()):
            if name not in tags:
                remedy = f"choose from: {', '.join(tags)}" if tags else "leave tags_first out"
                where = f"training.tags_first.tags.{index}"
                yield Problem(where, "no training text has this tag", name, remedy)

    def _conflicts_of_both_directions(self) -> Iterator[Problem]:
        if self.training.bidirectional_steps is None:
            return
        if not self.tokenizer.shared:
            yield Problem(
                "training.bidirectional_steps",
                "needs tokenizer.shared: true, since each language is source and target",
                remedy="share the vocabulary, or write null",
            )
        if len(self.data.targets) > 1 or self.data.language_marks == "tokens":
            yield Problem(
                "training.bidirectional_steps",
                "must be null with several target languages, whose tags are of one direction",
                remedy="name each text in both directions",
            )
        elif len(self.data.directions) > 1:
            yield Problem(
                "training.bidirectional_steps",
                "must be null with several source languages, which no tag names as targets",
                ", ".join(source for source, _ in self.data.directions),
                "name each text in both directions",
            )
        if self.model.kind == "masked_encoder":
            yield Problem(
                "training.bidirectional_steps",
                "must be null with model.kind masked_encoder, which has no direction",
            )

    def _conflicts_of_positions(self) -> Iterator[Problem]:
        positions, longest = self.model.positions, self.model.max_length
        if not isinstance(positions, LearnedPositions) or longest is None:
            return
        needed = self.data.max_length + 1
        if longest < needed:
            what = f"must be at least {needed}, which is data.filters.max_length with tags + 1"
            if longest < positions.max_length:
                what = (
                    f"must be at least {2 * needed}, "
                    "which is twice data.filters.max_length with tags + 1"
                )
            yield Problem("model.positions.max_length", what)
        for key, search in self._searches().items():
            yield from search.conflicts_of_positions(longest, f"{key}.")
