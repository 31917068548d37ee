"""The training loop: `training`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tformer_cli.config.schema.decoding import DecodingConfig, GreedyConfig
from tformer_cli.config.schema.limits import (
    Bounds,
    Conflict,
    Count,
    CountOrZero,
    Former,
    PositiveFloat,
    Probability,
)
from tformer_cli.config.schema.optimizer import AdamWConfig, OptimizerConfig
from tformer_cli.config.schema.schedule import CosineSchedule, ScheduleConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """The training loop."""

    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    """How gradients move the weights."""
    schedule: ScheduleConfig = field(default_factory=CosineSchedule)
    """How the learning rate changes over the steps."""
    label_smoothing: Probability = 0.1
    """Share of the target's probability spread over the vocabulary (Szegedy et al. 2016)."""
    clip_norm: PositiveFloat | None = 1.0
    """Largest norm of the gradient; larger ones are scaled down. Null leaves them."""
    batch_tokens: Count = 4096
    """Padded target tokens of one optimiser step, and the same limit for source tokens."""
    gradient_accumulation_steps: Annotated[Count, Former("accumulate")] = 1
    """Cut each batch into this many pieces to save memory; the result is the same, but for masks of
    dropout."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass: less memory, a third more time, same result."""
    max_steps: Count = 20_000
    """Optimiser steps in all."""
    validate_every: Count = 1000
    """Steps between two validations (loss and BLEU)."""
    validation_decoding: DecodingConfig = field(default_factory=GreedyConfig)
    """How the validation text is translated during training."""
    sample_translations: CountOrZero = 3
    """Validation sentences whose translations are shown at each validation."""
    save_every: Count = 1000
    """Steps between two checkpoints; a validation saves one too."""
    keep_checkpoints: Count = 3
    """Newest checkpoints kept."""
    keep_best: Count = 1
    """Best checkpoints kept beside them; `tformer average --best` wants several."""
    selection_metric: Annotated[Literal["bleu", "loss"], Former("select")] = "bleu"
    """What makes a checkpoint better than another: validation BLEU, or validation loss."""
    patience: Count | None = None
    """Stop after this many validations in a row without a better one; null goes on to the end."""
    ema_decay: Annotated[float, Bounds(above=0, below=1)] | None = None
    """Validate and keep a moving average of the weights, this much of it old at each step."""
    report_every: Count = 50
    """Steps between two lines of progress in metrics.jsonl and on a screen without bars."""
    init_from: Annotated[Path | None, Former("initialize_from")] = None
    """A run folder whose tokenizers and last weights this training begins with; an encoder_decoder
    may begin with those of a masked_encoder."""
    log_parameter_norms: Annotated[bool, Former("watch_parts")] = False
    """Report the gradient norm and the relative update of each part of the model as well."""
    tensorboard: bool = False
    """Show metrics.jsonl in TensorBoard too; needs `pip install 'tformer[tensorboard]'`."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of matrix products; auto is bfloat16 on a CUDA GPU or processor that multiplies
    it, float16 on an older GPU, else float32."""

    def validates_at(self, step: int) -> bool:
        """Whether the validation text is looked at after a step."""
        return step == self.max_steps or step % self.validate_every == 0

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is due after a step, whatever interrupts the training."""
        return self.validates_at(step) or step % self.save_every == 0

    def conflicts(self) -> Iterator[Conflict]:
        if self.schedule.warmup_steps > self.max_steps:
            yield Conflict(
                "schedule.warmup_steps",
                f"must be at most training.max_steps ({self.max_steps})",
                str(self.schedule.warmup_steps),
            )
        if self.validate_every > self.max_steps:
            yield Conflict(
                "validate_every",
                f"must be at most training.max_steps ({self.max_steps}), or nothing is validated",
                str(self.validate_every),
            )
