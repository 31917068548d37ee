"""A trained model as a folder that CTranslate2 loads.

CTranslate2 then translates alike: its vocabulary are our tokens, it adds `</s>` to the source by
itself, and its beam search is ours. What it is given are the tokens of a line and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch

from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    ModelConfig,
    RotaryPositions,
    SinusoidalPositions,
    YarnScaling,
)
from tformer_cli.errors import ConfigError, Problem
from tformer_cli.export.ctranslate2.engine import CTranslate2Engine
from tformer_cli.export.ctranslate2.example import example
from tformer_cli.export.ctranslate2.specification import (
    num_positions,
    quantize_weights,
    specification,
)
from tformer_cli.export.extra import package
from tformer_cli.export.format import Format
from tformer_cli.export.token_example import TOKEN_PACKAGES, sentencepiece_models
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import make_directory, new_directory, storage_errors
from tformer_cli.storage.lock import exclusive_lock
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID

Quantization = Literal["int8", "int8_float32", "float16", "bfloat16", "float32"]

# Added to the logits of tokens that no translation contains: their probability is zero. Half
# precision has it, too.
SUPPRESSED = -6e4
# Of what is written. A run keeps its exports, and those of another version are not read.
FORMAT_VERSION = 2


def write_ctranslate2(
    model: Seq2Seq,
    tokenizers: Tokenizers,
    config: ModelConfig,
    folder: Path,
    quantization: Quantization | None = None,
) -> None:
    """Write a model in the format of CTranslate2: as a whole, or not at all.

    Translations are equal where CTranslate2 is asked for the same `beam_size`, `length_penalty`,
    `coverage_penalty`, `patience` and `max_decoding_length`, and for `max_input_length=0`. With a
    coverage penalty it takes `max_batch_size=1` too: CTranslate2 counts padding as source tokens.

    Args:
        model: its weights.
        tokenizers: of its vocabularies.
        config: its shape.
        folder: where to write; there must be nothing yet.
        quantization: number format of the matrices; float32 where it is None.

    Raises:
        ConfigError: CTranslate2 has nothing that computes the same; every key that says so.
        UsageError: CTranslate2 is not installed, or the folder already exists.
        StorageError: the system does not let it be written.
    """
    with new_directory(folder) as temporary:
        save_specification(model, tokenizers, config, temporary, quantization)


def save_specification(
    model: Seq2Seq,
    tokenizers: Tokenizers,
    config: ModelConfig,
    folder: Path,
    quantization: Quantization | None,
) -> None:
    """Write CTranslate2's own files into a folder that is there; arguments as above.

    Raises:
        ConfigError: CTranslate2 has nothing that computes the same; every key that says so.
        UsageError: CTranslate2 is not installed.
    """
    if problems := list(unsupported(config, quantization)):
        raise ConfigError(problems)
    assert isinstance(config, EncoderDecoderConfig)
    assert isinstance(model, EncoderDecoder)
    spec = specification(model, config)
    bias = torch.zeros(tokenizers.target.size)
    if model.output.bias is not None:
        bias += model.output.bias.detach().cpu()
    bias[list(tokenizers.target.suppressed_ids)] = SUPPRESSED
    spec.decoder.projection.bias = bias
    spec.register_source_vocabulary(_tokens(tokenizers.source))
    spec.register_target_vocabulary(_tokens(tokenizers.target))
    spec.config.unk_token = SPECIAL_TOKENS[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = SPECIAL_TOKENS[BOS_ID]
    spec.config.eos_token = SPECIAL_TOKENS[EOS_ID]
    spec.config.add_source_eos = True
    is_int8 = quantization in ("int8", "int8_float32")
    if is_int8:
        quantize_weights(spec)
    spec.validate()
    spec.optimize(None if is_int8 else quantization)
    spec.save(str(folder))


def unsupported(config: ModelConfig, quantization: Quantization | None = None) -> Iterator[Problem]:
    """Yield what of a network CTranslate2 cannot compute exactly, by the keys of the config."""

    def problem(key: str, got: object, remedy: str) -> Problem:
        return Problem(f"model.{key}", "has no exact counterpart in CTranslate2", f"{got}", remedy)

    if not isinstance(config, EncoderDecoderConfig):
        yield problem("kind", config.kind, "export an encoder_decoder")
        return
    positions = config.positions
    if config.latent is not None:
        yield problem(
            "latent", f"dim {config.latent.kv_lora_rank}", "train with model.latent: null"
        )
    if positions.kind == "alibi":
        yield problem("positions.kind", "alibi", "train with rotary or relative positions")
    if config.sliding_window is not None and isinstance(
        positions, SinusoidalPositions | LearnedPositions
    ):
        got = f"{config.sliding_window} with positions of kind {positions.kind}"
        yield problem(
            "sliding_window", got, "train with rotary positions, or with model.sliding_window: null"
        )
    has_yarn = isinstance(positions, RotaryPositions) and isinstance(positions.scaling, YarnScaling)
    if has_yarn and quantization in ("float16", "bfloat16"):
        got = f"yarn in {quantization}, which rounds its frequencies"
        yield problem("positions.scaling", got, 'use `quantization="int8"` or float32')


def _tokens(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(tokenizer.size))


@dataclass(frozen=True, slots=True)
class CTranslate2Format(Format):
    """A folder that CTranslate2 loads, with the sentencepiece models that its tokens are made by.

    Attributes:
        quantization: number format of the matrices.
    """

    program: ClassVar = "CTranslate2"
    quantization: Quantization = "float32"

    @property
    def is_exact(self) -> bool:
        """Whether nothing is rounded."""
        return self.quantization == "float32"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        """Yield what CTranslate2 cannot compute exactly, as `Format` says."""
        return unsupported(trained.config.model, self.quantization)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        """Write the model and what makes its tokens, as `Format` says."""
        tokenizers = trained.tokenizers
        model, config = trained.model, trained.config.model
        save_specification(model, tokenizers, config, folder, self.quantization)
        for name, content in sentencepiece_models(tokenizers).items():
            (folder / f"{name}.model").write_bytes(content)

    def engine(self, trained: TrainedModel, folder: Path) -> CTranslate2Engine:
        """Return CTranslate2 with what has been written."""
        return ctranslate2_engine(trained, folder, self.quantization)

    def example(self, trained: TrainedModel, line: str) -> str:
        """Return lines of Python that translate a line, as `Format` says."""
        return example(trained.tokenizers, line, trained.config.decoding.max_length)

    def packages(self, trained: TrainedModel) -> list[str]:
        """Return what has to be installed for that."""
        return ["ctranslate2", *TOKEN_PACKAGES[trained.tokenizers.source.kind]]

    def versions(self) -> dict[str, str]:
        """Return the version of CTranslate2."""
        return {"ctranslate2": package("ctranslate2", "ctranslate2").__version__}


def ctranslate2_engine(
    trained: TrainedModel, folder: Path, quantization: Quantization
) -> CTranslate2Engine:
    """Return CTranslate2 on the CPU with an exported model.

    Args:
        trained: what was exported.
        folder: where to.
        quantization: its number format.

    Raises:
        UsageError: CTranslate2 is not installed.
    """
    # It computes in eight bits or in full, and warns where the format asks for another number.
    is_half = quantization in ("float16", "bfloat16")
    return CTranslate2Engine(
        folder,
        trained.tokenizers,
        max_length=num_positions(trained.config.model),
        compute_type="float32" if is_half else "default",
    )


def cached_engine(
    run: RunDirectory, trained: TrainedModel, quantization: Quantization
) -> CTranslate2Engine:
    """Return CTranslate2 with a model of a run, whose export stays in the run for another time.

    Args:
        run: the run folder.
        trained: its model.
        quantization: number format of the matrices.

    Raises:
        ConfigError: CTranslate2 has nothing that computes the same; every key that says so.
        UsageError: CTranslate2 is not installed.
        CheckpointError: the export is damaged.
        StorageError: the system does not let it be written.
    """
    name = f"ctranslate2-{FORMAT_VERSION}-{trained.fingerprint[:16]}-{quantization}"
    folder = run.exports / name
    if not folder.is_dir():
        with storage_errors(run.exports):
            make_directory(run.exports)
        with exclusive_lock(
            run.exports / ".lock", "waiting for another process that exports the same run"
        ):
            # Perhaps somebody else has just written it.
            if not folder.is_dir():
                model, config = trained.model, trained.config.model
                write_ctranslate2(model, trained.tokenizers, config, folder, quantization)
    return ctranslate2_engine(trained, folder, quantization)
