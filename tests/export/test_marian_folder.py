"""Marian models of transformers as runs of ours: the same ids, logits and translations."""

import ast
import json
import shlex
from pathlib import Path

import pytest
import torch
from exportable import content_of
from hypothesis import given, settings
from hypothesis import strategies as st
from opus import (
    CODE,
    LONGEST,
    SOURCES,
    TARGETS,
    change_json,
    greedy,
    save_opus,
    scores,
    tokenizer_of,
    unnamed,
    write_json,
)
from safetensors.torch import load_file, save_file
from transformers import MarianMTModel, MarianTokenizer

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.errors import ConfigError, TformerError
from tformer_cli.export.marian import read_marian
from tformer_cli.export.run import import_run
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, UNK_ID
from tformer_cli.text.tokenizer import Tokenizer
from tformer_cli.translate.translator import Translator

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

SEPARATE = {"separate_vocabs": True, "share_encoder_decoder_embeddings": False}
CASES = {
    "shared": {},
    "not-scaled": {"scale_embedding": False},
    "relu": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 2},
    "not-tied": {"tie_word_embeddings": False, "activation_function": "gelu"},
    "two-tables": {"share_encoder_decoder_embeddings": False, "scale_embedding": False},
    "two-vocabularies": SEPARATE,
    "two-vocabularies-not-tied": SEPARATE
    | {"tie_word_embeddings": False, "scale_embedding": False, "d_model": 6},
}
LINES = [*SOURCES, f"{CODE}a cat", ">>fr<< dogs", "xyz 漢字 sat", "hats  hats ", "Hüte", "</", "▁a"]
PAIRS = [*zip(SOURCES, TARGETS, strict=True), ("cats", "Hüte 漢"), ("the mat", f"{CODE} und")]


class Parity:
    """A model of transformers, and ours that was made of it."""

    def __init__(self, folder: Path, name: str) -> None:
        torch.manual_seed(3)
        self.folder = folder / name
        self.theirs: MarianMTModel = save_opus(self.folder, **CASES[name])
        self.tokenizer: MarianTokenizer = tokenizer_of(self.folder)
        self.ours: TrainedModel = read_marian(self.folder)

    def their_ids(self, name: str) -> dict[str, int]:
        file = self.folder / name
        return json.loads((file if file.exists() else self.folder / "vocab.json").read_text())

    def translator(self) -> Translator:
        ours = self.ours
        return Translator.from_model(
            ours.model, ours.tokenizers, ours.config, torch.device("cpu"), max_source_length=60
        )


