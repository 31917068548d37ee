"""A model of ours in transformers: the same translations, the same scores; and the way back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from opus import (
    LONGEST,
    SOURCES,
    TARGETS,
    greedy,
    save_opus,
    scores,
    tokenizer_of,
)
from safetensors import safe_open
from transformers import MarianMTModel

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    RotaryPositions,
    SinusoidalPositions,
)
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.errors import ConfigError, UsageError
from tformer_cli.export.marian import MarianFormat, read_marian
from tformer_cli.model.build import build_model
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.translate.translator import Translator

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

PLAIN = EncoderDecoderConfig(
    dim=12,
    num_heads=3,
    feedforward_dim=17,
    num_encoder_layers=1,
    num_decoder_layers=2,
    norm_position="post",
    norm_epsilon=1e-5,
)
BYTES = SubwordConfig(vocab_size=310)
LETTERS = SubwordConfig(vocab_size=50, byte_fallback=False)
APART = SubwordConfig(vocab_size=40, byte_fallback=False, algorithm="unigram", shared=False)
CASES = {
    "all": (PLAIN, LETTERS),
    "bytes": (replace(PLAIN, activation="silu", output_bias=True), BYTES),
    "output": (replace(PLAIN, tie_embeddings="output", activation="gelu"), LETTERS),
    "none": (replace(PLAIN, tie_embeddings="none", num_encoder_layers=2), APART),
    "apart": (replace(PLAIN, tie_embeddings="output", output_bias=True), APART),
}
LINES = [*SOURCES, "xyz sat", "hats  hats ", "Hüte <s> 漢", "a"]
PAIRS = [*zip(SOURCES, TARGETS, strict=True), ("cats", "Hüte"), ("the mat", "und und")]
NOWHERE = {"source": Path("source"), "target": Path("target")}
DATA = DataConfig(train=(TrainingText(**NOWHERE),), valid=ParallelText(**NOWHERE))


def trained(model: EncoderDecoderConfig, tokenizer: SubwordConfig) -> TrainedModel:
    """A model with weights that let every part matter; some translations end early."""
    torch.manual_seed(8)
    tokenizers = build_tokenizers(tokenizer, lambda: list(zip(SOURCES, TARGETS, strict=True)), 1)
    network = build_model(
        model, source_size=tokenizers.source.size, target_size=tokenizers.target.size, seed=1
    )
    for parameter in network.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.45)
        else:
            parameter.data += 0.2 * torch.randn(parameter.shape)
    for layer in network.decoder.layers:
        layer.cross_attention.output.weight.data *= 3
    network.output.weight.data[EOS_ID] *= 2
    config = Config(data=DATA, tokenizer=tokenizer, model=model)
    return TrainedModel(config, tokenizers, network.eval(), step=7)


def translator(model: TrainedModel) -> Translator:
    return Translator.from_model(
        model.model, model.tokenizers, model.config, torch.device("cpu"), max_source_length=60
    )


def translations(model: TrainedModel) -> list[str]:
    return translator(model).translate(LINES, decoding=GreedyConfig(max_length=LONGEST))


def token_log_probs(model: TrainedModel) -> list[tuple[float, ...]]:
    sources, targets = zip(*PAIRS, strict=True)
    return [pair.token_log_probs for pair in translator(model).score(sources, targets)]


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MarianMTModel:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    model, report = MarianMTModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


@pytest.mark.parametrize("name", CASES)
def test_translations_and_scores_are_the_same_there(name, tmp_path, monkeypatch):
    ours = trained(*CASES[name])
    MarianFormat().save(ours, tmp_path / "marian")
    theirs = loaded(tmp_path / "marian", monkeypatch)
    tokenizer = tokenizer_of(tmp_path / "marian")
    found = translations(ours)
    assert [text.strip() for text in found] == greedy(theirs, tokenizer, LINES)
    assert len(set(found)) > 2
    for (source, target), expected in zip(PAIRS, token_log_probs(ours), strict=True):
        assert scores(theirs, tokenizer, source, target) == pytest.approx(expected, abs=1e-4)


def test_what_no_translation_has_is_impossible_there(tmp_path, monkeypatch):
    """So their own `generate` needs no list of it: the unknown, pad, and bytes of line breaks."""
    ours = trained(PLAIN, BYTES)
    MarianFormat().save(ours, tmp_path / "marian")
    theirs, tokenizer = loaded(tmp_path / "marian", monkeypatch), tokenizer_of(tmp_path / "marian")
    names = "<unk>", "<pad>", "<0x0A>", "<0x0D>"
    assert (theirs.final_logits_bias[0, tokenizer.convert_tokens_to_ids(names)] == -1e9).all()
    assert theirs.final_logits_bias.count_nonzero() == 4


def test_generate_there_searches_as_the_run_does(tmp_path, monkeypatch):
    model = trained(*CASES["all"])
    beam = BeamConfig(beam_size=4, length_penalty=0.6, max_length=9)
    model = replace(model, config=replace(model.config, decoding=beam))
    MarianFormat().save(model, tmp_path / "marian")
    theirs, tokenizer = loaded(tmp_path / "marian", monkeypatch), tokenizer_of(tmp_path / "marian")
    search = theirs.generation_config
    assert (search.num_beams, search.length_penalty, search.max_new_tokens) == (4, 0.6, 9)
    written = theirs.generate(**tokenizer(LINES, return_tensors="pt", padding=True))
    assert written.shape[1] <= 10
    # No translation is empty.
    assert not (written[:, 1] == tokenizer.eos_token_id).any()


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_generate_there_repeats_no_more_than_the_run_does(size, tmp_path, monkeypatch):
    model = trained(*CASES["all"])
    search = GreedyConfig(max_length=20, no_repeat_ngram_size=size)
    assert MarianFormat().searches(search) == [search]
    model = replace(model, config=replace(model.config, decoding=search))
    MarianFormat().save(model, tmp_path / "marian")
    theirs, tokenizer = loaded(tmp_path / "marian", monkeypatch), tokenizer_of(tmp_path / "marian")
    written = theirs.generate(**tokenizer(LINES, return_tensors="pt", padding=True))
    ours = translator(model).translate(LINES, decoding=search)
    assert [text.strip() for text in ours] == tokenizer.batch_decode(
        written, skip_special_tokens=True
    )


@pytest.mark.parametrize(
    "search",
    [
        GreedyConfig(max_length=9),
        BeamConfig(beam_size=4, length_penalty=0.6, max_length=9),
        GreedyConfig(max_length=9, no_repeat_ngram_size=3),
    ],
)
def test_a_search_that_goes_there_and_back_is_the_same(search, tmp_path):
    model = trained(*CASES["all"])
    model = replace(model, config=replace(model.config, decoding=search))
    MarianFormat().save(model, tmp_path / "marian")
    assert read_marian(tmp_path / "marian").config.decoding == search


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_goes_there_and_back_translates_alike(name, tmp_path):
    ours = trained(*CASES[name])
    MarianFormat().save(ours, tmp_path / "marian")
    back = read_marian(tmp_path / "marian")
    assert back.config.model.tie_embeddings == ours.config.model.tie_embeddings
    assert back.config.model.activation == ours.config.model.activation
    assert translations(back) == [text.strip() for text in translations(ours)]
    for found, expected in zip(token_log_probs(back), token_log_probs(ours), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale_embedding": False, "tie_word_embeddings": False},
        {"separate_vocabs": True, "share_encoder_decoder_embeddings": False},
    ],
)
def test_a_folder_that_comes_here_and_goes_back_scores_alike(changes, tmp_path, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    first = save_opus(tmp_path / "first", **changes)
    MarianFormat().save(read_marian(tmp_path / "first"), tmp_path / "second")
    second = loaded(tmp_path / "second", monkeypatch)
    both = [tokenizer_of(tmp_path / name) for name in ("first", "second")]
    assert greedy(first, both[0], LINES) == greedy(second, both[1], LINES)
    for pair in PAIRS:
        expected = scores(first, both[0], *pair)
        assert scores(second, both[1], *pair) == pytest.approx(expected, abs=1e-4)


def test_the_folder_names_languages_and_lengths(tmp_path):
    model = trained(*CASES["apart"])
    data = replace(DATA, source_language="en", target_language="de")
    decoding = GreedyConfig(max_length=2000)
    model = replace(model, config=replace(model.config, data=data, decoding=decoding))
    MarianFormat().save(model, tmp_path / "marian")
    settings = json.loads((tmp_path / "marian" / "tokenizer_config.json").read_text())
    assert settings == {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": "en",
        "target_lang": "de",
        "separate_vocabs": True,
        "model_max_length": 2001,
    }
    with safe_open(tmp_path / "marian" / "model.safetensors", framework="pt") as weights:
        # transformers before 5 reads no other.
        assert weights.metadata() == {"format": "pt"}
    # Others may read it, as the rest.
    modes = {file.stat().st_mode for file in (tmp_path / "marian").iterdir()}
    assert len(modes) == 1
    assert sorted(file.name for file in (tmp_path / "marian").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "source.spm",
        "target.spm",
        "target_vocab.json",
        "tokenizer_config.json",
        "vocab.json",
    ]


def test_the_example_prints_the_greedy_translation(tmp_path, monkeypatch, capsys):
    ours = trained(*CASES["all"])
    MarianFormat().save(ours, tmp_path / "marian")
    monkeypatch.chdir(tmp_path / "marian")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    exec(MarianFormat().example(ours, "the 'old' dog"), {})
    search = GreedyConfig(max_length=ours.config.decoding.max_length)
    (expected,) = translator(ours).translate(["the 'old' dog"], decoding=search)
    assert capsys.readouterr().out == f"{expected}\n"


def refused(model: TrainedModel, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        MarianFormat().save(model, folder)
    assert not folder.exists()
    return [str(problem) for problem in caught.value.problems]


def configured(trained: TrainedModel, **changes: Any) -> TrainedModel:
    return replace(trained, config=replace(trained.config, **changes))


def test_all_keys_of_another_function_are_named_at_once(tmp_path):
    model = trained(*CASES["all"])
    other = EncoderDecoderConfig(
        dim=24,
        num_heads=4,
        num_kv_heads=2,
        sliding_window=3,
        qk_norm=True,
        activation="swiglu",
        norm="rms",
        norm_position="deep",
        bias=False,
        positions=RotaryPositions(),
        embedding_scale=1.0,
        attention_scale=2.0,
        output_scale=0.5,
        head_width=8,
        tie_embeddings="inputs",
    )
    tokenizer = SubwordConfig(lowercase="source", nfkc="both")
    data = replace(model.config.data, prefixes={"de": "to German: "})
    configs = {"model": other, "tokenizer": tokenizer, "data": data}
    assert refused(configured(model, **configs), tmp_path / "x") == [
        "model.norm: must be layer in a Marian model (rms)",
        "model.norm_position: must be post in a Marian model (deep)",
        "model.norm_epsilon: must be 1e-05 in a Marian model (1e-06)",
        "model.embedding_scale: must be null in a Marian model (1.0)",
        "model.attention_scale: must be null in a Marian model (2.0)",
        "model.output_scale: must be null in a Marian model (0.5)",
        "model.head_width: must be null in a Marian model (8)",
        "model.bias: must be true in a Marian model (false)",
        "model.positions: must be sinusoidal in a Marian model (rotary)",
        "model.num_kv_heads: must be null in a Marian model (2)",
        "model.sliding_window: must be null in a Marian model (3)",
        "model.qk_norm: must be false in a Marian model (true)",
        "model.activation: must be one of relu, gelu, silu in a Marian model (swiglu)",
        "model.tie_embeddings: must be one of none, output, all in a Marian model (inputs)",
        "tokenizer.lowercase: must be none in a Marian model (source)",
        "tokenizer.nfkc: must be none in a Marian model (both)",
        "data.prefixes: must be null in a Marian model (to German: )",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": DecoderOnlyConfig()},
            "model.kind: must be encoder_decoder in a Marian model (decoder_only)",
        ),
        (
            {"model": replace(PLAIN, latent=LatentConfig(kv_lora_rank=6, rope_head_dim=4))},
            "model.latent: must be null in a Marian model "
            '({"kv_lora_rank": 6, "rope_head_dim": 4})',
        ),
        (
            {"model": replace(PLAIN, positions=SinusoidalPositions(frequencies="tensor2tensor"))},
            "model.positions.frequencies: must be paper in a Marian model (tensor2tensor)",
        ),
        (
            {"tokenizer": CharConfig()},
            "tokenizer.kind: must be subword in a Marian model (char)",
        ),
    ],
)
def test_a_key_of_another_function_is_named(changes, message, tmp_path):
    model = configured(trained(*CASES["all"]), **changes)
    assert refused(model, tmp_path / "x") == [message]


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    with pytest.raises(UsageError) as caught:
        MarianFormat().save(trained(*CASES["all"]), tmp_path)
    assert str(caught.value) == f"{tmp_path}: already exists; remove it, or name another"
