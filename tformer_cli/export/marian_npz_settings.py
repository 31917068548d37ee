"""What Marian NMT's own files say beside the weights: model, search and vocabularies, both ways.

Marian's options are those of its 1.12 (`marian --help`); its model.npz has those of the network.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig, SinusoidalPositions
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.export import marian_settings
from tformer_cli.export.settings import RESTORE, Settings, json_object
from tformer_cli.storage.atomic import check_regular

DECODER_FILE, NPZ_FILE = "decoder.yml", "model.npz"
# The item of model.npz that has Marian's options of the network, as YAML that ends with a zero.
MODEL_SETTINGS = "special:model.yml"

# Values of our keys in every model that Marian computes as we do. In its pre-norm decoders keys and
# values are not normalized (`DecoderLayerSelfAttention` of its transformer.h).
FIXED = marian_settings.FIXED | {
    "norm_epsilon": 1e-6,
    "positions": SinusoidalPositions(frequencies="tensor2tensor"),
}
# Where ours are missing, zeros are written.
del FIXED["bias"]
# Values of Marian's options in them.
OPTIONS: dict[str, Any] = {
    "type": "transformer",
    "right-left": False,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "transformer-decoder-dim-ffn": 0,
    "transformer-no-projection": False,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-train-position-embeddings": False,
    "transformer-disable-position-embeddings": False,
    "transformer-attention-mask": "default",
}
# Our keys by Marian's.
SIZES = {
    "dim-emb": "dim",
    "enc-depth": "num_encoder_layers",
    "dec-depth": "num_decoder_layers",
    "transformer-heads": "num_heads",
    "transformer-dim-ffn": "feedforward_dim",
}
# Our activations by Marian's. Its GELU was another function before 2023.
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
TYINGS = ("tied-embeddings", "tied-embeddings-src", "tied-embeddings-all")


def model_settings(config: EncoderDecoderConfig, sizes: tuple[int, int]) -> dict[str, Any]:
    """Return Marian's options of a network with vocabularies of these sizes."""
    (activation,) = (theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    return OPTIONS | {
        "dim-vocabs": list(sizes),
        **{theirs: getattr(config, ours) for theirs, ours in SIZES.items()},
        "tied-embeddings": config.tie_embeddings == "output",
        "tied-embeddings-src": False,
        "tied-embeddings-all": config.tie_embeddings == "all",
        "transformer-ffn-activation": activation,
        "transformer-guided-alignment-layer": "last",
    }


def read_model_settings(file: Path, content: bytes) -> EncoderDecoderConfig:
    """Return our network by the options in a model.npz.

    Raises:
        CheckpointError: they are no YAML.
        ConfigError: all options of another network.
    """
    settings = Settings(file, yaml_object(content.split(b"\0")[0], f"{file}: {MODEL_SETTINGS}"))
    for key, expected in OPTIONS.items():
        if (got := settings.values.get(key, expected)) != expected:
            settings.note(Problem(key, f"must be {json.dumps(expected)}", json.dumps(got)))
    activation = settings.choose("transformer-ffn-activation", ACTIVATIONS)
    settings.values = dict.fromkeys(TYINGS, False) | settings.values
    output, sources, everything = (settings.take(key, bool) for key in TYINGS)
    is_tied = output or everything
    config = EncoderDecoderConfig(
        **{ours: settings.take(theirs, int) for theirs, ours in SIZES.items()},  # type: ignore[arg-type]
        activation=activation,
        tie_embeddings="none" if not is_tied else "all" if everything or sources else "output",
        output_bias=True,
        **FIXED,
    )
    settings.check(config, "model")
    return config


class DecoderSettings(NamedTuple):
    """The content of decoder.yml: files of the folder, and the search."""

    model: Path
    vocabularies: tuple[Path, Path]  # of source and target
    search: DecodingConfig


def decoder_settings(vocabularies: tuple[str, str], search: DecodingConfig) -> dict[str, Any]:
    """Return the content of decoder.yml: the run's search, as far as Marian has it."""
    beam = {"beam-size": 1, "normalize": 0.0}
    if isinstance(search, BeamConfig):
        beam = {"beam-size": search.beam_size, "normalize": search.length_penalty}
    files = {"models": [NPZ_FILE], "vocabs": list(vocabularies)}
    return {"relative-paths": True, **files, **beam}


def read_decoder_settings(file: Path) -> DecoderSettings:
    """Read decoder.yml; options of the search that are missing have our defaults.

    Raises:
        CheckpointError: it is no YAML.
        ConfigError: it names other files than one model and two vocabularies of its folder, or has
            an impossible search.
    """
    settings = Settings(file, yaml_object(file.read_bytes(), str(file)))
    paths = {key: _paths(settings, key, count) for key, count in (("models", 1), ("vocabs", 2))}
    beam: dict[str, Any] = {}
    if "beam-size" in settings.values:
        beam["beam_size"] = settings.take("beam-size", int)
    if "normalize" in settings.values:
        beam["length_penalty"] = settings.take("normalize", float)
    search = GreedyConfig() if beam.get("beam_size") == 1 else BeamConfig(**beam)
    settings.check(search, "decoding")
    source, target = paths["vocabs"]
    return DecoderSettings(paths["models"][0], (source, target), search)


def _paths(settings: Settings, key: str, count: int) -> list[Path]:
    """Return the files of a key; problems are noted."""
    names: Any = settings.values.get(key)
    if isinstance(names, list) and len(names) == count and all(map(_is_file_name, names)):
        return [settings.file.with_name(name) for name in names]
    what = f"must be a list of files in the folder, {count} in number"
    settings.note(Problem(key, what, json.dumps(names)))
    return [settings.file] * count


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name != ""


def yaml_object(content: bytes, where: str) -> dict[str, Any]:
    """Return the mapping of a YAML text."""
    try:
        text = content.decode()
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("an alias")
        settings = yaml.safe_load(text)
        if not isinstance(settings, dict):
            raise ValueError(type(settings).__name__)
        # Dates and the like are no options.
        json.dumps(settings)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        got = " ".join(str(error).split())
        raise CheckpointError(where, "is not a YAML mapping", got=got, remedy=RESTORE) from None
    return settings


def vocabulary_text(tokens: list[str]) -> str:
    """Return the content of a .yml vocabulary: tokens by id."""
    return "".join(f"{json.dumps(x, ensure_ascii=False)}: {i}\n" for i, x in enumerate(tokens))


# A token, plain or in quotes, and its id; a long one is a line of its own.
_ENTRY = re.compile(r"""(\? +)?("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|.*?)(?(1)\n):[ ]+(\d+)""")


def read_vocabulary(file: Path) -> list[str]:
    """Return the tokens of a vocabulary by id: JSON, or YAML as Marian writes it.

    PyYAML would take several minutes, and takes some tokens for line breaks or numbers.

    Raises:
        CheckpointError: it is damaged, or ids are not 0, 1, 2 and so on.
    """
    if file.suffix == ".json":
        ids = json_object(file)
    else:
        try:
            check_regular(file)
            text = re.sub(r"\r?\n", "\n", file.read_bytes().decode()).removesuffix("\n")
            entries = [_ENTRY.fullmatch(x) for x in re.split(r"\n(?!:)", text)]
            ids = {_unquoted(x[2]): int(x[3]) for x in entries if x}
            if None in entries:
                raise ValueError(f"entry {entries.index(None) + 1:,}")
        except (OSError, ValueError, yaml.YAMLError) as error:
            what = "is not a vocabulary"
            raise CheckpointError(str(file), what, got=str(error), remedy=RESTORE) from None
    by_id = {str(i): token for token, i in ids.items()}
    if by_id.keys() != set(map(str, range(len(ids)))):
        what = "must have each id from 0 on once"
        raise CheckpointError(str(file), what, got=f"{len(ids):,} tokens", remedy=RESTORE)
    return [by_id[str(i)] for i in range(len(ids))]


def _unquoted(token: str) -> str:
    if token.startswith("'"):
        return token[1:-1].replace("''", "'")
    if not token.startswith('"'):
        return token
    return str(yaml.safe_load(token)) if "\\" in token else token[1:-1]
