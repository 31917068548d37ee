"""`tformer model`: what it prints, and what it asks for."""

import json
from pathlib import Path

import pytest

CONFIG = """\
data:
  train: [{source: no.en, target: no.de}]
  valid: {source: no.en, target: no.de}
tokenizer: {kind: subword, vocab_size: 300}
model:
  dim: 12
  num_encoder_layers: 2
  num_decoder_layers: 1
  num_heads: 3
  num_kv_heads: 1
  feedforward_dim: 14
  norm: rms
  bias: false
"""
SHOWN = """\
model         encoder_decoder
layers        2 + 1
width         12
attention     3 heads of 4, 1 key/value head
feed-forward  14, relu
norms         RMSNorm pre-norm
positions     sinusoidal
vocabulary    300, shared

module                    kind                weights   parameters
encoder                   Encoder                            5,100
  embeddings              Embeddings                         3,600
    tokens                Embedding           300 x 12       3,600
    positions             SinusoidalEncoding
  layers.0-1              2 x EncoderLayer                 2 x 744
    self_attention        Attention                            384
      query               Linear              12 x 12          144
      key                 Linear              4 x 12            48
      value               Linear              4 x 12            48
      output              Linear              12 x 12          144
    self_attention_norm   RMSNorm             12                12
    feedforward           FeedForward                          336
      up                  Linear              14 x 12          168
      down                Linear              12 x 14          168
    feedforward_norm      RMSNorm             12                12
  norm                    RMSNorm             12                12
decoder                   Decoder                            1,152
  embeddings              Embeddings
    tokens                Embedding           300 x 12      shared
    positions             SinusoidalEncoding
  layers.0                DecoderLayer                       1,140
    self_attention        Attention                            384
      query               Linear              12 x 12          144
      key                 Linear              4 x 12            48
      value               Linear              4 x 12            48
      output              Linear              12 x 12          144
    self_attention_norm   RMSNorm             12                12
    cross_attention       Attention                            384
      query               Linear              12 x 12          144
      key                 Linear              4 x 12            48
      value               Linear              4 x 12            48
      output              Linear              12 x 12          144
    cross_attention_norm  RMSNorm             12                12
    feedforward           FeedForward                          336
      up                  Linear              14 x 12          168
      down                Linear              12 x 14          168
    feedforward_norm      RMSNorm             12                12
  norm                    RMSNorm             12                12
output                    Linear              300 x 12      shared

parameters
  embeddings   3,600  57.6%
  encoder      1,500  24.0%
  decoder      1,152  18.4%
  output      shared
  all          6,252
  counted once: encoder.embeddings.tokens = decoder.embeddings.tokens = output

FLOPs             forward  training step
  a source token  6.144 k        18.43 k
  a target token  12.29 k        36.86 k
  32 + 32 tokens  589.8 k        1.769 M

memory                       float32   bfloat16    float16
  weights                  24.42 KiB  12.21 KiB  12.21 KiB
  cache of a source token       32 B       16 B       16 B
  cache of a target token       32 B       16 B       16 B
"""


ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "look-inside.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A config whose texts are not there."""
    path = tmp_path / "x.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def found(tformer, file: Path, *arguments: str) -> dict:
    return json.loads(tformer("model", file, "--json", *arguments).stdout)


def test_shows_the_whole_network_without_any_text(tformer, file):
    assert tformer("model", file).stdout == SHOWN


def test_the_guide_shows_what_is_printed(tformer):
    text = GUIDE.read_text(encoding="utf-8").split("    $ tformer model configs/modern.yaml\n")[1]
    block = text[: text.index("\nWhat stands below")].splitlines()
    config = ROOT / "configs" / "modern.yaml"
    shown = tformer("model", config).stdout.splitlines()
    left_out = block.index("    ...")
    expected = [line.removeprefix("    ") for line in block]
    assert shown[:left_out] == expected[:left_out]
    rest = expected[left_out + 1 :]
    assert shown[-len(rest) :] == rest


def test_json_has_the_same_numbers(tformer, file):
    content = found(tformer, file, "--source-length", "5", "--target-length", "7")
    assert content["kind"] == "encoder_decoder"
    assert content["vocabulary_size"] == 300
    assert content["num_parameters"] == {
        "embeddings": 3600,
        "encoder": 1500,
        "decoder": 1152,
        "output": 0,
        "all": 6252,
    }
    # Two for each weight of a matrix that a token meets, and 4 x 12 for each token it looks at.
    source, target = 2 * (2 * 720 + 2 * 48), 2 * (720 + 2 * 144 + 3600)
    forward = {
        "source_token": source + 2 * 48 * 5,
        "target_token": target + 48 * (5 + 7),
        "sentence": 5 * (source + 2 * 48 * 5) + 7 * (target + 48 * (5 + 7)),
    }
    assert content["flops"] == {
        "source_length": 5,
        "target_length": 7,
        "forward": forward,
        "training": {name: 3 * number for name, number in forward.items()},
    }
    # A key and a value of width 4 in the only layer that writes.
    each = {"float32": 4 * 8, "bfloat16": 2 * 8, "float16": 2 * 8}
    assert content["cache_bytes"] == {"source_token": each, "target_token": each}
    encoder = content["modules"][0]
    assert encoder["modules"][1]["name"] == "layers.0-1"
    assert encoder["modules"][1]["modules"][0]["modules"][1] == {
        "name": "key",
        "kind": "Linear",
        "num_copies": 1,
        "weights": {"weight": [4, 12]},
        "shared_with": None,
        "num_parameters": 48,
        "modules": [],
    }


