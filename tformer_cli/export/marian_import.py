"""A folder that holds a Marian model, as transformers saves it, as a run folder of ours.

Our start token stands for Marian's pad, with which its targets begin. Of the tokens that Marian
does not have, such as `<mask>`, embeddings are zeros, and an output bias leaves them no
probability.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.checkpoint.checkpoint import save_checkpoint
from tformer_cli.checkpoint.state import TrainingState
from tformer_cli.checkpoint.tensors import read_tensors
from tformer_cli.checkpoint.trained_model import TrainedModel
from tformer_cli.config.load import dump_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, TrainingText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem, UsageError
from tformer_cli.export.marian_settings import (
    RESTORE,
    Shape,
    json_object,
    read_languages,
    read_shape,
)
from tformer_cli.export.marian_weights import (
    OUR_IDS,
    OUTPUT,
    SOURCE,
    TARGET,
    Rows,
    Tables,
    to_ours,
    twins,
)
from tformer_cli.model.build import build_model
from tformer_cli.model.inspection.summary import skeleton
from tformer_cli.model.network import Seq2Seq
from tformer_cli.run_directory import RunDirectory, whole_directory, write_text
from tformer_cli.text.marian import MarianTokenizer, marian_file
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import NUM_SPECIAL

WEIGHTS_FILE = "model.safetensors"
PICKLE_FILE = "pytorch_model.bin"

SHARED = "model.shared.weight"
SOURCE_EMBEDDINGS = "model.encoder.embed_tokens.weight"
TARGET_EMBEDDINGS = "model.decoder.embed_tokens.weight"
OUTPUT_MAP = "lm_head.weight"
LOGITS_BIAS = "final_logits_bias"
# All weights that are not inside the layers: tables, and waves, which are the same in every model.
OUTSIDE = {
    "model.encoder.embed_positions.weight",
    "model.decoder.embed_positions.weight",
    SHARED,
    SOURCE_EMBEDDINGS,
    TARGET_EMBEDDINGS,
    OUTPUT_MAP,
    LOGITS_BIAS,
}


class Side(NamedTuple):
    """One language of a model: its tokenizer, and which ids in it are which of Marian's."""

    tokenizer: MarianTokenizer
    rows: Rows


