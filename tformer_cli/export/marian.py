"""Export to a folder that transformers' MarianMTModel and MarianTokenizer load, and import of it.

Logits are ours, and suppressed tokens have none to speak of, so greedy translations and
probabilities are equal. Empty translations are excluded by the folder's `generate` settings. Text
that is spelled like a special token, or begins with a language code (`>>de<<`), means something to
Marian and is plain text to us; all other text has the same ids.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.export.check import ImportedFormat
from tformer_cli.export.format import filled
from tformer_cli.export.marian_settings import (
    LANGUAGES_FILE,
    OUR_IDS,
    RESTORE,
    SEARCH_FILE,
    SETTINGS_FILE,
    SPECIAL_IDS,
    Shape,
    config_json,
    data_config,
    language_settings,
    read_languages,
    read_search,
    read_shape,
    search_settings,
    unsupported_by_marian,
    vocabulary_ids,
)
from tformer_cli.export.marian_weights import (
    LOGITS_BIAS,
    OUTSIDE,
    SOURCE,
    check_weights,
    our_weights,
    read_weights,
    table_names,
    to_ours,
    to_theirs,
    weight_names,
    weights_file,
    write_weights,
)
from tformer_cli.model.build import build_model, build_with_weights
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import write_json
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.subword import MarianTokenizer, marian_file
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import NUM_SPECIAL

PICKLE_FILE = "pytorch_model.bin"
VOCABULARY_FILE, TARGET_VOCABULARY_FILE = "vocab.json", "target_vocab.json"
PIECES_FILES = "source.spm", "target.spm"


class MarianFormat(ImportedFormat):
    """A folder that transformers loads."""

    program: ClassVar = "transformers"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        return unsupported_by_marian(trained.config)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        config, tokenizers = trained.config, trained.tokenizers
        assert isinstance(config.model, EncoderDecoderConfig)
        source, target = map(vocabulary, (tokenizers.source, tokenizers.target))
        suppressed = tokenizers.target.suppressed_ids
        write_weights(folder, to_theirs(our_weights(trained.model), suppressed, config.model))
        write_json(folder / SETTINGS_FILE, config_json(config, len(source), len(target)))
        write_json(folder / SEARCH_FILE, search_settings(config))
        write_json(folder / LANGUAGES_FILE, language_settings(config))
        write_json(folder / VOCABULARY_FILE, source)
        if not tokenizers.shared:
            write_json(folder / TARGET_VOCABULARY_FILE, target)
        sides = tokenizers.source, tokenizers.target
        for name, side in zip(PIECES_FILES, sides, strict=True):
            content = side.model if isinstance(side, MarianTokenizer) else side.content
            (folder / name).write_bytes(content)

    def read(self, folder: Path) -> TrainedModel:
        return read_marian(folder)

    def example(self, trained: TrainedModel, line: str) -> str:
        return filled("marian.py.txt", line=repr(line))

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["transformers", "sentencepiece", "torch"]


def vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """Return Marian's id of each piece."""
    pieces = tokenizer.tokens(range(NUM_SPECIAL, tokenizer.size))
    return SPECIAL_IDS | {piece: i for i, piece in enumerate(pieces, start=len(SPECIAL_IDS))}


class Side(NamedTuple):
    """The tokenizer of a language, and Marian's ids (n,) of the tokens that it has too."""

    tokenizer: MarianTokenizer
    ids: Tensor


def read_marian(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder, with the search of its generation_config.json.

    Nothing is unpickled. Arguments and errors are those of `import_run`.
    """
    names = (SETTINGS_FILE, *PIECES_FILES, VOCABULARY_FILE, LANGUAGES_FILE)
    check_files(folder, names, "a Marian model", "MarianMTModel")
    shape = read_shape(folder / SETTINGS_FILE)
    decoding = read_search(folder / SEARCH_FILE)
    languages = read_languages(folder / LANGUAGES_FILE)
    if languages.are_separate and shape.model.tie_embeddings == "all":
        what = "has two vocabularies, but config.json has one embedding table"
        got = "separate_vocabs true"
        raise CheckpointError(str(folder / LANGUAGES_FILE), what, got=got, remedy=RESTORE)
    target_file = TARGET_VOCABULARY_FILE if languages.are_separate else VOCABULARY_FILE
    source = _side(folder, PIECES_FILES[0], VOCABULARY_FILE, shape.source_size)
    target = _side(folder, PIECES_FILES[1], target_file, shape.target_size)
    _check_special_ids(folder, target_file, shape, target.ids)
    model = _model(weights_file(folder), shape, source, target)
    tokenizers = Tokenizers(source.tokenizer, target.tokenizer, not languages.are_separate)
    config = Config(
        data=data_config(source_language or languages.source, target_language or languages.target),
        tokenizer=MarianConfig(shared=tokenizers.shared),
        model=shape.model,
        decoding=decoding,
    )
    return TrainedModel(config, tokenizers, model, step=0)


def check_files(folder: Path, names: Sequence[str], kind: str, model: str) -> None:
    """Refuse a pickle, and a folder without weights or one of its files.

    `kind` is of the model as people call it, `model` its class of transformers.
    """
    weights = weights_file(folder)
    check_pickle(folder, weights, model)
    for name in (weights.name, *names):
        if not (folder / name).is_file():
            remedy = f"name a folder of {kind} as transformers saves it"
            raise CheckpointError(str(folder / name), "no such file", remedy=remedy)


def check_pickle(folder: Path, weights: Path, loader: str) -> None:
    """Refuse a folder that has weights as a pickle only, which transformers' `loader` converts."""
    if (folder / PICKLE_FILE).exists() and not weights.exists():
        saving = f"{loader}.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        raise CheckpointError(
            str(folder / PICKLE_FILE),
            f"is a pickle, which can run any program; only {weights.name} is read",
            remedy="if you trust it, convert it: "
            f'python -c "from transformers import {loader}; {saving}"',
        )


