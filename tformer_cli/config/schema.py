"""The configuration: a tree of frozen dataclasses, and the only one there is.

A YAML file is parsed into `Config`; every key has a default but the data paths. A choice
between ways of doing one thing is a union of dataclasses told apart by their `kind`.
The text under each field is its documentation: the README's option table is made from it.

A field's own limits stand in its type (`Annotated[int, Bounds(...)]`); rules that tie several
fields together are yielded by `conflicts()`. `check` walks the tree and collects both.
Only the standard library is imported here, so the command line can read it without delay.
"""

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal


@dataclass(frozen=True, slots=True)
class Bounds:
    """The interval a number must lie in; a bound that is None is not there."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    def rule(self, value: float) -> str | None:
        """Return the bound that `value` breaks, in words, or None."""
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum:.10g}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:.10g}"
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:.10g}"
        if self.below is not None and not value < self.below:
            return f"must be below {self.below:.10g}"
        return None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A rule that a value breaks.

    Attributes:
        key: the path of the key to change, relative to the dataclass that reports it.
        what: the rule.
        got: the value that breaks it, as text.
        remedy: what to write instead, or None where the rule says it.
    """

    key: str
    what: str
    got: str | None = None
    remedy: str | None = None


Count = Annotated[int, Bounds(minimum=1)]
CountOrZero = Annotated[int, Bounds(minimum=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
Probability = Annotated[float, Bounds(minimum=0, below=1)]
Sides = Literal["none", "source", "target", "both"]


# ---------------------------------------------------------------------------------- data


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelText:
    """Two text files whose lines correspond."""

    source: Path
    """Source side: plain text or gzip (`.gz`), UTF-8, one sentence a line."""
    target: Path
    """Target side: line n translates line n of the source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingText(ParallelText):
    """A parallel text to train on, and how often."""

    weight: PositiveFloat = 1.0
    """How many times an epoch sees each pair; 2.5 is two or three times, drawn anew each epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterConfig:
    """Which training pairs to leave out; pairs with an empty side always are."""

    max_length: Count = 256
    """Longest side of a pair that is kept, in tokens."""
    max_ratio: Annotated[float, Bounds(minimum=1)] | None = None
    """Largest ratio between the two lengths of a pair that is kept, in tokens."""
    drop_duplicates: bool = False
    """Keep only the first of pairs that are equal on both sides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The text."""

    source_language: str = "source"
    """Language of the source text, as an ISO code (`en`)."""
    target_language: str = "target"
    """Language of the target text, as an ISO code; decides `evaluation.bleu.tokenize: auto`."""
    root: Path | None = None
    """Folder that the paths below are relative to; null is the folder of the config file."""
    train: tuple[TrainingText, ...]
    """Parallel texts to train on."""
    valid: ParallelText
    """Parallel text that chooses the best checkpoint."""
    test: dict[str, ParallelText] = field(default_factory=dict)
    """Named parallel texts for `tformer eval`."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """Which training pairs to leave out."""

    def conflicts(self) -> Iterator[Conflict]:
        if not self.train:
            yield Conflict("train", "needs at least one pair of files", "an empty list")
        if "valid" in self.test:
            yield Conflict("test.valid", "this name belongs to data.valid", remedy="rename it")


# ----------------------------------------------------------------------------- tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class SubwordConfig:
    """Pieces of words, learnt by sentencepiece from the training text."""

    kind: Literal["subword"] = "subword"
    """Pieces of words (sentencepiece)."""
    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding, or a unigram language model."""
    vocab_size: Annotated[int, Bounds(minimum=32, maximum=1_000_000)] = 8000
    """Number of pieces, the 16 special ones included."""
    shared: bool = True
    """One vocabulary for both languages, or one each."""
    character_coverage: Annotated[float, Bounds(above=0, maximum=1)] = 1.0
    """Share of the text's characters that get a piece; 0.9995 suits Chinese and Japanese."""
    byte_fallback: bool = True
    """Spell characters without a piece as UTF-8 bytes, so that nothing is unknown."""
    sample_lines: Count = 1_000_000
    """Lines of each side to learn from, drawn evenly from the whole training text."""
    lowercase: Sides = "none"
    """Sides to lower-case."""
    nfkc: Sides = "none"
    """Sides to bring into Unicode normal form KC."""

    def conflicts(self) -> Iterator[Conflict]:
        smallest = 16 + 256 + 1
        if self.byte_fallback and self.vocab_size < smallest:
            yield Conflict(
                "vocab_size",
                f"must be at least {smallest} with byte_fallback (16 special pieces, 256 bytes)",
                str(self.vocab_size),
                "enlarge it or set byte_fallback: false",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class WordConfig:
    """Whole words by torchtext's basic_english: for teaching; the text cannot be restored."""

    kind: Literal["word"] = "word"
    """Whole words (torchtext basic_english: lower-cased, punctuation split off or dropped)."""
    min_frequency: Count = 2
    """Rarer words are unknown."""
    max_size: Annotated[int, Bounds(minimum=32)] = 50_000
    """Largest vocabulary, the 16 special tokens included."""
    shared: bool = False
    """One vocabulary for both languages, or one each."""
    nfkc: Sides = "none"
    """Sides to bring into Unicode normal form KC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CharConfig:
    """Single characters."""

    kind: Literal["char"] = "char"
    """Single characters."""
    min_frequency: Count = 1
    """Rarer characters are unknown."""
    shared: bool = True
    """One vocabulary for both languages, or one each."""
    lowercase: Sides = "none"
    """Sides to lower-case."""
    nfkc: Sides = "none"
    """Sides to bring into Unicode normal form KC."""


TokenizerConfig = SubwordConfig | WordConfig | CharConfig


# --------------------------------------------------------------------------------- model


@dataclass(frozen=True, kw_only=True, slots=True)
class SinusoidalPositions:
    """Fixed sine and cosine waves (Vaswani et al. 2017, section 3.5): any length."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    """Fixed sine and cosine waves; sentences may be longer than those in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedPositions:
    """A trained vector for each position."""

    kind: Literal["learned"] = "learned"
    """A trained vector for each position; longer lines are translated in pieces."""
    max_length: Count = 512
    """Number of positions, in tokens."""


PositionsConfig = SinusoidalPositions | LearnedPositions


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig:
    """The Transformer of Vaswani et al. 2017, with the choices that came after it."""

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    """An encoder reads the source, a decoder writes the target."""
    dim: Count = 256
    """Width of the model."""
    num_encoder_layers: Count = 4
    """Layers of the encoder."""
    num_decoder_layers: Count = 4
    """Layers of the decoder."""
    num_heads: Count = 4
    """Attention heads; must divide `dim`."""
    feedforward_dim: Count = 1024
    """Inner width of the feed-forward blocks."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the feed-forward blocks."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm (mean and variance), or RMSNorm (scale only)."""
    norm_position: Literal["pre", "post"] = "pre"
    """Normalise before each block (trains more easily) or after its residual (the paper)."""
    norm_epsilon: PositiveFloat = 1e-6
    """Added to the variance in each norm."""
    positions: PositionsConfig = field(default_factory=SinusoidalPositions)
    """How the model knows the order of tokens."""
    dropout: Probability = 0.1
    """Dropout on the output of each block before its residual."""
    embedding_dropout: Probability | None = None
    """Dropout on embeddings with positions; null is `dropout`."""
    attention_dropout: Probability | None = None
    """Dropout on attention weights; null is `dropout`."""
    feedforward_dropout: Probability | None = None
    """Dropout inside the feed-forward blocks; null is `dropout`."""
    tie: Literal["none", "output", "all"] = "all"
    """Share the target embedding with the output (`output`), and with the source too (`all`)."""

    def own_dropout(self, own: float | None) -> float:
        """Return the dropout of a place that has its own, or else `dropout`."""
        return self.dropout if own is None else own

    def conflicts(self) -> Iterator[Conflict]:
        if self.dim % self.num_heads:
            yield Conflict("num_heads", f"must divide dim ({self.dim})", str(self.num_heads))
        if self.positions.kind == "sinusoidal" and self.dim % 2:
            yield Conflict("dim", "must be even with sinusoidal positions", str(self.dim))


ModelConfig = EncoderDecoderConfig


# ------------------------------------------------------------------------------ training


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    """Adam with decoupled weight decay; norms, biases and embeddings are not decayed."""
    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate, reached at the end of the warm-up."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the two moments."""
    epsilon: PositiveFloat = 1e-9
    """Added to the denominator."""
    weight_decay: Annotated[float, Bounds(minimum=0)] = 0.01
    """Share of a weight, times the learning rate, that each step takes away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamConfig:
    """Adam (Kingma and Ba 2015)."""

    kind: Literal["adam"] = "adam"
    """Adam without weight decay."""
    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate, reached at the end of the warm-up."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the two moments."""
    epsilon: PositiveFloat = 1e-9
    """Added to the denominator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MuonConfig:
    """Muon (Jordan et al. 2024) for the matrices of layers, AdamW for everything else."""

    kind: Literal["muon"] = "muon"
    """Momentum made orthogonal for the matrices of layers, AdamW for everything else."""
    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate, reached at the end of the warm-up; AdamW's is a good one."""
    momentum: Probability = 0.95
    """Decay rate of the momentum of matrices."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the two moments of everything else."""
    epsilon: PositiveFloat = 1e-9
    """Added to the denominator, of everything else."""
    weight_decay: Annotated[float, Bounds(minimum=0)] = 0.01
    """Share of a matrix, times the learning rate, that each step takes away."""


OptimizerConfig = AdamWConfig | AdamConfig | MuonConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineSchedule:
    """Half a cosine from the peak down (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    """Half a cosine from the peak to `final_ratio` of it at `max_steps`."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""
    final_ratio: Annotated[float, Bounds(minimum=0, maximum=1)] = 0.01
    """Learning rate at the end, as a share of the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearSchedule:
    """A straight line from the peak down."""

    kind: Literal["linear"] = "linear"
    """A straight line from the peak to `final_ratio` of it at `max_steps`."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""
    final_ratio: Annotated[float, Bounds(minimum=0, maximum=1)] = 0.01
    """Learning rate at the end, as a share of the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InverseSquareRootSchedule:
    """Decay with the square root of the step (Vaswani et al. 2017, section 5.3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    """Proportional to 1/sqrt(step) after the warm-up."""
    warmup_steps: Count = 400
    """Steps of linear rise to the peak; the decay is measured from its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSchedule:
    """A staircase."""

    kind: Literal["step"] = "step"
    """Multiplied by `factor` every `step_size` steps after the warm-up."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""
    step_size: Count = 1000
    """Steps between two reductions."""
    factor: Annotated[float, Bounds(above=0, below=1)] = 0.5
    """What each reduction multiplies by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantSchedule:
    """The peak, for ever."""

    kind: Literal["constant"] = "constant"
    """The peak, to the end."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""


ScheduleConfig = (
    CosineSchedule | LinearSchedule | InverseSquareRootSchedule | StepSchedule | ConstantSchedule
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """What every search keeps to."""

    max_length: Count = 256
    """Longest translation, in tokens, the end token included."""
    max_length_ratio: PositiveFloat | None = None
    """Longest translation for each token of the source, end tokens apart; null sets no limit."""
    min_length: Count = 1
    """Shortest translation, in tokens, the end token apart."""
    min_length_ratio: Annotated[float, Bounds(minimum=0)] = 0.0
    """Shortest translation for each token of the source, end tokens apart."""
    repetition_penalty: PositiveFloat = 1.0
    """Factor of the log probability of a token that is written already (Keskar et al. 2019)."""
    frequency_penalty: Annotated[float, Bounds(minimum=0)] = 0.0
    """Taken off the log probability of a token for each time that it is written already."""
    no_repeat_ngram: CountOrZero = 0
    """No n-gram of so many tokens comes twice; 0 lets all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyConfig(SearchConfig):
    """The most probable token at each step."""

    kind: Literal["greedy"] = "greedy"
    """The most probable token at each step."""


# Between groups of a beam, where the config says no other.
DIVERSITY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamConfig(SearchConfig):
    """Beam search by CTranslate2's rules."""

    kind: Literal["beam"] = "beam"
    """The best of several translations kept at each step."""
    size: Annotated[int, Bounds(minimum=1, maximum=1000)] = 5
    """Translations kept alive at each step."""
    length_penalty: Annotated[float, Bounds(minimum=0)] = 1.0
    """The score is log probability / length ** length_penalty; 0 favours short translations."""
    patience: PositiveFloat = 1.0
    """Stop when size * patience translations are finished (Kasai et al. 2022)."""
    coverage_penalty: Annotated[float, Bounds(minimum=0)] = 0.0
    """Weight, in the score, of the sum of log(min(attention to a source token, 1))."""
    groups: Count = 1
    """Parts of the beam that keep apart from each other (Vijayakumar et al. 2018)."""
    diversity: Annotated[float, Bounds(minimum=0)] = DIVERSITY
    """What a group takes off a token for each time that one before it chose it at this step."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.size % self.groups:
            yield Conflict("groups", f"must divide size ({self.size})", str(self.groups))
        if self.groups == 1 and self.diversity != DIVERSITY:
            yield Conflict(
                "diversity",
                "has no effect on one group",
                f"{self.diversity:g}",
                "set groups to 2 or more, or leave it out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleConfig(SearchConfig):
    """Tokens drawn at random."""

    kind: Literal["sample"] = "sample"
    """Each token drawn by its probability."""
    temperature: PositiveFloat = 1.0
    """Log probabilities are divided by it before the draw: below 1 is more careful."""
    top_k: CountOrZero = 0
    """Draw among so many most probable tokens (Fan et al. 2018); 0 draws among all."""
    top_p: Annotated[float, Bounds(above=0, maximum=1)] = 1.0
    """Draw among the fewest tokens that reach this probability (Holtzman et al. 2020)."""
    seed: CountOrZero = 1
    """What is drawn for a line is a function of this seed and of the line's number."""


DecodingConfig = BeamConfig | GreedyConfig | SampleConfig


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
    accumulate: Count = 1
    """Cut each batch into this many pieces to save memory; the result is the same."""
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
    select: Literal["bleu", "loss"] = "bleu"
    """What makes a checkpoint better than another: validation BLEU, or validation loss."""
    patience: Count | None = None
    """Stop after this many validations in a row without a better one; null goes on to the end."""
    ema_decay: Annotated[float, Bounds(above=0, below=1)] | None = None
    """Validate and keep a moving average of the weights, this much of it old at each step."""
    report_every: Count = 50
    """Steps between two lines of progress in metrics.jsonl and on a screen without bars."""
    initialize_from: Path | None = None
    """A run folder whose tokenizers and last weights this training begins with."""
    watch_parts: bool = False
    """Report the gradient norm and the relative update of each part of the model as well."""
    tensorboard: bool = False
    """Show metrics.jsonl in TensorBoard too; needs `pip install 'tformer[tensorboard]'`."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of matrix products; auto is bfloat16 or float16 on a GPU, else float32."""

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


# ---------------------------------------------------------------------------- evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class BleuConfig:
    """How sacrebleu computes BLEU; all of it shows in the signature."""

    tokenize: Literal[
        "auto", "13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab", "spm", "flores200"
    ] = "auto"
    """sacrebleu's tokenizer; auto is zh, ja-mecab or ko-mecab by the target language, else 13a."""
    lowercase: bool = False
    """Ignore case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChrfConfig:
    """How sacrebleu computes chrF."""

    word_order: CountOrZero = 0
    """Longest word n-gram that counts beside characters; 2 is chrF++."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """The scores."""

    bleu: BleuConfig = field(default_factory=BleuConfig)
    """BLEU (Papineni et al. 2002)."""
    chrf: ChrfConfig = field(default_factory=ChrfConfig)
    """chrF (Popović 2015)."""


# -------------------------------------------------------------------------------- config


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


def check(value: object, path: str = "", hint: object = None) -> Iterator[Conflict]:
    """Yield every limit and rule that a (part of a) configuration breaks.

    A dataclass with a number out of its limits is not asked for its conflicts: they could be
    mere consequences.

    Args:
        value: a dataclass of this module, or the value of one of its fields.
        path: the key path of `value` in the whole tree; the paths yielded begin with it.
        hint: the annotation of the field that `value` comes from; a dataclass needs none.
    """
    for child_path, child, child_hint in _children(value, path, hint):
        yield from check(child, child_path, child_hint)
    yield from _broken_bounds(value, path, hint)
    if hasattr(value, "conflicts") and next(_broken_limits(value, path, hint), None) is None:
        for conflict in value.conflicts():
            yield dataclasses.replace(conflict, key=_join(path, conflict.key))


def _broken_limits(value: object, path: str, hint: object) -> Iterator[Conflict]:
    """Yield the numbers anywhere in `value` that are out of their limits."""
    yield from _broken_bounds(value, path, hint)
    for child_path, child, child_hint in _children(value, path, hint):
        yield from _broken_limits(child, child_path, child_hint)


def _broken_bounds(value: object, path: str, hint: object) -> Iterator[Conflict]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for bounds in _bounds(hint):
            rule = bounds.rule(value)
            if rule is not None:
                yield Conflict(path, rule, f"{value}")


def _children(value: object, path: str, hint: object) -> Iterator[tuple[str, object, object]]:
    """Yield the key path, value and annotation of everything directly inside `value`."""
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value), include_extras=True)
        for part in dataclasses.fields(value):
            yield _join(path, part.name), getattr(value, part.name), hints[part.name]
    elif isinstance(value, tuple):
        item_hints = typing.get_args(hint)
        for index, item in enumerate(value):
            item_hint = item_hints[0] if item_hints[-1] is Ellipsis else item_hints[index]
            yield _join(path, str(index)), item, item_hint
    elif isinstance(value, dict):
        for key, item in value.items():
            yield _join(path, key), item, typing.get_args(hint)[1]


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _bounds(hint: object) -> Iterator[Bounds]:
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Bounds):
            yield extra
    if typing.get_origin(hint) is not Annotated:
        for member in typing.get_args(hint):
            yield from _bounds(member)
