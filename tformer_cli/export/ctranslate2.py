"""Export to CTranslate2: the folder that it loads, and our weights where it expects them.

CTranslate2 then translates alike: its vocabulary is our tokens, it adds `</s>` to the source
itself, and its beam search is ours if it is given the same `beam_size`, `length_penalty`,
`coverage_penalty`, `patience` and `max_decoding_length`, and `max_input_length=0`. With a coverage
penalty it needs `max_batch_size=1` too, since it counts padding as source tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from tformer_cli.choices import Quantization
from tformer_cli.config.load import dump_config
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LinearScaling,
    NoPositions,
    NtkScaling,
    RotaryPositions,
    T5Positions,
    YarnScaling,
)
from tformer_cli.errors import Problem
from tformer_cli.export.ctranslate2_engine import (
    CTranslate2Engine,
    num_positions,
    unsupported_by_ctranslate2,
)
from tformer_cli.export.ctranslate2_network import (
    HEAD_NORMS,
    MEMORY_PROJECTION,
    NORMS,
    linear_layers,
)
from tformer_cli.export.format import (
    TOKENIZER_PACKAGES,
    Format,
    beam_of,
    example_languages,
    filled,
    token_code,
    write_sentencepiece_models,
)
from tformer_cli.export.plain import portable_config
from tformer_cli.extras import package
from tformer_cli.model.blocks.residual import RMSNorm
from tformer_cli.model.blocks.rotary import scaled_frequencies
from tformer_cli.model.encoder_decoder import Decoder, EncoderDecoder
from tformer_cli.model.layers import DecoderLayer, EncoderLayer, Stack
from tformer_cli.storage.atomic import write_json, write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import (
    EXPORT_NOTES_FILE,
    QUANTIZATION_NOTE,
    TrainedModel,
    notes_of,
)
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID

# Logit bias of suppressed tokens: probability 0, and finite in half precision.
SUPPRESSED_BIAS = -6e4
# Of the range of int8.
MAX_INT8_WEIGHT = 64
# Our feed-forward activations by CTranslate2's names.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu_tanh": "GELUTanh",
}


class CTranslate2Format(Format):
    """A folder that CTranslate2 loads, with the sentencepiece models of its tokens.

    config.yaml, tokenizer/ and tformer.json are for `Translator.load`.
    """

    program: ClassVar = "CTranslate2"
    quantizations: ClassVar = get_args(Quantization)
    extra: ClassVar = "ctranslate2"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        return unsupported_by_ctranslate2(trained.config.model, self.quantization)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        model, config, tokenizers = trained.model, trained.config.model, trained.tokenizers
        assert isinstance(config, EncoderDecoderConfig)
        assert isinstance(model, EncoderDecoder)
        spec = specification(model, config)
        source, target = tokenizers.source, tokenizers.target
        bias = torch.zeros(target.size)
        if model.output.bias is not None:
            bias += model.output.bias.detach().cpu()
        bias[list(target.suppressed_ids)] = SUPPRESSED_BIAS
        spec.decoder.projection.bias = bias
        spec.register_source_vocabulary(source.tokens(range(source.size)))
        spec.register_target_vocabulary(target.tokens(range(target.size)))
        spec.config.unk_token = SPECIAL_TOKENS[UNK_ID]
        start = tokenizers.start_id(config.kind)
        spec.config.bos_token = SPECIAL_TOKENS[BOS_ID]
        spec.config.decoder_start_token = SPECIAL_TOKENS[start]
        spec.config.eos_token = SPECIAL_TOKENS[EOS_ID]
        spec.config.add_source_eos = config.source_eos
        is_int8 = self.quantization in ("int8", "int8_float32")
        if is_int8:
            quantize_weights(spec)
        spec.validate()
        spec.optimize(None if is_int8 else self.quantization)
        spec.save(str(folder))
        write_sentencepiece_models(tokenizers, folder)
        run = RunDirectory(folder)
        write_text(run.config_file, dump_config(portable_config(trained.config)))
        tokenizers.save(run.tokenizer)
        notes = {QUANTIZATION_NOTE: self.quantization, **notes_of(trained)}
        write_json(folder / EXPORT_NOTES_FILE, notes)

    def engine(self, trained: TrainedModel, folder: Path) -> CTranslate2Engine:
        config = trained.config.model
        return CTranslate2Engine(folder, config, trained.tokenizers, self.quantization)

    def example(self, trained: TrainedModel, line: str) -> str:
        tokenizers, languages = trained.tokenizers, example_languages(trained.config.data)
        start = tokenizers.target.tokens(tokenizers.language_ids(languages)[1])
        target = "results[0].hypotheses[0]" + (f"[{len(start)}:]" if start else "")
        code = token_code(trained, line, modules=["ctranslate2"], target_tokens=target)
        beam = beam_of(trained.config.decoding)
        return filled(
            "ctranslate2.py.txt",
            **code,
            start=f"target_prefix=[{start!r}], " if start else "",
            beam_size=beam.beam_size,
            length_penalty=beam.length_penalty,
            max_length=beam.max_length,
        )

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["ctranslate2", *TOKENIZER_PACKAGES[trained.tokenizers.source.kind]]


def specification(model: EncoderDecoder, config: EncoderDecoderConfig) -> Any:
    """Return a CTranslate2 specification with all weights but the output bias."""
    specs = package("ctranslate2", "ctranslate2").specs
    shape = {
        "pre_norm": config.norm_position == "pre",
        "activation": specs.Activation[ACTIVATIONS[config.activation]],
        "ffn_glu": config.is_gated,
        "rms_norm": config.norm == "rms",
        "num_heads_kv": None if config.kv_heads == config.num_heads else config.kv_heads,
        "head_dim": config.head_width,
        "qk_norm": config.qk_norm,
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": _has_bias_table(config),
        **_rotary(config, specs),
    }
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, config.num_heads, **shape)
    decoder = specs.TransformerDecoderSpec(
        config.num_decoder_layers,
        config.num_heads,
        # Attention and coverage are means over all heads of the last layer.
        alignment_layer=-1,
        alignment_heads=0,
        **shape,
    )
    _set_stack(encoder, encoder.embeddings[0], model.encoder, config)
    _set_stack(decoder, decoder.embeddings, model.decoder, config)
    decoder.projection.weight = _copied(model.output.weight)
    if config.output_scale is not None:
        decoder.scale_outputs = config.output_scale
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    return spec


def quantize_weights(spec: Any) -> None:
    """Round each matrix of a specification to int8, with a scale per row.

    CTranslate2 would use the whole range to 127. Processors without VNNI add two products of an
    unsigned and a signed byte in 16 bits, which then saturate (oneDNN, "Nuances of int8
    computations"). With weights up to 64 no pair exceeds 2 * 255 * 64 < 2**15, so all processors
    compute the same numbers.
    """
    visit = package("ctranslate2", "ctranslate2").specs.model_spec.visit_spec

    def quantize(layer: Any, name: str, value: Any) -> None:
        key = name.rpartition("/")[2]
        if isinstance(value, Tensor) and hasattr(layer, f"{key}_scale"):
            highest = value.abs().amax(dim=1)
            scales = MAX_INT8_WEIGHT / torch.where(highest > 0, highest, 1.0)
            setattr(layer, key, (value * scales[:, None]).round_().to(torch.int8))
            setattr(layer, f"{key}_scale", scales)

    visit(spec, quantize)


def _has_bias_table(config: EncoderDecoderConfig) -> bool:
    """Return whether CTranslate2 gets a bias by distance.

    A model without positions gets one of zeros, or else CTranslate2 would add sinusoids.
    """
    has_bias = isinstance(config.positions, T5Positions | NoPositions)
    return config.sliding_window is not None or has_bias


def _rotary(config: EncoderDecoderConfig, specs: Any) -> dict[str, Any]:
    positions = config.positions
    if not isinstance(positions, RotaryPositions):
        return {}
    scaling = positions.scaling
    base = positions.base
    kinds = specs.attention_spec.RotaryScalingType
    options: dict[str, Any] = {"rotary_dim": 0, "rotary_interleave": False}
    if isinstance(scaling, LinearScaling):
        options |= {"rotary_scaling_type": kinds.Linear, "rotary_scaling_factor": scaling.factor}
    elif isinstance(scaling, NtkScaling) and config.head_dim > 2:
        base *= scaling.factor ** (config.head_dim / (config.head_dim - 2))
    elif isinstance(scaling, YarnScaling):
        options |= {"rotary_scaling_type": kinds.Su}
    return options | {"rotary_base": base}


def _set_stack(spec: Any, tokens: Any, stack: Stack, config: EncoderDecoderConfig) -> None:
    """Set the embeddings, layers and final norm of a stack.

    CTranslate2 has no residual weight alpha (DeepNorm), so its hidden states are alpha times ours:
    embeddings and norm outputs are multiplied by alpha, inputs of blocks are divided by it, and
    the output of the stack is as before.
    """
    alpha = stack.deep_norm.alpha if config.norm_position == "deep" else 1.0
    tokens.weight = _copied(stack.embeddings.tokens.weight)
    spec.scale_embeddings = stack.embeddings.scale * alpha
    if stack.embeddings.norm is not None:
        _set_norm(spec.layernorm_embedding, stack.embeddings.norm, alpha)
    _set_positions(spec, stack, config, alpha)
    layers = stack.each_layer()
    for part, layer in zip(spec.layer, layers, strict=True):
        _set_layer(part, layer, config, alpha)
        if config.attention_scale is not None:
            for scope in ("self_attention", "attention"):
                if hasattr(part, scope):
                    getattr(part, scope).queries_scale = config.attention_scale
    if config.norm_position == "pre":
        _set_norm(spec.layer_norm, stack.norm)
    else:
        _set_norm(spec.layer[-1].ffn.layer_norm, layers[-1].feedforward_norm)


def _set_positions(spec: Any, stack: Stack, config: EncoderDecoderConfig, alpha: float) -> None:
    positions, rows = config.positions, num_positions(config)
    device = stack.embeddings.tokens.weight.device
    if rows is not None:
        assert stack.embeddings.positions is not None
        table = stack.embeddings.positions(torch.arange(rows, device=device))
        spec.position_encodings.encodings = _copied(table * alpha)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings
    if _has_bias_table(config):
        table, max_distance = _bias_table(stack, config, device)
        for part in spec.layer:
            part.self_attention.relative_attention_bias = table
            part.self_attention.relative_attention_max_distance = np.int32(max_distance)
    if isinstance(positions, RotaryPositions) and isinstance(positions.scaling, YarnScaling):
        # YaRN's frequencies are no function of a base.
        plain, _ = scaled_frequencies(config.head_dim, replace(positions, scaling=None))
        scaled, attention_factor = scaled_frequencies(config.head_dim, positions)
        for part in spec.layer:
            # One is for sentences up to a length, the other for longer ones.
            part.self_attention.rotary_scaling_short_factor = plain / scaled
            part.self_attention.rotary_scaling_long_factor = plain / scaled
            part.self_attention.queries_scale = attention_factor**2 / math.sqrt(config.head_dim)


def _bias_table(
    stack: Stack, config: EncoderDecoderConfig, device: torch.device
) -> tuple[Tensor, int]:
    """Return the bias of each T5 bucket (buckets, H), and the largest distance.

    Buckets of the nearer half of a side hold one distance each. There are so many that all
    distances in the farther half have one bias, so it does not matter how CTranslate2 rounds the
    borders of those.
    """
    positions = config.positions
    longest = positions.max_distance if isinstance(positions, T5Positions) else 1
    reach = max(longest, config.sliding_window or 1)
    distances = torch.arange(2 * reach, device=device).clamp(max=reach)
    distances = -distances if isinstance(stack, Decoder) else torch.cat([-distances, distances])
    if stack.bias is None:
        table = torch.zeros(len(distances), config.num_heads)
    else:
        by_head = stack.bias.of_distance(distances[None, None])[:, 0]
        table = by_head.expand(config.num_heads, -1).T.contiguous()
    return _copied(table), reach + 1


def _set_layer(
    spec: Any, layer: EncoderLayer | DecoderLayer, config: EncoderDecoderConfig, alpha: float
) -> None:
    """Set a layer whose hidden states are `alpha` times ours."""
    side = "decoder" if isinstance(layer, DecoderLayer) else "encoder"
    for name, ours, axis in linear_layers(config, side):
        linears: list[Any] = [layer.get_submodule(each) for each in ours]
        weight = torch.cat([linear.weight for linear in linears])
        reads_states = axis == 1 and name != MEMORY_PROJECTION
        part = _part(spec, name)
        part.weight = _copied(weight / alpha if reads_states else weight)
        if linears[0].bias is not None:
            part.bias = _copied(torch.cat([linear.bias for linear in linears]))
    for name, norm in NORMS.items():
        if hasattr(layer, norm):
            _set_norm(_part(spec, name), layer.get_submodule(norm), alpha)
    if config.qk_norm:
        for name, norm in HEAD_NORMS.items():
            _set_norm(_part(spec, name), layer.get_submodule(norm))
        if side == "decoder":
            # CTranslate2 would normalize all heads together, and ours normalizes none here.
            del spec.attention.q_norm, spec.attention.k_norm


def _part(spec: Any, name: str) -> Any:
    """Return the part of a layer by its name in a file."""
    block, _, part = name.partition("/")
    if block != "ffn" and part.startswith("linear_"):
        return getattr(spec, block).linear[int(part.removeprefix("linear_"))]
    return getattr(getattr(spec, block), part)


def _set_norm(spec: Any, norm: nn.Module, factor: float = 1.0) -> None:
    """Set a norm whose output is `factor` times ours."""
    assert isinstance(norm, nn.LayerNorm | RMSNorm)
    spec.gamma = _copied(norm.weight * factor)
    if isinstance(norm, nn.LayerNorm):
        # Without beta, CTranslate2 would compute RMSNorm.
        bias: Tensor | None = norm.bias
        spec.beta = _copied((torch.zeros_like(norm.weight) if bias is None else bias) * factor)


def _copied(weight: Tensor) -> Tensor:
    # CTranslate2 quantizes in place.
    return weight.detach().to("cpu", torch.float32, copy=True)
