"""Training: `training`, with its optimizer and its learning rate schedule."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tformer_cli.config.schema.decoding import DecodingConfig, GreedyConfig
from tformer_cli.config.schema.fields import (
    MAX_COUNT,
    Bounds,
    Count,
    CountOrZero,
    Former,
    PositiveFloat,
    Probability,
)
from tformer_cli.errors import Problem

# In float32 a smaller one is zero, and so is the denominator of a token that a batch lacks.
Epsilon = Annotated[float, Bounds(ge=1e-38)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    """Adam with decoupled weight decay; norms, biases and embeddings are not decayed."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate, reached at the end of the warm-up."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the first and the second moment."""
    epsilon: Epsilon = 1e-9
    """Added to the denominator."""
    weight_decay: Annotated[float, Bounds(ge=0)] = 0.01
    """Each step subtracts this times the learning rate times the weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamConfig:
    """Adam (Kingma and Ba 2015)."""

    kind: Literal["adam"] = "adam"
    """Adam without weight decay."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate, reached at the end of the warm-up."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the first and the second moment."""
    epsilon: Epsilon = 1e-9
    """Added to the denominator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MuonConfig:
    """Muon (Jordan et al. 2024) for the matrices of layers, AdamW for all other parameters."""

    kind: Literal["muon"] = "muon"
    """Orthogonalized momentum for the matrices of layers, AdamW for all other parameters."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate, reached at the end of the warm-up; a value tuned for AdamW works."""
    momentum: Probability = 0.95
    """Momentum of the matrices."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the two moments of all other parameters."""
    epsilon: Epsilon = 1e-9
    """Added to the denominator for all other parameters."""
    weight_decay: Annotated[float, Bounds(ge=0)] = 0.01
    """Each step subtracts this times the learning rate times the matrix."""


