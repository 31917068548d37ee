"""Export to a folder that transformers' MarianMTModel and MarianTokenizer load, and import of it.

Logits are ours, and suppressed tokens have none to speak of, so greedy translations and
probabilities are equal. Empty translations are excluded by the folder's `generate` settings. Text
that is spelled like a special token, or begins with a language code (`>>de<<`), means something to
Marian and is plain text to us; all other text has the same ids.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem
from tformer_cli.export.check import TransformersFormat
from tformer_cli.export.format import filled, sentencepiece_model
from tformer_cli.export.marian_settings import (
    OUR_IDS,
    SPECIAL_IDS,
    Shape,
    config_json,
    language_settings,
    read_languages,
    read_shape,
    search_settings,
    unsupported_by_marian,
)
from tformer_cli.export.marian_weights import (
    OUTSIDE,
    marian_names,
    scale_down,
    shared_ids,
    suppressed_bias,
)
from tformer_cli.export.settings import (
    LANGUAGES_FILE,
    RESTORE,
    SEARCH_FILE,
    SETTINGS_FILE,
    check_files,
    data_config,
    read_search,
    vocabulary_ids,
)
from tformer_cli.export.weights import (
    LOGITS_BIAS,
    StoredWeights,
    our_weights,
    read_weights,
    to_theirs,
    weights_file,
    write_weights,
)
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import write_json
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import NUM_SPECIAL
from tformer_cli.text.subword import MarianTokenizer, marian_file
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers

VOCABULARY_FILE, TARGET_VOCABULARY_FILE = "vocab.json", "target_vocab.json"
PIECES_FILES = "source.spm", "target.spm"


class MarianFormat(TransformersFormat):
    """A folder that transformers loads."""

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        return unsupported_by_marian(trained.config)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        config, tokenizers = trained.config, trained.tokenizers
        assert isinstance(config.model, EncoderDecoderConfig)
        source, target = map(vocabulary, (tokenizers.source, tokenizers.target))
        suppressed = tokenizers.target.suppressed_ids
        ours = our_weights(trained.model)
        ids = shared_ids(tokenizers.source.size), shared_ids(tokenizers.target.size)
        weights = to_theirs(ours, marian_names(config.model), ids)
        weights[LOGITS_BIAS] = suppressed_bias(ours, suppressed)[None, ids[1]]
        write_weights(folder, weights)
        write_json(folder / SETTINGS_FILE, config_json(config, len(source), len(target)))
        write_json(folder / SEARCH_FILE, search_settings(config))
        write_json(folder / LANGUAGES_FILE, language_settings(config))
        write_json(folder / VOCABULARY_FILE, source)
        if not tokenizers.shared:
            write_json(folder / TARGET_VOCABULARY_FILE, target)
        sides = tokenizers.source, tokenizers.target
        for name, side in zip(PIECES_FILES, sides, strict=True):
            (folder / name).write_bytes(sentencepiece_model(side))

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
    """The tokenizer of a language, and Marian's rows (n,) of its tokens; -1 of those it lacks."""

    tokenizer: MarianTokenizer
    rows: Tensor

    @classmethod
    def of(cls, tokenizer: MarianTokenizer, rows: Sequence[int]) -> "Side":
        """Return a side with the rows of the tokens of `shared_ids`."""
        every = torch.full((tokenizer.size,), -1)
        every[shared_ids(tokenizer.size)] = torch.tensor(rows)
        return cls(tokenizer, every)


def read_marian(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder, with the search of its generation_config.json.

    Nothing is unpickled. Arguments and errors are those of `import_run`.
    """
    names = (SETTINGS_FILE, *PIECES_FILES, VOCABULARY_FILE, LANGUAGES_FILE)
    file = weights_file(folder)
    check_files(folder, file, names, "a Marian model", "MarianMTModel")
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
    _check_special_ids(folder, target_file, shape, target.rows)
    model = _model(read_weights(file), shape, source, target)
    tokenizers = Tokenizers(source.tokenizer, target.tokenizer, not languages.are_separate)
    config = Config(
        data=data_config(source_language or languages.source, target_language or languages.target),
        tokenizer=MarianConfig(shared=tokenizers.shared),
        model=shape.model,
        decoding=decoding,
    )
    return TrainedModel(config, tokenizers, model, step=0)


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
    return Side.of(tokenizer, [ids[piece] for piece in (*OUR_IDS, *pieces)])


def _check_special_ids(folder: Path, name: str, shape: Shape, rows: Tensor) -> None:
    """Check that config.json has the special ids of the target vocabulary."""
    problems = []
    for key, token, got in (
        ("eos_token_id", "</s>", shape.end_id),
        ("pad_token_id", "<pad>", shape.pad_id),
    ):
        if got != (row := int(rows[OUR_IDS[token]])):
            what = f"must be {row}, the id of {token} in {name}"
            problems.append(Problem(f"{folder / SETTINGS_FILE}: {key}", what, str(got)))
    if problems:
        raise ConfigError(problems)


def _model(stored: StoredWeights, shape: Shape, source: Side, target: Side) -> Seq2Seq:
    names = marian_names(shape.model, stored.weights)
    stored.check_tables(names, (shape.source_size, shape.target_size), shape.model.dim)
    model = stored.network(names, (source.rows, target.rows), shape.model, outside=OUTSIDE)
    if not shape.is_scaled:
        scale_down(model, shape.model)
    return model