@pytest.fixture(scope="module", params=CASES)
def parity(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parity:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        return Parity(tmp_path_factory.mktemp("opus"), request.param)


@pytest.fixture
def opus(tmp_path: Path) -> Path:
    save_opus(tmp_path / "opus")
    return tmp_path / "opus"


def our_ids(theirs: dict[str, int], tokenizer: Tokenizer) -> torch.Tensor:
    """Our id of each of theirs: by what the pieces are called."""
    ours = {token: i for i, token in enumerate(tokenizer.tokens(range(tokenizer.size)))}
    ours |= {"</s>": EOS_ID, "<unk>": UNK_ID, "<pad>": BOS_ID}
    return torch.tensor([ours[token] for token in sorted(theirs, key=theirs.__getitem__)])


def both_logits(parity: Parity, precision: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ours of their ids, and theirs, of some random sentences."""
    sizes = len(parity.their_ids("vocab.json")), len(parity.their_ids("target_vocab.json"))
    source = torch.randint(sizes[0] - 1, (2, 7))
    target = torch.randint(sizes[1] - 1, (2, 11))
    target[:, 0] = sizes[1] - 1
    tokenizers = parity.ours.tokenizers
    source_ids = our_ids(parity.their_ids("vocab.json"), tokenizers.source)
    target_ids = our_ids(parity.their_ids("target_vocab.json"), tokenizers.target)
    seen = torch.arange(7) < torch.tensor([[7], [4]])
    theirs, ours = parity.theirs.to(precision), parity.ours.model.to(precision)
    everywhere = torch.arange(2 * 11)
    with torch.no_grad():
        expected = theirs(
            input_ids=source, attention_mask=seen.long(), decoder_input_ids=target
        ).logits.flatten(0, 1)
        logits = ours(source_ids[source], seen, target_ids[target], everywhere)
    absent = torch.ones(logits.shape[1], dtype=torch.bool)
    absent[target_ids] = False
    assert logits[:, absent].max() < -90
    return logits[:, target_ids], expected


def test_logits_are_marians(parity):
    torch.testing.assert_close(*both_logits(parity, torch.float32), rtol=1e-5, atol=3e-5)


def test_logits_are_marians_to_the_last_digits(parity):
    """But for their waves, which have single precision, and for what was scaled down in it."""
    parity.ours.model.double()
    for theirs, ours in zip(
        (parity.theirs.model.encoder, parity.theirs.model.decoder),
        parity.ours.model.stacks(),
        strict=True,
    ):
        waves = ours.embeddings.positions(torch.arange(64))
        theirs.embed_positions.weight = torch.nn.Parameter(
            torch.cat((waves[:, 0::2], waves[:, 1::2]), 1), requires_grad=False
        )
    try:
        both = both_logits(parity, torch.float64)
    finally:
        parity.theirs.float()
        parity.ours.model.float()
    tolerance = 1e-9 if parity.theirs.config.scale_embedding else 1e-5
    torch.testing.assert_close(*both, rtol=tolerance, atol=tolerance)


def test_greedy_translations_are_marians(parity):
    found = parity.translator().translate(LINES, decoding=GreedyConfig(max_length=LONGEST))
    assert found == greedy(parity.theirs, parity.tokenizer, LINES)
    assert len(set(found)) > 3


def test_given_translations_have_marians_scores(parity):
    sources, targets = zip(*PAIRS, strict=True)
    for (source, target), found in zip(
        PAIRS, parity.translator().score(sources, targets), strict=True
    ):
        expected = scores(parity.theirs, parity.tokenizer, source, target)
        assert found.token_log_probs == pytest.approx(expected, abs=1e-4)


def named(ids: list[int], theirs: dict[str, int]) -> list[str]:
    names = {i: token for token, i in theirs.items()}
    return [names[i] for i in ids]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Parity:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        return Parity(tmp_path_factory.mktemp("apart"), "two-vocabularies")


@settings(max_examples=60)
@given(line=st.text(alphabet="The dogcats,.▁ßü漢><de\t ", max_size=14) | st.sampled_from(LINES))
def test_lines_have_marians_tokens_and_text(apart, line):
    theirs, ours = apart.tokenizer, apart.ours.tokenizers
    if not line.strip():
        assert ours.source.encode(line) == []
        return
    for side, ids, name in (
        (ours.source, theirs(line)["input_ids"], "vocab.json"),
        (ours.target, theirs(text_target=line)["input_ids"], "target_vocab.json"),
    ):
        expected = named(ids[:-1], apart.their_ids(name))
        assert side.tokens(side.encode(line)) == expected
        assert side.encode_batch([line, "a"]) == [side.encode(line), side.encode("a")]
    known = [i for i in ours.target.encode(line) if i != UNK_ID]
    again = [theirs.target_encoder[token] for token in ours.target.tokens(known)]
    assert ours.target.decode(known) == theirs.decode(again, skip_special_tokens=True)


def test_an_imported_run_is_what_was_read(opus, tmp_path):
    change_json(opus / "generation_config.json", num_beams=4, max_length=64)
    run = RunDirectory(tmp_path / "run")
    read = import_run(opus, run, target_language="xx")
    loaded = load_trained_model(run)
    assert loaded.config.data.source_language == "en"
    assert loaded.config.data.target_language == "xx"
    assert loaded.config.model == read.config.model
    assert loaded.config.decoding == read.config.decoding == BeamConfig(beam_size=4, max_length=63)
    assert loaded.tokenizers.fingerprint == read.tokenizers.fingerprint
    for (name, weight), (_, expected) in zip(
        loaded.model.named_parameters(), read.model.named_parameters(), strict=True
    ):
        assert torch.equal(weight, expected), name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opus", "run"]


def save_in_shards(folder: Path) -> None:
    """Let transformers save a folder again, in several files of weights."""
    model = MarianMTModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="5KB")


def test_shards_of_transformers_are_the_same_model(opus):
    whole = read_marian(opus)
    save_in_shards(opus)
    assert not (opus / "model.safetensors").exists()
    assert len(list(opus.glob("model-*-of-*.safetensors"))) > 2
    assert content_of(read_marian(opus)) == content_of(whole)


def test_a_weight_that_no_shard_has_is_named(opus):
    save_in_shards(opus)
    index = opus / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name = "model.decoder.layers.0.fc1.weight"
    shard = opus / content["weight_map"].pop(name)
    write_json(index, content)
    weights = load_file(shard)
    del weights[name]
    save_file(weights, shard)
    assert refused(opus) == [
        f"{index}: differs in 1 of its weights from the model that config.json describes "
        f"({name}); fetch the folder again"
    ]


def test_a_shard_that_is_missing_leaves_nothing(opus):
    save_in_shards(opus)
    shard = max(opus.glob("model-*-of-*.safetensors"))
    shard.unlink()
    assert refused(opus) == [f"{shard}: no such file; fetch the folder again"]


@pytest.mark.parametrize(
    "asked",
    [
        {"num_beams": 1, "max_length": 6},
        {"num_beams": 1, "max_new_tokens": 6},
        {"num_beams": 1, "max_length": 3, "max_new_tokens": 5},
    ],
)
def test_a_search_that_the_folder_asks_for_ends_where_marians_does(tmp_path, asked):
    """The pieces of a translation that is cut off are counted, with its end as one of them."""
    folder = tmp_path / "opus"
    save_opus(folder)
    change_json(folder / "generation_config.json", **asked)
    theirs = MarianMTModel.from_pretrained(folder)
    tokenizer = tokenizer_of(folder)
    ours = read_marian(folder)
    translator = Translator.from_model(
        ours.model, ours.tokenizers, ours.config, torch.device("cpu")
    )
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    ids = theirs.generate(
        **batch,
        min_new_tokens=1,
        forced_eos_token_id=None,
        suppress_tokens=[tokenizer.pad_token_id, tokenizer.unk_token_id],
    )
    expected = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert translator.translate(LINES) == expected
    assert ids.shape[1] == 1 + ours.config.decoding.max_length


def refused(folder: Path) -> list[str]:
    """Return the messages of an import that fails, and see that it leaves nothing behind."""
    before = sorted(path.name for path in folder.parent.iterdir())
    with pytest.raises(TformerError) as caught:
        import_run(folder, RunDirectory(folder.parent / "run"))
    assert sorted(path.name for path in folder.parent.iterdir()) == before
    return [str(problem) for problem in caught.value.problems]


def test_the_way_to_convert_a_pickle_can_be_pasted_whatever_the_folder_is_called(opus):
    (opus / "model.safetensors").rename(opus / "pytorch_model.bin")
    folder = opus.rename(opus.parent / 'Anna\'s "best" $HOME model')
    (message,) = refused(folder)
    *_, command = message.partition("convert it: ")
    python, option, code = shlex.split(command)
    assert (python, option) == ("python", "-c")
    strings = [x.value for x in ast.walk(ast.parse(code)) if isinstance(x, ast.Constant)]
    assert strings == [str(folder)] * 2


def test_a_pickle_is_refused_with_the_way_to_convert_it(opus):
    (opus / "model.safetensors").rename(opus / "pytorch_model.bin")
    saving = f'MarianMTModel.from_pretrained("{opus}").save_pretrained("{opus}")'
    assert refused(opus) == [
        f"{opus}/pytorch_model.bin: is a pickle, which can run any program; only "
        "model.safetensors is read; if you trust it, convert it: "
        f"python -c 'from transformers import MarianMTModel; {saving}'"
    ]


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "source.spm", "target.spm", "vocab.json", "tokenizer_config.json"],
)
def test_a_missing_file_is_named(opus, name):
    (opus / name).unlink()
    assert refused(opus) == [
        f"{opus}/{name}: no such file; name a folder of a Marian model as transformers saves it"
    ]


@pytest.mark.parametrize("name", ["source.spm", "target.spm"])
def test_a_damaged_sentencepiece_model_is_named(opus, name):
    (opus / name).write_bytes(b"\xffnothing")
    assert refused(opus) == [
        f"{opus}/{name}: is not a sentencepiece model (8 bytes); "
        "restore the file, or import the model again"
    ]


def test_damaged_weights_are_named(opus):
    file = opus / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    (message,) = refused(opus)
    assert message.startswith(f"{file}: is damaged or cut short (")
    assert message.endswith("; fetch the folder again")


def reshaped(weights: dict[str, torch.Tensor]) -> None:
    weights["model.decoder.layers.0.fc1.weight"] = torch.zeros(17, 13)


def lacking(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.shared.weight"]


def longer(weights: dict[str, torch.Tensor]) -> None:
    weights["final_logits_bias"] = torch.zeros(1, 5)


def strange(weights: dict[str, torch.Tensor]) -> None:
    weights["model.encoder.layernorm_embedding.weight"] = torch.zeros(12)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (reshaped, "model.decoder.layers.0.fc1.weight"),
        (lacking, "model.decoder.embed_tokens.weight"),
        (longer, "final_logits_bias"),
        (strange, "model.encoder.layernorm_embedding.weight"),
    ],
)
def test_other_weights_than_config_json_has_are_named(opus, change, name):
    file = opus / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)
    assert refused(opus) == [
        f"{file}: differs in 1 of its weights from the model that config.json describes "
        f"({name}); fetch the folder again"
    ]


def test_a_width_that_no_machine_has_is_refused_at_once(opus):
    change_json(opus / "config.json", d_model=3 * 10**8)
    assert refused(opus) == [
        f"{opus}/model.safetensors: differs in 1 of its weights from the model that "
        "config.json describes (model.shared.weight); fetch the folder again"
    ]


def test_layers_without_weights_are_refused_before_they_are_named(opus, monkeypatch):
    monkeypatch.setattr("tformer_cli.export.marian_weights.weight_names", unnamed)
    change_json(opus / "config.json", encoder_layers=10**6)
    count = len(load_file(opus / "model.safetensors"))
    assert refused(opus) == [
        f"{opus}/config.json: describes more layers than the {count} weights that the folder has "
        "(1000001); fetch the folder again"
    ]


def test_a_size_that_no_machine_has_is_refused_at_once(opus):
    change_json(opus / "config.json", encoder_ffn_dim=10**25, decoder_ffn_dim=10**25)
    assert refused(opus) == [
        f"{opus}/config.json: model.feedforward_dim: must be at most {2**29} ({10**25})"
    ]


def test_other_models_than_marian_are_refused(opus):
    change_json(opus / "config.json", model_type="bart")
    assert refused(opus) == [f'{opus}/config.json: is not of a Marian model (model_type "bart")']


def test_all_settings_that_are_no_model_of_ours_come_at_once(opus):
    file = opus / "config.json"
    change_json(
        file,
        activation_function="tanh",
        decoder_attention_heads=4,
        decoder_ffn_dim=18,
        d_model="wide",
        dropout=None,
        scale_embedding=1,
        decoder_start_token_id=0,
    )
    pad = json.loads(file.read_text())["pad_token_id"]
    assert refused(opus) == [
        f'{file}: d_model: must be a whole number ("wide")',
        f"{file}: decoder_attention_heads: must be 3, as encoder_attention_heads (4)",
        f"{file}: decoder_ffn_dim: must be 17, as encoder_ffn_dim (18)",
        f"{file}: dropout: must be a number (nothing)",
        f"{file}: activation_function: must be one of relu, gelu, silu, swish (tanh)",
        f"{file}: decoder_start_token_id: must be {pad}, as pad_token_id (0)",
        f"{file}: scale_embedding: must be true or false (1)",
    ]


def test_a_width_that_heads_do_not_divide_is_refused(opus):
    change_json(opus / "config.json", d_model=13)
    assert refused(opus) == [
        f"{opus}/config.json: model.num_heads: must divide dim 13 (3)",
        f"{opus}/config.json: model.dim: must be even with sinusoidal positions (13)",
    ]


def test_special_tokens_elsewhere_are_refused(opus):
    ids = json.loads((opus / "vocab.json").read_text())
    change_json(opus / "vocab.json", **{"</s>": 1, "<unk>": 0})
    assert refused(opus) == [
        f"{opus}/config.json: eos_token_id: must be 1, the id of </s> in vocab.json (0)"
    ]
    pieces = {piece: i for piece, i in ids.items() if piece != "<pad>"}
    write_json(opus / "vocab.json", pieces | {"pad": ids["<pad>"]})
    assert refused(opus) == [f"{opus}/vocab.json: has no <pad>; fetch the folder again"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON (Expecting property name enclosed in double quotes: "),
        ("[]", "must be a JSON object (list); "),
        ('{"a": "b"}', "is not a vocabulary (an id that is no whole number); "),
        ('{"\\ud800": 0}', "is not a vocabulary (half a character of Unicode)"),
        ('{"a": 0, "b": 0}', "must name each of the 59 embedding rows once (2 pieces)"),
    ],
)
def test_a_vocabulary_that_is_none_is_named(opus, content, message):
    (opus / "vocab.json").write_text(content)
    size = json.loads((opus / "config.json").read_text())["vocab_size"]
    (found,) = refused(opus)
    assert found.startswith(f"{opus}/vocab.json: {message.replace('59', str(size))}")
    assert found.endswith("; fetch the folder again")


def test_two_vocabularies_with_one_table_are_refused(opus):
    change_json(opus / "tokenizer_config.json", separate_vocabs=True)
    assert refused(opus) == [
        f"{opus}/tokenizer_config.json: has two vocabularies, but config.json has one "
        "embedding table (separate_vocabs true); fetch the folder again"
    ]


def test_languages_that_are_no_text_are_refused(opus):
    file = opus / "tokenizer_config.json"
    change_json(file, source_lang=3, separate_vocabs="no")
    with pytest.raises(ConfigError):
        read_marian(opus)
    assert refused(opus) == [
        f"{file}: source_lang: must be text (3)",
        f'{file}: separate_vocabs: must be true or false ("no")',
    ]
