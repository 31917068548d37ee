"""`tformer model`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tformer_cli.cli.options import JsonOption, SetOption
from tformer_cli.cli.printing import table, tell_json
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    MaskedEncoderConfig,
    ModelConfig,
)
from tformer_cli.config.schema.tokenizer import (
    ImportedTokenizerConfig,
    SubwordConfig,
    TokenizerConfig,
    WordConfig,
)
from tformer_cli.errors import UsageError, quantity

if TYPE_CHECKING:
    from tformer_cli.model.inspection.summary import ModuleSummary

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NORM_NAMES = {"layer": "LayerNorm", "rms": "RMSNorm"}
NORM_POSITIONS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "deep": "post-norm with DeepNorm's residual weights",
}
# Prefixes by base.
UNITS = {1000: ("", "k", "M", "G", "T", "P", "E"), 1024: ("B", "KiB", "MiB", "GiB", "TiB")}

TableRow = Sequence[str]


def model(
    config_file: Annotated[
        Path,
        typer.Argument(metavar="config", help="A YAML file, such as configs/demo.yaml."),
    ],
    settings: SetOption = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=17,  # 16 special tokens and another one
            help="Vocabulary size; required for characters and imported models, whose config does "
            "not set it. Default for words: the maximum.",
            show_default=False,
        ),
    ] = None,
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens per sentence.")] = 32,
    target_length: Annotated[
        int,
        typer.Option(min=1, help="Target tokens per sentence; masked tokens of a masked encoder."),
    ] = 32,
    as_json: JsonOption = False,
) -> None:
    """Show the network of a config: modules, parameters, FLOPs and memory.

    No text or vocabulary is needed. FLOPs count matrix products, with two FLOPs per multiply-add.
    Memory is that of the weights and of the KV cache per token.

    Example: tformer model configs/demo.yaml --set model.num_decoder_layers=1
    """
    config = load_config(config_file, settings or [])
    vocabulary = _vocabulary_size(config.tokenizer, vocab_size)
    lengths = (source_length, target_length)
    labels = _labels(config.model, *lengths)

    # torch takes a second to import.
    from tformer_cli.model.inspection.summary import summarize

    summary = summarize(config.model, vocabulary, *lengths)
    cache = summary.cache._asdict() if summary.cache is not None else {}
    if as_json:
        content = {
            "config": str(config_file),
            "kind": config.model.kind,
            "vocabulary_size": vocabulary,
            "num_parameters": summary.parameters | {"all": summary.num_parameters},
            "flops": {"source_length": source_length, "target_length": target_length}
            | summary.flops,
            "cache_bytes": {name: _bytes(count) for name, count in cache.items()},
            "modules": [_plain(part) for part in summary.modules.children],
        }
        tell_json(content)
        return
    sections = [
        table(_facts(config, vocabulary), align="<<"),
        table(
            [("module", "kind", "weights", "parameters"), *_tree_rows(summary.modules)],
            align="<<<>",
        ),
        "\n".join(
            [table(_parameter_rows(summary.parameters), align="<>>"), *_shared(summary.modules)]
        ),
        table(_flops_rows(summary.flops, labels), align="<>>"),
        table(_memory_rows({"weights": summary.num_parameters, **cache}), align="<>>>"),
    ]
    typer.echo("\n\n".join(sections))


def _vocabulary_size(tokenizer: TokenizerConfig, given: int | None) -> int:
    """Return the size of a vocabulary that is not built yet; the maximum size for words."""
    where = "--vocab-size"
    if isinstance(tokenizer, SubwordConfig):
        if given is not None:
            what = "has no effect on subwords, whose number the config sets"
            raise UsageError(where, what, remedy=f"use --set tokenizer.vocab_size={given}")
        return tokenizer.vocab_size
    if isinstance(tokenizer, WordConfig):
        size = given or tokenizer.max_size
        if size > tokenizer.max_size:
            what = f"must be at most tokenizer.max_size {tokenizer.max_size}"
            raise UsageError(where, what, got=str(size))
        return size
    what = "is required for an imported model, whose files set it"
    remedy = "take vocab_size from the config.json that it was imported from"
    if not isinstance(tokenizer, ImportedTokenizerConfig):
        what = "is required for characters, whose number depends on the text"
        remedy = "`tformer vocab` counts them"
    if given is None:
        raise UsageError(where, what, remedy=remedy)
    return given


def _labels(config: ModelConfig, source: int, target: int) -> dict[str, str]:
    """Return what FLOPs are counted of, in the words of a kind of network."""
    is_masked = isinstance(config, MaskedEncoderConfig)
    if is_masked and target > source:
        what = (
            f"must be at most --source-length {source}, since a masked encoder fills in its source"
        )
        raise UsageError("--target-length", what, got=str(target))
    labels = ("a source token", "a target token", f"{source} + {target} tokens")
    if is_masked:
        labels = ("a token", "a masked token", f"{quantity(source, 'token')}, {target} masked")
    return dict(zip(("source_token", "target_token", "sentence"), labels, strict=True))


def _facts(config: Config, vocabulary: int) -> Iterator[TableRow]:
    """Yield the settings that determine the shape of a network."""
    model = config.model
    yield "model", model.kind
    if isinstance(model, EncoderDecoderConfig):
        yield "layers", f"{model.num_encoder_layers} + {model.num_decoder_layers}"
    elif isinstance(model, DecoderOnlyConfig):
        yield "layers", f"{model.num_layers}, source {model.source_attention}"
    else:
        yield "layers", f"{model.num_layers}"
    yield "width", f"{model.dim:,}"
    yield "attention", ", ".join(_attention(model))
    yield "feed-forward", f"{model.feedforward_dim:,}, {model.activation}"
    yield "norms", f"{NORM_NAMES[model.norm]} {NORM_POSITIONS[model.norm_position]}"
    yield "positions", model.positions.kind
    yield "vocabulary", ", ".join(_vocabulary(config, vocabulary))


def _vocabulary(config: Config, size: int) -> Iterator[str]:
    tokenizer = config.tokenizer
    is_bound = isinstance(tokenizer, WordConfig) and size == tokenizer.max_size
    yield f"at most {size:,}" if is_bound else f"{size:,}"
    if not isinstance(config.model, MaskedEncoderConfig):
        yield "shared" if tokenizer.shared else "per language"


def _attention(config: ModelConfig) -> Iterator[str]:
    yield f"{quantity(config.num_heads, 'head')} of {config.head_dim}"
    if config.kv_heads != config.num_heads:
        yield quantity(config.kv_heads, "key/value head")
    if (latent := config.latent) is not None:
        yield f"latents of {latent.kv_lora_rank} and rotary keys of {latent.rope_head_dim}"
    if config.qk_norm:
        yield "QK norm"
    if config.sliding_window is not None:
        yield f"sliding window of {config.sliding_window}"


def _tree_rows(module: "ModuleSummary", indent: str = "") -> Iterator[TableRow]:
    """Yield a row for each module; identical ones share a row."""
    for part in module.children:
        times = f"{part.count} x " if part.count > 1 else ""
        number = f"{times}{part.num_parameters:,}" if part.num_parameters else ""
        yield (
            f"{indent}{part.name}",
            f"{times}{part.kind}",
            " + ".join(" x ".join(map(str, shape)) for shape in part.shapes.values()),
            "shared" if part.shared_with else number,
        )
        yield from _tree_rows(part, f"{indent}  ")


def _parameter_rows(parameters: dict[str, int]) -> Iterator[TableRow]:
    total = sum(parameters.values())
    yield "parameters", "", ""
    for name, count in parameters.items():
        yield f"  {name}", *((f"{count:,}", f"{count / total:.1%}") if count else ("shared", ""))
    yield "  all", f"{total:,}", ""


def _shared(modules: "ModuleSummary") -> Iterator[str]:
    """Yield a line for each shared matrix."""
    sharers: dict[str, list[str]] = {}
    for name, part in modules.walk():
        if part.shared_with is not None:
            sharers.setdefault(part.shared_with, [part.shared_with]).append(name)
    for names in sharers.values():
        yield f"  counted once: {' = '.join(names)}"


def _flops_rows(
    flops: Mapping[str, Mapping[str, float]], labels: dict[str, str]
) -> Iterator[TableRow]:
    yield "FLOPs", "forward", "training step"
    for name, label in labels.items():
        yield f"  {label}", *(_short(numbers[name], 1000) for numbers in flops.values())


def _bytes(count: int) -> dict[str, int]:
    """Return the memory of some numbers in each format."""
    return {name: size * count for name, size in NUMBER_BYTES.items()}


def _memory_rows(numbers: dict[str, int]) -> Iterator[TableRow]:
    yield "memory", *NUMBER_BYTES
    for name, count in numbers.items():
        kind, _, token = name.partition("_")
        label = f"cache of a {kind} {token}" if token else name
        yield f"  {label}", *(_short(size, 1024) for size in _bytes(count).values())


def _short(number: float, step: int) -> str:
    """Return a number with the prefix that leaves it below `step`."""
    units = list(UNITS[step])
    while number >= step and len(units) > 1:
        number, units = number / step, units[1:]
    return f"{number:.4g} {units[0]}".rstrip()


def _plain(part: "ModuleSummary") -> dict[str, Any]:
    """Return a module and its parts for JSON."""
    return {
        "name": part.name,
        "kind": part.kind,
        "num_copies": part.count,
        "weights": part.shapes,
        "shared_with": part.shared_with,
        "num_parameters": part.num_parameters,
        "modules": [_plain(inner) for inner in part.children],
    }
