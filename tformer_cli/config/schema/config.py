"""The whole tree."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.config.schema.evaluation import EvaluationConfig
from tformer_cli.config.schema.limits import Conflict, CountOrZero
from tformer_cli.config.schema.model import EncoderDecoderConfig, LearnedPositions, ModelConfig
from tformer_cli.config.schema.tokenizer import SubwordConfig, TokenizerConfig
from tformer_cli.config.schema.training import TrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that decides a run."""

    seed: CountOrZero = 1
    """Seed of the weights, the order of the data and dropout."""
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
        if self.model.tie == "all" and not self.tokenizer.shared:
            yield Conflict(
                "model.tie",
                "source and target embeddings can be tied only with tokenizer.shared: true",
                "all",
                "write tie: output, or share the vocabulary",
            )
        positions = self.model.positions
        if isinstance(positions, LearnedPositions):
            longest = self.data.filters.max_length + 1
            if positions.max_length < longest:
                yield Conflict(
                    "model.positions.max_length",
                    f"must be at least data.filters.max_length + 1 ({longest})",
                    str(positions.max_length),
                )
            for key, search in (
                ("decoding", self.decoding),
                ("training.validation_decoding", self.training.validation_decoding),
            ):
                if search.max_length > positions.max_length:
                    yield Conflict(
                        f"{key}.max_length",
                        f"must be at most model.positions.max_length ({positions.max_length})",
                        str(search.max_length),
                    )
        if self.training.batch_tokens <= self.data.filters.max_length:
            yield Conflict(
                "training.batch_tokens",
                f"must be above data.filters.max_length ({self.data.filters.max_length}), "
                "or a long sentence fits no batch",
                str(self.training.batch_tokens),
            )
        lowercased = self.tokenizer.kind == "word" or self.tokenizer.lowercase in ("target", "both")
        if lowercased and not self.evaluation.bleu.lowercase:
            yield Conflict(
                "evaluation.bleu.lowercase",
                "must be true, for this tokenizer lower-cases what the model writes",
                "false",
            )