OptimizerConfig = AdamWConfig | AdamConfig | MuonConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineSchedule:
    """Half a cosine from the peak down (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    """Cosine decay from the peak to `final_ratio` of it at `max_steps`."""
    warmup_steps: CountOrZero = 400
    """Steps of linear warm-up to the peak."""
    final_ratio: Annotated[float, Bounds(ge=0, le=1)] = 0.01
    """Final learning rate as a fraction of the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearSchedule:
    """A straight line from the peak down."""

    kind: Literal["linear"] = "linear"
    """Linear decay from the peak to `final_ratio` of it at `max_steps`."""
    warmup_steps: CountOrZero = 400
    """Steps of linear warm-up to the peak."""
    final_ratio: Annotated[float, Bounds(ge=0, le=1)] = 0.01
    """Final learning rate as a fraction of the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InverseSquareRootSchedule:
    """Decay with the square root of the step (Vaswani et al. 2017, section 5.3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    """Proportional to 1/sqrt(step) after the warm-up."""
    warmup_steps: Count = 400
    """Steps of linear warm-up to the peak, where the decay starts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSchedule:
    """Step decay."""

    kind: Literal["step"] = "step"
    """Multiplied by `factor` every `step_size` steps after the warm-up."""
    warmup_steps: CountOrZero = 400
    """Steps of linear warm-up to the peak."""
    step_size: Count = 1000
    """Steps between two reductions."""
    factor: Annotated[float, Bounds(gt=0, lt=1)] = 0.5
    """Factor of each reduction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantSchedule:
    """A constant learning rate after the warm-up."""

    kind: Literal["constant"] = "constant"
    """Constant at the peak after the warm-up."""
    warmup_steps: CountOrZero = 400
    """Steps of linear warm-up to the peak."""


ScheduleConfig = (
    CosineSchedule | LinearSchedule | InverseSquareRootSchedule | StepSchedule | ConstantSchedule
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimCutConfig:
    """SimCut (Gao et al. 2022, section 3)."""

    kind: Literal["simcut"] = "simcut"
    """SimCut: predictions from embeddings of which some are cut agree with those from all."""
    weight: PositiveFloat = 3.0
    """Weight of the divergence, KL(whole || cut), beside the loss of the whole sentences."""
    cutoff: Annotated[float, Bounds(gt=0, lt=1)] = 0.05
    """Probability that the embedding of a source or target token is set to zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RDropConfig:
    """R-Drop (Liang et al. 2021, section 2)."""

    kind: Literal["r_drop"] = "r_drop"
    """R-Drop: predictions of two passes, each with its own dropout, agree."""
    weight: PositiveFloat = 5.0
    """Weight of the symmetric divergence beside the sum of both losses (the paper's alpha)."""


ConsistencyConfig = SimCutConfig | RDropConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BpeDropoutConfig:
    """BPE-dropout (Provilkov et al. 2020)."""

    kind: Literal["bpe_dropout"] = "bpe_dropout"
    """BPE-dropout: merges are dropped at random, for tokenizer.algorithm bpe."""
    dropout: Annotated[float, Bounds(gt=0, lt=1)] = 0.1
    """Probability that a merge is dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnigramSamplingConfig:
    """Segmentations by a unigram model (Kudo 2018)."""

    kind: Literal["unigram"] = "unigram"
    """Segmentations drawn by their probability, for tokenizer.algorithm unigram."""
    alpha: PositiveFloat = 0.2
    """Exponent of the probabilities: the smaller, the more segmentations are likely."""


SubwordSamplingConfig = BpeDropoutConfig | UnigramSamplingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceNoiseConfig:
    """Random changes of the tokens of a source (Lample et al. 2018, section 2.3)."""

    drop: Probability = 0.1
    """Probability that a token is dropped; one at least is left."""
    replace: Probability = 0.0
    """Probability that a token is replaced by a random one."""
    swap: CountOrZero = 3
    """Maximum number of positions that a token moves."""

    def conflicts(self) -> Iterator[Problem]:
        if not (self.drop or self.replace or self.swap):
            what = "must be above 0 if drop and replace are 0, or no token is changed"
            yield Problem("swap", what, remedy="raise one of them or leave source_noise out")


@dataclass(frozen=True, kw_only=True, slots=True)
class TagsFirstConfig:
    """First steps that train the embeddings of some tags alone."""

    tags: tuple[str, ...]
    """Tags of training texts, such as `<2es>`, that of the target language `es`."""
    steps: Count
    """Number of these steps. Later ones train all that is not frozen, by an optimizer that starts
    anew."""

    def conflicts(self) -> Iterator[Problem]:
        if not self.tags:
            yield Problem("tags", "needs at least one tag", "an empty list")


# Of a network; `stream` is the stack of a decoder_only one.
ModelPart = Literal["embeddings", "encoder", "decoder", "stream", "output"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """The training loop."""

    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    """Optimizer."""
    schedule: ScheduleConfig = field(default_factory=CosineSchedule)
    """Learning rate schedule."""
    label_smoothing: Probability = 0.1
    """Probability spread over the vocabulary in place of the target (Szegedy et al. 2016)."""
    consistency: ConsistencyConfig | None = None
    """Consistency of two passes over each batch, for small data: it takes twice the time and memory
    of a step. Null for a single pass."""
    bidirectional_steps: Count | None = None
    """BiT (Ding et al. 2021): number of first steps that train on both directions, each pair also
    with source and target swapped; later steps train on the wanted direction alone. The paper takes
    a third of all steps. Null for none."""
    layer_drop: Probability = 0.0
    """LayerDrop: probability that a pass in training skips a layer (Fan et al. 2020); translation
    uses all layers."""
    subword_sampling: SubwordSamplingConfig | None = None
    """Subword sampling: words of both sides segmented anew in each epoch, for small data. Null for
    the segmentations of the tokenizer."""
    source_noise: SourceNoiseConfig | None = None
    """Noise on source tokens, drawn anew in each epoch, for small data. Null for none."""
    clip_norm: PositiveFloat | None = 1.0
    """Maximum gradient norm; larger gradients are scaled down. Null for no clipping."""
    batch_tokens: Count = 4096
    """Maximum padded target tokens of an optimizer step; the same limit holds for source tokens."""
    gradient_accumulation_steps: Annotated[Count, Former("accumulate")] = 1
    """Micro-batches that each batch is split into, to save memory; the result is the same except
    for dropout masks, dropped layers and the tokens that SimCut cuts."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time, same result."""
    max_steps: Count = 20_000
    """Optimizer steps in total."""
    validate_every: Count = 1000
    """Steps between validations (loss and BLEU)."""
    validation_decoding: DecodingConfig = field(default_factory=GreedyConfig)
    """Search used for validation during training."""
    sample_translations: CountOrZero = 3
    """Validation sentences whose translations are shown at each validation."""
    save_every: Count = 1000
    """Steps between checkpoints; each validation saves one too."""
    keep_checkpoints: Count = 3
    """Most recent checkpoints to keep."""
    keep_best: Count = 1
    """Best checkpoints to keep in addition; `tformer average --best` needs several."""
    selection_metric: Annotated[Literal["bleu", "loss"], Former("select")] = "bleu"
    """Validation metric that selects the best checkpoint."""
    patience: Count | None = None
    """Early stopping: stop after this many validations in a row that are no better than the best
    one before; null for never."""
    ema_decay: Annotated[float, Bounds(gt=0, lt=1)] | None = None
    """Validate and keep an exponential moving average of the weights with this decay per step."""
    average_checkpoints: Annotated[int, Bounds(ge=2, le=MAX_COUNT)] | None = None
    """Validate and keep the mean of the weights over this many checkpoints, the newest and those
    before it (Vaswani et al. 2017, section 6.1); null for the newest alone."""
    report_every: Count = 50
    """Steps between reports in metrics.jsonl, and between lines where stderr is no terminal."""
    init_from: Annotated[Path | None, Former("initialize_from")] = None
    """Run folder whose tokenizers and latest weights initialize the training (fine-tuning); an
    encoder_decoder may be initialized from a masked_encoder."""
    freeze: tuple[ModelPart, ...] = ()
    """Parts of the network whose weights stay as they are: a stack without its embeddings, the
    embeddings of all stacks, or the output projection; one tied to embeddings belongs to them."""
    tags_first: TagsFirstConfig | None = None
    """Train the embeddings of some tags first and alone, such as that of a language that a model
    learns in addition. Null for none."""
    log_parameter_norms: Annotated[bool, Former("watch_parts")] = False
    """Also log the gradient norm and the relative update of each part of the model."""
    tensorboard: bool = False
    """Also write metrics for TensorBoard; needs `pip install 'tformer[tensorboard]'`."""
    wandb: bool = False
    """Also send metrics and this config to Weights & Biases, or write them into the run folder if
    the variable WANDB_MODE is `offline`; needs `pip install 'tformer[wandb]'`."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of matrix products; auto is bfloat16 if the GPU or CPU supports it natively,
    float16 on an older GPU, else float32."""

    def validates_at(self, step: int) -> bool:
        """Whether there is a validation after a step."""
        return step == self.max_steps or step % self.validate_every == 0

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is scheduled after a step."""
        return self.validates_at(step) or step % self.save_every == 0

    def is_bidirectional(self, step: int) -> bool:
        """Whether a step, counted from 1, trains on both directions."""
        return self.bidirectional_steps is not None and step <= self.bidirectional_steps

    def trains_tags_alone(self, step: int) -> bool:
        """Whether a step, counted from 1, trains the embeddings of some tags alone."""
        return self.tags_first is not None and step <= self.tags_first.steps

    def conflicts(self) -> Iterator[Problem]:
        if self.is_bidirectional(self.max_steps):
            what = (
                f"must be below training.max_steps {self.max_steps}, "
                "or no step trains on the wanted direction alone"
            )
            yield Problem("bidirectional_steps", what)
        if self.schedule.warmup_steps > self.max_steps:
            what = f"must be at most training.max_steps {self.max_steps}"
            yield Problem("schedule.warmup_steps", what)
        if self.validate_every > self.max_steps:
            what = f"must be at most training.max_steps {self.max_steps}, or nothing is validated"
            yield Problem("validate_every", what)
        count = self.average_checkpoints
        if count is not None and self.keep_checkpoints < count:
            what = f"must be at least training.average_checkpoints {count}"
            yield Problem("keep_checkpoints", what)
        if count is not None and self.ema_decay is not None:
            what = "must be null with training.average_checkpoints, which is another average"
            yield Problem("ema_decay", what)
