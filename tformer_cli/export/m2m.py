"""Import of M2M-100, NLLB and mBART-50 as transformers saves them, and export of such a run.

Rows of tokens that these models do not have, such as `<sep>`, are zero, and an output bias
leaves them no probability; no training changes it (`model.train_output_bias: false`).
Text that is spelled like a special token or a language means something to transformers, and is
plain text to us; all other text has the same ids.
"""

from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.tokenizer import M2MConfig
from tformer_cli.errors import Problem
from tformer_cli.export.check import TransformersFormat
from tformer_cli.export.converted import within_positions
from tformer_cli.export.format import example_languages, filled
from tformer_cli.export.m2m_settings import (
    SENTENCEPIECE_FILE,
    VOCABULARY_FILE,
    config_json,
    direction,
    language_settings,
    read_languages,
    read_shape,
    search_settings,
)
from tformer_cli.export.marian_weights import OUTSIDE, TABLES, table_names, weight_names
from tformer_cli.export.settings import (
    LANGUAGES_FILE,
    SEARCH_FILE,
    SETTINGS_FILE,
    check_files,
    data_config,
    read_search,
)
from tformer_cli.export.weights import (
    BIAS,
    LOGITS_BIAS,
    SIDES,
    Names,
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
from tformer_cli.text.m2m import M2M_IDS, M2MTokenizer, m2m_file
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import NUM_SPECIAL
from tformer_cli.text.tokenizer import Tokenizers

# Their names outside the layers by ours.
POSITIONS = {f"{x}.embeddings.positions.weight": f"model.{x}.embed_positions.weight" for x in SIDES}


class M2MFormat(TransformersFormat):
    """A folder that transformers loads, of a run that was imported from one."""

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        model, tokenizer = trained.config.model, trained.tokenizers.target
        if not isinstance(tokenizer, M2MTokenizer) or not isinstance(model, EncoderDecoderConfig):
            what = "must be m2m: only an imported M2M-100, NLLB or mBART model goes back"
            yield Problem("tokenizer.kind", what, tokenizer.kind, "use another `format`")
            return
        if model.sliding_window is not None:
            what = "must be null in an M2M-100, NLLB or mBART model"
            yield Problem("model.sliding_window", what, str(model.sliding_window))
        bias = trained.model.output.bias[their_ids(tokenizer)]
        if not model.embedding_norm and bias.any():
            what = "was trained, and M2M-100 and NLLB have no output bias"
            remedy = "train with model.train_output_bias: false"
            yield Problem("model.output_bias", what, remedy=remedy)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        config, tokenizer = trained.config, trained.tokenizers.target
        assert isinstance(config.model, EncoderDecoderConfig)
        assert isinstance(tokenizer, M2MTokenizer)
        ours, ids = our_weights(trained.model), their_ids(tokenizer)
        weights = to_theirs(ours, m2m_names(config.model), (ids, ids))
        if config.model.embedding_norm:
            weights[LOGITS_BIAS] = ours[BIAS][None, ids]
        write_weights(folder, weights)
        size = len(tokenizer.vocabulary)
        write_json(folder / SETTINGS_FILE, config_json(config, size))
        write_json(folder / SEARCH_FILE, search_settings(config, tokenizer.vocabulary))
        settings = language_settings(config, tokenizer)
        write_json(folder / LANGUAGES_FILE, settings)
        if settings["tokenizer_class"] == "M2M100Tokenizer":
            write_json(folder / VOCABULARY_FILE, tokenizer.subwords())
        (folder / SENTENCEPIECE_FILE).write_bytes(tokenizer.model)

    def read(self, folder: Path) -> TrainedModel:
        return read_m2m(folder)

    def example(self, trained: TrainedModel, line: str) -> str:
        source, target = example_languages(trained.config.data)
        tokenizer = trained.tokenizers.target
        assert isinstance(tokenizer, M2MTokenizer)
        values = {"line": line, "source": source, "target": target}
        values["token"] = tokenizer.language_tokens[target]
        return filled("m2m.py.txt", **{name: repr(value) for name, value in values.items()})

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["transformers", "sentencepiece", "protobuf", "torch"]


def read_m2m(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a folder, with the search of its generation_config.json.

    Nothing is unpickled. Arguments and errors are those of `import_run`; languages are those of the
    model, and the two are what it translates by default.
    """
    file = weights_file(folder)
    needed, family = (SETTINGS_FILE, SENTENCEPIECE_FILE), "an M2M-100, NLLB or mBART model"
    check_files(folder, file, needed, family, "AutoModelForSeq2SeqLM")
    shape = read_shape(folder / SETTINGS_FILE)
    decoding = read_search(folder / SEARCH_FILE)
    content = (folder / SENTENCEPIECE_FILE).read_bytes()
    stored = read_weights(file)
    names = m2m_names(shape.model, stored.weights)
    stored.check_tables(names, (shape.size, shape.size), shape.model.dim)
    languages = read_languages(folder, content, shape.size)
    source, target = direction(languages, folder, (source_language, target_language))
    serialized = m2m_file(content, languages.vocabulary, languages.tokens)
    tokenizer = M2MTokenizer(serialized, Normalizer(), name=str(folder / SENTENCEPIECE_FILE))
    data = replace(data_config(source, target), language_marks="tokens")
    model = _model(stored, names, shape.model, tokenizer)
    config = Config(data=data, tokenizer=M2MConfig(), model=shape.model, decoding=decoding)
    tokenizers = Tokenizers(tokenizer, tokenizer, shared=True)
    return TrainedModel(within_positions(config), tokenizers, model, step=0)


def _model(
    stored: StoredWeights, names: Names, config: EncoderDecoderConfig, tokenizer: M2MTokenizer
) -> Seq2Seq:
    rows, ids = torch.full((tokenizer.size,), -1), their_ids(tokenizer)
    rows[ids] = torch.arange(len(ids))
    # In old folders sinusoids, which are the same in every model, have another name.
    outside = OUTSIDE | {f"{name}s" for name in POSITIONS.values()}
    if config.positions.kind == "learned":
        outside -= {*POSITIONS.values()}
    return stored.network(names, (rows, rows), config, outside=outside)


def their_ids(tokenizer: M2MTokenizer) -> Tensor:
    """Return our ids (n,) of the tokens of the model, in its own order."""
    others = iter(range(NUM_SPECIAL, tokenizer.size))
    ids = [M2M_IDS[x] if x in M2M_IDS else next(others) for x in tokenizer.vocabulary]
    return torch.tensor(ids)


def m2m_names(config: EncoderDecoderConfig, stored: Container[str] = TABLES) -> Names:
    """Return their names of our weights, given the names that a file has."""
    return Names(_layer_names(config), table_names(config, stored), _axis(config, 1))


def _axis(config: EncoderDecoderConfig, axis: int | None) -> int | None:
    """Return the axis to lay out in the order of sinusoids; None without sinusoids."""
    return axis if config.positions.kind == "sinusoidal" else None


def _layer_names(config: EncoderDecoderConfig) -> Iterator[tuple[str, str, int | None]]:
    """Yield our name and theirs of each weight but tables of tokens, and its axis as in Marian."""
    for ours, theirs, axis in weight_names(config):
        yield ours, theirs, _axis(config, axis)
    norms = {"norm": "layer_norm"}
    if config.embedding_norm:
        norms["embeddings.norm"] = "layernorm_embedding"
    for side in SIDES:
        for ours, theirs in norms.items():
            for part in ("weight", "bias"):
                yield f"{side}.{ours}.{part}", f"model.{side}.{theirs}.{part}", _axis(config, 0)
    if config.positions.kind == "learned":
        for ours, theirs in POSITIONS.items():
            yield ours, theirs, None