def import_marian(
    folder: Path,
    run: RunDirectory,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> TrainedModel:
    """Write a run folder that translates as a Marian model does: as a whole, or not at all.

    Args:
        folder: as transformers saves it, with safetensors; nothing in it is unpickled.
        run: where to write; there must be nothing yet.
        source_language: an ISO code; what the folder says where it is None.
        target_language: likewise.

    Raises:
        CheckpointError: the folder holds something else, or a file is missing or damaged.
        ConfigError: the model is another function than any of ours; everything that differs.
        UsageError: the run folder is there already.
        StorageError: the system does not let it be written.
    """
    if run.path.exists():
        raise UsageError(str(run.path), "is there already", remedy="remove it, or name another")
    trained = read_marian(folder, source_language=source_language, target_language=target_language)
    with whole_directory(run.path) as temporary:
        _write_run(trained, RunDirectory(temporary))
    return trained


def read_marian(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder; arguments and errors as of `import_marian`."""
    _check_files(folder)
    shape = read_shape(folder / "config.json")
    languages = read_languages(folder / "tokenizer_config.json")
    if languages.are_apart and shape.model.tie == "all":
        raise CheckpointError(
            str(folder / "tokenizer_config.json"),
            "has two vocabularies where config.json has one table of embeddings",
            got="separate_vocabs true",
            remedy=RESTORE,
        )
    source = _side(folder, "source.spm", "vocab.json", shape.source_size)
    target_file = "target_vocab.json" if languages.are_apart else "vocab.json"
    target = _side(folder, "target.spm", target_file, shape.target_size)
    _check_roles(folder, target_file, shape, target.rows)
    model = _model(folder / WEIGHTS_FILE, shape, source.rows, target.rows)
    tokenizers = Tokenizers(source.tokenizer, target.tokenizer, not languages.are_apart)
    config = Config(
        data=_data(source_language or languages.source, target_language or languages.target),
        tokenizer=MarianConfig(shared=tokenizers.shared),
        model=shape.model,
    )
    return TrainedModel(config, tokenizers, model, step=0)


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            str(folder), "no such folder", remedy="name the folder of a Marian model"
        )
    if (folder / PICKLE_FILE).exists() and not (folder / WEIGHTS_FILE).exists():
        saving = f"MarianMTModel.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        raise CheckpointError(
            str(folder / PICKLE_FILE),
            f"is a pickle, which can run any program; only {WEIGHTS_FILE} is read",
            remedy="if you trust it, convert it: "
            f'python -c "from transformers import MarianMTModel; {saving}"',
        )
    names = "config.json", WEIGHTS_FILE, "source.spm", "target.spm", "vocab.json"
    for name in (*names, "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise CheckpointError(
                str(folder / name),
                "no such file",
                remedy="name a folder of a Marian model as transformers saves it",
            )


def _side(folder: Path, model_name: str, vocabulary_name: str, size: int) -> Side:
    file = folder / vocabulary_name
    ids = json_object(file)
    if not all(type(i) is int for i in ids.values()):
        raise CheckpointError(
            str(file), "is not a vocabulary", got="an id that is no whole number", remedy=RESTORE
        )
    if any(map(_is_broken, ids)):
        raise CheckpointError(
            str(file), "is not a vocabulary", got="half a character of Unicode", remedy=RESTORE
        )
    if len(ids) != size or sorted(ids.values()) != list(range(size)):
        raise CheckpointError(
            str(file),
            f"must name each of the {size} rows of the embeddings once",
            got=f"{len(ids)} pieces",
            remedy=RESTORE,
        )
    for token in OUR_IDS:
        if token not in ids:
            raise CheckpointError(str(file), f"has no {token}", remedy=RESTORE)
    pieces = sorted(ids.keys() - OUR_IDS.keys(), key=ids.__getitem__)
    model_file = folder / model_name
    content = marian_file(model_file.read_bytes(), pieces)
    tokenizer = MarianTokenizer(content, Normalizer(), name=str(model_file))
    rows = Rows(
        ours=torch.tensor([*OUR_IDS.values(), *range(NUM_SPECIAL, tokenizer.size)]),
        theirs=torch.tensor([ids[piece] for piece in (*OUR_IDS, *pieces)]),
        our_size=tokenizer.size,
        their_size=size,
    )
    return Side(tokenizer, rows)


def _is_broken(piece: str) -> bool:
    """Say whether JSON has escaped one of the two surrogates of a character without the other."""
    return any("\ud800" <= character <= "\udfff" for character in piece)


def _check_roles(folder: Path, name: str, shape: Shape, rows: Rows) -> None:
    """Check that config.json means the special tokens of the target vocabulary."""
    settings = folder / "config.json"
    theirs = dict(zip(OUR_IDS, rows.theirs.tolist(), strict=False))
    problems = [
        Problem(f"{settings}: {key}", f"must be the id of {token} in {name} ({theirs[token]})", got)
        for key, token, got in (
            ("eos_token_id", "</s>", str(shape.end_id)),
            ("pad_token_id", "<pad>", str(shape.start_id)),
        )
        if got != str(theirs[token])
    ]
    if problems:
        raise ConfigError(problems)


def _model(file: Path, shape: Shape, source: Rows, target: Rows) -> Seq2Seq:
    theirs = _read_weights(file)
    names = _names_of_tables(theirs, shape.model)
    _check_weights(file, theirs, names, shape)
    bias = theirs.get(LOGITS_BIAS, torch.zeros(1, shape.target_size))
    tables = Tables(theirs[names[0]], theirs[names[1]], theirs[names[2]], bias[0])
    weights = to_ours(theirs, tables, source, target, shape.model)
    if not shape.is_scaled:
        weights = scaled_down(weights, shape.model)
    model = build_model(
        shape.model, source_size=source.our_size, target_size=target.our_size, seed=0
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval()


def _read_weights(file: Path) -> dict[str, Tensor]:
    try:
        return {name: weight.float() for name, weight in read_tensors(file)}
    except CheckpointError as error:
        (problem,) = error.problems
        where, what = problem.where, problem.what
        raise CheckpointError(where, what, got=problem.got, remedy=RESTORE) from None


def _names_of_tables(
    theirs: Mapping[str, Tensor], config: EncoderDecoderConfig
) -> tuple[str, str, str]:
    """Return the names of the source and target embeddings and of the output."""
    if config.tie == "all":
        shared = SHARED if SHARED in theirs else TARGET_EMBEDDINGS
        return shared, shared, shared
    source, target = (
        name if name in theirs else SHARED for name in (SOURCE_EMBEDDINGS, TARGET_EMBEDDINGS)
    )
    return source, target, target if config.tie == "output" else OUTPUT_MAP


def _check_weights(
    file: Path, theirs: Mapping[str, Tensor], names: tuple[str, str, str], shape: Shape
) -> None:
    """Check that a file has the weights of a model and no others.

    Args:
        file: for messages.
        theirs: its weights.
        names: of the source and target embeddings and of the output among them.
        shape: what they should be.
    """
    dim, config = shape.model.dim, shape.model
    found = {name: tuple(weight.shape) for name, weight in theirs.items()}
    sizes = shape.source_size, shape.target_size, shape.target_size
    tables = {name: (size, dim) for name, size in zip(names, sizes, strict=True)}
    if LOGITS_BIAS in theirs:
        tables[LOGITS_BIAS] = 1, shape.target_size
    # These say how large the rest can be, before a skeleton is made of that size.
    _check_same(file, {name: found[name] for name in tables if name in found}, tables)
    network = skeleton(config, source_size=shape.source_size, target_size=shape.target_size)
    ours = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    layers = {twin.theirs: ours[twin.ours] for twin in twins(config)}
    inside = {name: dims for name, dims in found.items() if name not in OUTSIDE}
    _check_same(file, inside, layers)


def _check_same(
    file: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    differing = {name for name, _ in expected.items() ^ found.items()}
    if differing:
        raise CheckpointError(
            str(file),
            f"holds another model than config.json describes ({len(differing)} weights differ)",
            got=min(differing),
            remedy=RESTORE,
        )


def scaled_down(weights: dict[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """Return weights of embeddings that are multiplied by the root of their width, as ours are.

    Where the output has the same weights, the last norm makes up for it.

    Args:
        weights: of embeddings that are taken as they are.
        config: our shape of the model.
    """
    root = math.sqrt(config.dim)
    factors = {SOURCE: 1 / root, TARGET: 1 / root}
    if config.tie != "none":
        last = f"decoder.layers.{config.num_decoder_layers - 1}.feedforward_norm"
        factors |= {OUTPUT: 1 / root, f"{last}.weight": root, f"{last}.bias": root}
    return weights | {name: weights[name] * factor for name, factor in factors.items()}


def _data(source: str, target: str) -> DataConfig:
    """Return where a training that goes on looks for text, below its `data.root`."""
    return DataConfig(
        source_language=source,
        target_language=target,
        train=(TrainingText(source=Path(f"train.{source}"), target=Path(f"train.{target}")),),
        valid=ParallelText(source=Path(f"valid.{source}"), target=Path(f"valid.{target}")),
    )


def _write_run(trained: TrainedModel, run: RunDirectory) -> None:
    write_text(run.config_file, dump_config(trained.config))
    trained.tokenizers.save(run.tokenizer)
    checkpoint = run.checkpoint(trained.step)
    state = TrainingState.beginning(trained.tokenizers.fingerprint, environment={})
    # An optimiser that has not moved has nothing to keep.
    save_checkpoint(checkpoint, trained.model, torch.optim.SGD(trained.model.parameters()), state)
    run.point("best", checkpoint)
    run.point("last", checkpoint)
