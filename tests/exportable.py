"""Members of the family that CTranslate2 can be, with random weights, and what they translate."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    LinearScaling,
    ModelConfig,
    NoPositions,
    NtkScaling,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
    YarnScaling,
)
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.export.check import CheckResult, CheckText, check_export
from tformer_cli.export.format import Format
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers

LINES = ["abc de", "g", "a b c d e f g", "gfedcba abcdefg gfedcba", "", "ccc", "b", "de", "fa ce"]
CHARACTERS = [("abcdefg ", "ABCDEFGHIJ ")]
LONGEST = 31

BASE = EncoderDecoderConfig(
    dim=24, num_heads=3, feedforward_dim=17, num_encoder_layers=2, num_decoder_layers=2
)
ROTARY = replace(BASE, positions=RotaryPositions(base=100.0))


def content_of(model: TrainedModel) -> object:
    """What a model translates by: tokenizers, settings, languages and weights."""
    data = model.config.data
    languages = (data.source_language, data.target_language)
    limits = (data.filters.max_length, model.max_source_sentences)
    weights = {name: weight.tolist() for name, weight in model.model.named_parameters()}
    return model.tokenizers.fingerprint, model.config.model, languages, limits, weights


def scaled(scaling: LinearScaling | NtkScaling | YarnScaling) -> EncoderDecoderConfig:
    return replace(BASE, positions=RotaryPositions(base=100.0, scaling=scaling))


MEMBERS = {
    "sinusoidal": BASE,
    "tensor2tensor": replace(BASE, positions=SinusoidalPositions(frequencies="tensor2tensor")),
    "learned": replace(BASE, positions=LearnedPositions(max_length=LONGEST), norm_position="post"),
    "rotary": replace(ROTARY, tie_embeddings="none"),
    "linear": scaled(LinearScaling(factor=2.5)),
    "ntk": scaled(NtkScaling(factor=4.0)),
    "ntk-pair": replace(scaled(NtkScaling(factor=4.0)), num_heads=12),
    "yarn": scaled(YarnScaling(factor=2.5, original_length=8)),
    "multi-query": replace(ROTARY, num_kv_heads=1, norm="rms"),
    "grouped": replace(BASE, num_heads=6, num_kv_heads=2, qk_norm=True, activation="geglu"),
    "modern": replace(ROTARY, norm="rms", activation="swiglu", bias=False, qk_norm=True),
    "no-bias": replace(BASE, bias=False, activation="silu", output_bias=True),
    "relative": replace(BASE, positions=T5Positions(num_buckets=8, max_distance=9)),
    "relative-window": replace(
        BASE, positions=T5Positions(num_buckets=8, max_distance=5), sliding_window=7
    ),
    "none": replace(BASE, positions=NoPositions(), activation="gelu"),
    "window": replace(ROTARY, sliding_window=3),
    "embedding-norm": replace(
        BASE, positions=LearnedPositions(max_length=LONGEST), embedding_norm=True
    ),
    "deep-embedding-norm": replace(ROTARY, norm_position="deep", embedding_norm=True),
    "no-source-eos": replace(BASE, source_eos=False),
    "deep": replace(BASE, norm_position="deep", num_encoder_layers=3),
    "deep-modern": replace(
        ROTARY, norm_position="deep", norm="rms", activation="swiglu", qk_norm=True
    ),
}


def char_tokenizers(*, shared: bool) -> Tokenizers:
    return build_tokenizers(CharConfig(shared=shared), lambda: CHARACTERS, seed=1)


def lively(config: ModelConfig) -> TrainedModel:
    """Weights that let every part matter; some translations end early."""
    tokenizers = char_tokenizers(shared=getattr(config, "tie_embeddings", "all") != "none")
    model = build_model(
        config, source_size=tokenizers.source.size, target_size=tokenizers.target.size, seed=7
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        model.output.weight[EOS_ID] *= 3
    return trained(model.eval(), tokenizers, config)


def trained(model: Seq2Seq, tokenizers: Tokenizers, config: ModelConfig) -> TrainedModel:
    nowhere = {"source": Path("/secret/text.en"), "target": Path("/secret/text.de")}
    data = DataConfig(
        source_language="en",
        target_language="de",
        train=(TrainingText(**nowhere),),
        valid=ParallelText(**nowhere),
    )
    whole = Config(data=data, model=config, decoding=BeamConfig(max_length=15))
    return TrainedModel(whole, tokenizers, model, step=120)


@contextlib.contextmanager
def exported(
    model: TrainedModel, form: Format, folder: Path, text: CheckText, **options
) -> Iterator[tuple[Path, list[CheckResult]]]:
    """Write a folder, and yield it with its comparisons once it has passed its check."""
    with form.written(model, folder) as temporary:
        yield temporary, check_export(model, form, temporary, text, **options)