def test_settings_change_the_network(tformer, file):
    latent = [
        "--set",
        "model.latent={kv_lora_rank: 5, rope_head_dim: 2}",
        "--set",
        "model.num_kv_heads=null",
    ]
    latent += ["--set", "model.positions={kind: rotary}"]
    shown = tformer("model", file, *latent).stdout
    assert "\nattention     3 heads of 4, latents of 5 and rotary keys of 2\n" in shown
    cache = found(tformer, file, *latent)["cache_bytes"]
    assert cache["target_token"]["float32"] == 4 * (5 + 2)
    assert cache["source_token"]["float32"] == 4 * 24


def test_billions_of_parameters_need_no_memory(tformer, file):
    settings = ["model.dim=6144", "model.num_heads=48", "model.feedforward_dim=24576"]
    settings += ["model.num_encoder_layers=11", "model.num_decoder_layers=11"]
    settings += ["model.num_kv_heads=null"]
    changes = [word for setting in settings for word in ("--set", setting)]
    # Nobody could hold the weights of 40 GB that this would be.
    assert found(tformer, file, *changes)["num_parameters"]["all"] > 10e9


def test_a_decoder_only_is_one_stream(tformer, file):
    file.write_text(
        CONFIG[: CONFIG.index("model:")]
        + "model: {kind: decoder_only, dim: 12, num_heads: 3, num_layers: 2, sliding_window: 4, "
        "qk_norm: true, positions: {kind: alibi}}\n",
        encoding="utf-8",
    )
    lines = tformer("model", file).stdout.splitlines()
    assert lines[1:4] == [
        "layers        2, source causal",
        "width         12",
        "attention     3 heads of 4, QK norm, sliding window of 4",
    ]
    assert "  counted once: stream.embeddings.tokens = output" in lines
    cache = found(tformer, file)["cache_bytes"]
    assert cache["source_token"] == cache["target_token"]


def masked(file: Path) -> Path:
    file.write_text(
        "data: {train: [{text: no.en}], valid: {text: no.en}}\n"
        "tokenizer: {kind: subword, vocab_size: 300}\n"
        "model: {kind: masked_encoder, dim: 12, num_heads: 3}\n"
        "training: {selection_metric: loss}\n",
        encoding="utf-8",
    )
    return file


def test_a_masked_encoder_keeps_nothing(tformer, file):
    shown = tformer("model", masked(file), "--source-length", 20, "--target-length", 3).stdout
    assert "\n  a masked token         7.2 k         21.6 k\n" in shown
    assert "\n  20 tokens, 3 masked" in shown
    assert "\nvocabulary    300\n" in shown
    assert "cache" not in shown
    assert found(tformer, file)["cache_bytes"] == {}


def test_a_masked_encoder_has_no_more_masks_than_tokens(tformer, file):
    result = tformer("model", masked(file), "--source-length", 20)
    assert (result.exit_code, result.stderr) == (
        2,
        "--target-length: must be at most --source-length 20, since a masked encoder fills in "
        "its source (32)\n",
    )


def test_words_have_the_largest_vocabulary_that_they_may_have(tformer, file):
    words = ["--set", "tokenizer={kind: word, max_size: 400, shared: true}"]
    words += ["--set", "evaluation.bleu.lowercase=true"]
    assert "\nvocabulary    at most 400, shared\n" in tformer("model", file, *words).stdout
    given = tformer("model", file, *words, "--vocab-size", 90).stdout
    assert "\nvocabulary    90, shared\n" in given
    result = tformer("model", file, *words, "--vocab-size", 401)
    assert (result.exit_code, result.stderr) == (
        2,
        "--vocab-size: must be at most tokenizer.max_size 400 (401)\n",
    )


def test_characters_ask_for_their_number(tformer, file):
    characters = ["--set", "tokenizer={kind: char}"]
    result = tformer("model", file, *characters)
    assert (result.exit_code, result.stderr) == (
        2,
        "--vocab-size: is required for characters, whose number depends on the text; "
        "`tformer vocab` counts them\n",
    )
    assert found(tformer, file, *characters, "--vocab-size", "70")["vocabulary_size"] == 70


def test_imported_models_ask_for_their_number(tformer, file):
    result = tformer("model", file, "--set", "tokenizer={kind: marian}")
    assert (result.exit_code, result.stderr) == (
        2,
        "--vocab-size: is required for an imported model, whose files set it; "
        "take vocab_size from the config.json that it was imported from\n",
    )


def test_subwords_have_their_number_in_the_config(tformer, file):
    result = tformer("model", file, "--vocab-size", 70)
    assert (result.exit_code, result.stderr) == (
        2,
        "--vocab-size: has no effect on subwords, whose number the config sets; "
        "use --set tokenizer.vocab_size=70\n",
    )


def test_two_vocabularies_are_as_large_as_each_other(tformer, file):
    apart = ["--set", "tokenizer.shared=false", "--set", "model.tie_embeddings=output"]
    shown = tformer("model", file, *apart).stdout
    assert "\nvocabulary    300, per language\n" in shown
    assert "\n  embeddings   7,200  " in shown
    assert "\n  counted once: decoder.embeddings.tokens = output\n" in shown