def _side(folder: Path, pieces_name: str, vocabulary_name: str, size: int) -> Side:
    file = folder / vocabulary_name
    ids = vocabulary_ids(file)
    if len(ids) != size or sorted(ids.values()) != list(range(size)):
        what = f"must name each of the {size} embedding rows once"
        raise CheckpointError(str(file), what, got=f"{len(ids)} pieces", remedy=RESTORE)
    for token in OUR_IDS:
        if token not in ids:
            raise CheckpointError(str(file), f"has no {token}", remedy=RESTORE)
    pieces = sorted(ids.keys() - OUR_IDS.keys(), key=ids.__getitem__)
    model_file = folder / pieces_name
    content = marian_file(model_file.read_bytes(), pieces)
    tokenizer = MarianTokenizer(content, Normalizer(), name=str(model_file))
    return Side(tokenizer, torch.tensor([ids[piece] for piece in (*OUR_IDS, *pieces)]))


def _check_special_ids(folder: Path, name: str, shape: Shape, ids: Tensor) -> None:
    """Check that config.json has the special ids of the target vocabulary."""
    theirs = dict(zip(OUR_IDS, ids.tolist(), strict=False))
    problems = []
    for key, token, got in (
        ("eos_token_id", "</s>", shape.end_id),
        ("pad_token_id", "<pad>", shape.pad_id),
    ):
        if got != theirs[token]:
            what = f"must be {theirs[token]}, the id of {token} in {name}"
            problems.append(Problem(f"{folder / SETTINGS_FILE}: {key}", what, str(got)))
    if problems:
        raise ConfigError(problems)


def _model(file: Path, shape: Shape, source: Side, target: Side) -> Seq2Seq:
    stored = read_weights(file)
    config = shape.model
    # Tables come first: they say how large the rest can be.
    tables = {
        name: (shape.source_size if ours == SOURCE else shape.target_size, config.dim)
        for ours, name in table_names(config, stored).items()
    }
    if LOGITS_BIAS in stored:
        tables[LOGITS_BIAS] = 1, shape.target_size
    check_weights(file, {name: stored[name] for name in tables if name in stored}, tables)
    sizes = source.tokenizer.size, target.tokenizer.size
    check_num_layers(config, len(stored), file.with_name(SETTINGS_FILE))
    names = {ours: theirs for ours, theirs, _ in weight_names(config)}
    check_layers(file, stored, names, OUTSIDE, config, sizes)
    return model_of(stored, shape, source, target)


def check_layers(
    file: Path,
    stored: Mapping[str, Tensor],
    names: Mapping[str, str],
    outside: Container[str],
    config: EncoderDecoderConfig,
    sizes: tuple[int, int],
) -> None:
    """Check the weights of a file, those `outside` excepted; `names` are theirs by ours."""
    shapes = layer_shapes(config, sizes)
    inside = {name: weight for name, weight in stored.items() if name not in outside}
    check_weights(file, inside, {theirs: shapes[ours] for ours, theirs in names.items()})


def check_num_layers(config: EncoderDecoderConfig, num_stored: int, settings: Path) -> None:
    """Check that a file of settings describes no more layers than there are stored weights."""
    num_layers = config.num_encoder_layers + config.num_decoder_layers
    if num_layers > num_stored:
        # Every layer has weights, so too many layers fail before they are named and built.
        what = f"describes more layers than the {num_stored} weights that the folder has"
        raise CheckpointError(str(settings), what, got=str(num_layers), remedy=RESTORE)


def layer_shapes(
    config: EncoderDecoderConfig, sizes: tuple[int, int]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight by our names."""
    with torch.device("meta"):
        model = build_model(config, source_size=sizes[0], target_size=sizes[1], seed=0)
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def model_of(stored: Mapping[str, Tensor], shape: Shape, source: Side, target: Side) -> Seq2Seq:
    """Return our model of Marian's weights, by the names that transformers has for them."""
    weights = to_ours(stored, source.ids, target.ids, shape.model, is_scaled=shape.is_scaled)
    sizes = {"source_size": source.tokenizer.size, "target_size": target.tokenizer.size}
    return build_with_weights(shape.model, weights, **sizes)
