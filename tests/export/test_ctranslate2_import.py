"""CTranslate2 folders as runs of ours: the same tokens, scores and translations, and back again."""

import contextlib
import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from exportable import MEMBERS, content_of, lively
from opus import SOURCES, TARGETS, change_json, pieces, save_opus, sentencepiece, write_json
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.model import LearnedPositions
from tformer_cli.errors import TformerError
from tformer_cli.export.check import cpu_engine
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.ctranslate2_import import read_ctranslate2
from tformer_cli.export.run import import_run
from tformer_cli.search.engine import Request
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.special_tokens import SPECIAL_TOKENS
from tformer_cli.text.tokenizer import with_eos

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

MODEL = sentencepiece([*SOURCES, *TARGETS], byte_fallback=False)
PIECES = pieces(MODEL)
LONGEST = 24
SEARCHES = [
    GreedyConfig(max_length=LONGEST),
    BeamConfig(beam_size=4, max_length=LONGEST, length_penalty=0.6),
]


def lines(count: int = 200) -> list[str]:
    words = " ".join([*SOURCES, *TARGETS]).split()
    generator = random.Random(5)
    return [" ".join(generator.choices(words, k=generator.randint(1, 9))) for _ in range(count)]


# How models of other programs come to CTranslate2, with random weights.


class Made(NamedTuple):
    """A specification, its vocabulary, and changes to its settings."""

    spec: Any
    tokens: list[str]
    settings: dict[str, object]
    end: float  # logit bias of `</s>`


def randomize(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(11)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += 0.2 * torch.randn_like(weight)
        else:
            torch.nn.init.normal_(weight, std=0.4)
    return model.eval()


def opennmt(*, heads: int = 3, activation: str = "relu", share: bool = True, **options) -> Made:
    """As Argos packages are made: pre-norm, sines and cosines alternate, no EOS of sources."""
    opt = SimpleNamespace(
        encoder_type="transformer",
        decoder_type="transformer",
        position_encoding=True,
        enc_layers=2,
        dec_layers=1,
        heads=heads,
        pos_ffn_activation_fn=activation,
        **options,
    )
    generator = torch.Generator().manual_seed(2)
    tokens = ["<unk>", "<blank>", "<s>", "</s>", *PIECES]
    dim, wide = 12, 20

    def drawn(*shape: int) -> torch.Tensor:
        return 0.5 * torch.randn(*shape, generator=generator)

    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = drawn(rows, columns), drawn(rows)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = 1 + drawn(dim), drawn(dim)

    angles = torch.arange(64)[:, None] * torch.exp(
        torch.arange(0, dim, 2) * -(np.log(10000.0) / dim)
    )
    table = torch.stack((angles.sin(), angles.cos()), 2).flatten(1)
    embeddings = drawn(len(tokens), dim)
    for side, layers, count in (
        ("encoder", "encoder.transformer", opt.enc_layers),
        ("decoder", "decoder.transformer_layers", opt.dec_layers),
    ):
        weights[f"{side}.embeddings.make_embedding.pe.pe"] = table[:, None]
        own = embeddings if share or side == "decoder" else drawn(len(tokens), dim)
        weights[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] = own
        norm(f"{side}.layer_norm")
        for number in range(count):
            layer = f"{layers}.{number}"
            blocks = ["self_attn", *(["context_attn"] if side == "decoder" else [])]
            for block in blocks:
                for part in ("linear_query", "linear_keys", "linear_values", "final_linear"):
                    linear(f"{layer}.{block}.{part}", dim, dim)
            linear(f"{layer}.feed_forward.w_1", wide, dim)
            linear(f"{layer}.feed_forward.w_2", dim, wide)
            norm(f"{layer}.feed_forward.layer_norm")
            norms = ["layer_norm"] if side == "encoder" else ["layer_norm_1", "layer_norm_2"]
            for name in norms:
                norm(f"{layer}.{name}")
    linear("generator", len(tokens), dim)
    if share:
        weights["generator.weight"] = embeddings
    make = ctranslate2.converters.opennmt_py._get_model_spec_seq2seq
    return Made(make(opt, weights, [tokens], [tokens], 1), tokens, {}, 3.5)


def converted(loader: str, model: Any, first: list[str], settings: dict[str, object]) -> Made:
    make = getattr(ctranslate2.converters.transformers, loader)()
    tokens = [*first, *PIECES]
    with torch.no_grad():
        spec = make.get_model_spec(randomize(model))
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    return Made(spec, tokens, settings, 1.0)


BART_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
STARTS_WITH_EOS = {"decoder_start_token": "</s>"}
SIZES = {
    "vocab_size": len(PIECES) + 4,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
}


def m2m(**changes: Any) -> Made:
    model = M2M100ForConditionalGeneration(M2M100Config(**SIZES | changes))
    return converted("M2M100Loader", model, BART_TOKENS, STARTS_WITH_EOS)


def bart(**changes: Any) -> Made:
    model = BartForConditionalGeneration(BartConfig(**SIZES | changes))
    model.config.normalize_before = False
    return converted("BartLoader", model, BART_TOKENS, STARTS_WITH_EOS)


def t5(**changes: Any) -> Made:
    sizes = {"d_model": 12, "d_kv": 4, "num_heads": 3, "d_ff": 20, "num_layers": 2}
    config = T5Config(vocab_size=len(PIECES) + 3, **sizes | changes)
    settings = {"decoder_start_token": "<pad>"}
    model = T5ForConditionalGeneration(config)
    return converted("T5Loader", model, ["<pad>", "</s>", "<unk>"], settings)


MADE: dict[str, Callable[[], Made]] = {
    "opennmt": opennmt,
    "opennmt-gelu": lambda: opennmt(heads=4, activation="gelu", share=False),
    "m2m": m2m,
    "m2m-not-scaled": lambda: m2m(scale_embedding=False, activation_function="gelu"),
    "bart": bart,
    "bart-scaled": lambda: bart(scale_embedding=True),
    "t5": t5,
    "t5-gated": lambda: t5(feed_forward_proj="gated-gelu"),
    "t5-not-tied": lambda: t5(tie_word_embeddings=False, relative_attention_num_buckets=8),
}


def write(made: Made, folder: Path, quantization: str | None = None) -> Path:
    folder.mkdir()
    # Some translations end of themselves.
    bias = torch.zeros(len(made.tokens))
    bias[made.tokens.index("</s>")] = made.end
    made.spec.decoder.projection.bias = bias
    made.spec.validate()
    made.spec.optimize(quantization)
    made.spec.save(str(folder))
    change_json(folder / "config.json", **made.settings)
    (folder / "sentencepiece.model").write_bytes(MODEL)
    return folder


def marian(folder: Path, **changes: Any) -> Path:
    """Write a Marian model of transformers as CTranslate2's converter does."""
    opus = folder.with_name("opus")
    model = save_opus(opus, **changes)
    model.model.shared.weight.data[-1] = 0
    model.save_pretrained(opus)
    copied = ["source.spm", "target.spm", "tokenizer_config.json"]
    converter = ctranslate2.converters.TransformersConverter(str(opus), copy_files=copied)
    converter.convert(str(folder))
    return folder


def theirs(
    folder: Path, trained: TrainedModel, texts: list[str], search: DecodingConfig, nbest: int
) -> list[Any]:
    """Translate by CTranslate2 alone."""
    source = trained.tokenizers.source
    adds_eos = json.loads((folder / "config.json").read_text())["add_source_eos"]
    end = ["</s>"] if trained.config.model.source_eos and not adds_eos else []
    beam = search if isinstance(search, BeamConfig) else BeamConfig(beam_size=1, length_penalty=0)
    vocabulary = json.loads((folder / "shared_vocabulary.json").read_text())
    suppressed = [[token] for token in (*SPECIAL_TOKENS, "<blank>") if token in vocabulary]
    suppressed.remove(["</s>"])
    translator = ctranslate2.Translator(str(folder), intra_threads=1, compute_type="float32")
    return translator.translate_batch(
        [[*source.tokens(source.encode(text)), *end] for text in texts],
        beam_size=beam.beam_size,
        num_hypotheses=nbest,
        length_penalty=beam.length_penalty,
        max_decoding_length=search.max_length,
        max_input_length=0,
        return_scores=True,
        suppress_sequences=suppressed,
    )


def ours(trained: TrainedModel, texts: list[str], search: DecodingConfig, nbest: int) -> list[Any]:
    requests = [Request(tuple(with_eos(trained.tokenizers.source.encode(text)))) for text in texts]
    blank = [i for i, token in enumerate(tokens_of(trained)) if token == "<blank>"]
    if blank:
        trained.model.output.bias.data[blank] = -100
    return cpu_engine(trained).translate(requests, search, nbest=nbest)


def tokens_of(trained: TrainedModel) -> list[str]:
    target = trained.tokenizers.target
    return target.tokens(range(target.size))


def assert_equal(folder: Path, trained: TrainedModel, search: DecodingConfig) -> None:
    texts = lines()
    nbest = search.beam_size if isinstance(search, BeamConfig) else 1
    names, translations = tokens_of(trained), set()
    pairs = zip(
        ours(trained, texts, search, nbest),
        theirs(folder, trained, texts, search, nbest),
        strict=True,
    )
    for hypotheses, result in pairs:
        assert [[names[i] for i in each.token_ids] for each in hypotheses] == result.hypotheses
        if isinstance(search, BeamConfig):
            scores = [each.score for each in hypotheses]
            assert scores == pytest.approx(result.scores, rel=1e-4, abs=1e-4)
        translations.add(hypotheses[0].token_ids)
    assert len(translations) > 10


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
@pytest.mark.parametrize("name", MADE)
def test_translations_are_ctranslate2s(name, search, tmp_path):
    folder = write(MADE[name](), tmp_path / "folder")
    assert_equal(folder, read_ctranslate2(folder), search)


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
@pytest.mark.parametrize("changes", [{}, {"scale_embedding": False, "activation_function": "relu"}])
def test_translations_are_those_of_a_converted_marian_model(changes, search, tmp_path):
    folder = marian(tmp_path / "folder", **changes)
    trained = read_ctranslate2(folder)
    assert trained.config.model.positions.kind == "sinusoidal"
    assert_equal(folder, trained, search)


MARIAN_SETTINGS = """
type: transformer
transformer-decoder-autoreg: self-attention
transformer-no-projection: false
transformer-ffn-activation: swish
transformer-preprocess: ""
transformer-postprocess: dan
transformer-postprocess-emb: d
transformer-guided-alignment-layer: last
transformer-heads: 3
enc-depth: 2
dec-depth: 1
"""


def marian_npz(file: Path, vocabulary: list[str]) -> None:
    """Write random weights as Marian saves them."""
    generator = np.random.default_rng(4)

    def drawn(*shape: int) -> np.ndarray:
        return generator.normal(scale=0.5, size=shape).astype(np.float32)

    dim, wide = 12, 20
    settings = np.frombuffer(MARIAN_SETTINGS.encode() + b"\0", dtype=np.int8)
    weights = {"special:model.yml": settings, "Wemb": drawn(len(vocabulary), dim)}
    weights["decoder_ff_logit_out_b"] = 0.2 * drawn(1, len(vocabulary))
    weights["decoder_ff_logit_out_b"][0, 0] += 1
    blocks = ["encoder_l1_self", "encoder_l2_self", "decoder_l1_self", "decoder_l1_context"]
    for block in blocks:
        weights |= {f"{block}_W{part}": drawn(dim, dim) for part in "qkvo"}
        weights |= {f"{block}_b{part}": drawn(1, dim) for part in "qkvo"}
        weights[f"{block}_Wo_ln_scale"], weights[f"{block}_Wo_ln_bias"] = (
            1 + drawn(1, dim),
            drawn(1, dim),
        )
    for block in ("encoder_l1_ffn", "encoder_l2_ffn", "decoder_l1_ffn"):
        weights |= {f"{block}_W1": drawn(dim, wide), f"{block}_b1": drawn(1, wide)}
        weights |= {f"{block}_W2": drawn(wide, dim), f"{block}_b2": drawn(1, dim)}
        weights |= {f"{block}_ffn_ln_scale": 1 + drawn(1, dim)}
        weights |= {f"{block}_ffn_ln_bias": drawn(1, dim)}
    np.savez(file, **weights)


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_marians_own_files_come_by_its_converter(search, tmp_path):
    vocabulary = ["</s>", "<unk>", *PIECES]
    marian_npz(tmp_path / "model.npz", vocabulary)
    vocab = "".join(f"{json.dumps(token)}: {i}\n" for i, token in enumerate(vocabulary))
    (tmp_path / "vocab.yml").write_text(vocab.encode("ascii").decode("unicode_escape"))
    converter = ctranslate2.converters.MarianConverter(
        str(tmp_path / "model.npz"), [str(tmp_path / "vocab.yml")] * 2
    )
    folder = tmp_path / "folder"
    converter.convert(str(folder))
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(MODEL)
    trained = read_ctranslate2(folder)
    assert trained.config.model.positions.kind == "sinusoidal"
    assert_equal(folder, trained, search)


@pytest.mark.parametrize("quantization", ["float16", "bfloat16", "int8", "int8_float16", "int16"])
def test_rounded_weights_are_widened(quantization, tmp_path):
    whole = read_ctranslate2(write(opennmt(), tmp_path / "whole"))
    rounded = read_ctranslate2(write(opennmt(), tmp_path / "rounded", quantization))
    assert rounded.config == whole.config
    for (name, weight), (_, expected) in zip(
        rounded.model.named_parameters(), whole.model.named_parameters(), strict=True
    ):
        step = expected.detach().abs().max() / 100
        torch.testing.assert_close(weight, expected, rtol=0, atol=float(step), msg=name)


def test_int8_translates_as_ctranslate2s_int8(tmp_path):
    """CTranslate2 computes in float32 here by the same rounded weights."""
    folder = write(opennmt(), tmp_path / "folder", "int8")
    trained = read_ctranslate2(folder)
    texts, search = lines(), SEARCHES[0]
    names = tokens_of(trained)
    equal = total = 0
    for (best,), result in zip(
        ours(trained, texts, search, 1), theirs(folder, trained, texts, search, 1), strict=True
    ):
        pairs = zip(result.hypotheses[0], [names[i] for i in best.token_ids], strict=False)
        equal += sum(one == other for one, other in pairs)
        total += max(len(result.hypotheses[0]), best.length - 1)
    assert equal >= 0.99 * total


@pytest.mark.parametrize("name", MEMBERS)
def test_an_export_is_the_run_again(name, tmp_path):
    config = MEMBERS[name]
    if isinstance(config.positions, LearnedPositions):
        # As many as the limits of the config need.
        config = replace(config, positions=LearnedPositions(max_length=300))
    original = lively(config)
    CTranslate2Format().save(original, tmp_path / "export")
    again = read_ctranslate2(tmp_path / "export")
    assert content_of(again)[:-1] == content_of(original)[:-1]
    for (parameter, weight), (_, expected) in zip(
        again.model.named_parameters(), original.model.named_parameters(), strict=True
    ):
        if parameter == "output.bias":
            known = [i for i, token in enumerate(tokens_of(again)) if token not in SPECIAL_TOKENS]
            weight, expected = weight[known], expected[known]
        if "bias" in parameter and parameter.endswith("table.weight"):
            continue
        tolerance = 1e-6 if "deep" in name else 0.0
        torch.testing.assert_close(weight, expected, rtol=tolerance, atol=tolerance, msg=parameter)
    # A table of T5 has a bucket that no distance has.
    distances = torch.arange(-40, 41)[None, None]
    for stack, expected in zip(again.model.stacks(), original.model.stacks(), strict=True):
        if stack.bias is not None:
            here = distances if not stack.is_causal else distances.clamp(max=0)
            torch.testing.assert_close(
                stack.bias.of_distance(here), expected.bias.of_distance(here), rtol=0, atol=1e-6
            )


def test_a_run_is_made_that_goes_out_again_unchanged(tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    write_json(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "xx"})
    read = import_run(folder, RunDirectory(tmp_path / "run"), target_language="de")
    loaded = load_trained_model(RunDirectory(tmp_path / "run"))
    assert content_of(loaded) == content_of(read)
    assert loaded.config.data.target_language == "de"
    CTranslate2Format().save(loaded, tmp_path / "out")
    assert content_of(read_ctranslate2(tmp_path / "out"))[:-1] == content_of(read)[:-1]
    texts = lines(20)
    results = [
        [each.hypotheses for each in theirs(path, loaded, texts, SEARCHES[1], 4)]
        for path in (folder, tmp_path / "out")
    ]
    assert results[0] == results[1]


def test_a_run_without_source_eos_is_scored_exported_and_trained_on(tmp_path, tformer):
    """The commands that runs take, with a model that our own training never makes."""
    folder = write(opennmt(), tmp_path / "folder")
    write_json(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "de"})
    run, text, out = tmp_path / "run", tmp_path / "valid.en", tmp_path / "out"
    text.write_text("".join(f"{line}\n" for line in lines(20)))
    for name in ("train.en", "train.de", "valid.de"):
        (tmp_path / name).write_text(text.read_text())
    settings = {
        "data.root": tmp_path,
        "training.max_steps": 2,
        "training.validate_every": 2,
        "training.schedule.warmup_steps": 1,
        "training.batch_tokens": 300,
        "training.validation_decoding": "{kind: greedy, max_length: 9}",
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    init = ("--init-from", run, "--run", tmp_path / "on", "--device", "cpu", *sets)
    for command in (
        ("import", folder, run),
        ("score", run, "--source", text, "--target", tmp_path / "valid.de"),
        ("export", run, out, "--format", "ctranslate2", "--check-file", text),
        ("train", run / "config.yaml", *init),
    ):
        result = tformer(*command)
        assert result.exit_code == 0, result.stderr
    words = ("-i", text, "--beam", 3, "--workers", 1)
    texts = [
        tformer("translate", run, *words, "--backend", backend).stdout
        for backend in ("native", "ctranslate2")
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0].splitlines())) > 5
    assert not load_trained_model(RunDirectory(tmp_path / "on")).config.model.source_eos


# What is refused.


def refused(folder: Path) -> list[str]:
    """Return the messages of an import that fails, and see that it leaves nothing behind."""
    before = sorted(path.name for path in folder.parent.iterdir())
    with pytest.raises(TformerError) as caught:
        import_run(folder, RunDirectory(folder.parent / "run"))
    assert sorted(path.name for path in folder.parent.iterdir()) == before
    return [str(problem).replace(str(folder), "FOLDER") for problem in caught.value.problems]


def of_a_later_version() -> Made:
    made = opennmt()
    for stack in (made.spec.encoder, made.spec.decoder):
        stack.activation = np.int8(9)
    return made


REFUSED: dict[str, tuple[Callable[[], Made], str]] = {
    "unknown-activation": (
        of_a_later_version,
        "model.bin: encoder/activation: must be one of RELU, SWISH, GELU (9)",
    ),
    "gelu-tanh": (
        lambda: opennmt(activation="fast_gelu"),
        "model.bin: encoder/activation: must be one of RELU, SWISH, GELU (GELUTanh)",
    ),
    "gated-relu": (
        lambda: t5(feed_forward_proj="gated-relu"),
        "model.bin: encoder/activation: must be one of SWISH, GELU, GELUTanh (RELU)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_our_network_does_not_have_are_named(name, tmp_path):
    make, message = REFUSED[name]
    assert f"FOLDER/{message}" in refused(write(make(), tmp_path / "folder"))


def test_relative_positions_are_named(tmp_path):
    specs = ctranslate2.specs
    made = opennmt()
    for stack in (made.spec.encoder, made.spec.decoder):
        for layer in stack.layer:
            new = specs.attention_spec.MultiHeadAttentionSpec(
                self_attention=True, relative_position=True
            )
            new.layer_norm, new.linear = (
                layer.self_attention.layer_norm,
                layer.self_attention.linear,
            )
            new.relative_position_keys = new.relative_position_values = torch.ones(5, 4)
            layer.self_attention = new
    messages = refused(write(made, tmp_path / "folder"))
    assert messages[0] == (
        "FOLDER/model.bin: decoder/layer_0/self_attention/relative_position_keys: is a part that "
        "tformer's network does not have"
    )
    assert len(messages) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"add_source_bos": True}, "add_source_bos: must be false (true)"),
        (
            {"decoder_start_token": None},
            "decoder_start_token: must be a token of the target vocabulary (None)",
        ),
        ({"unk_token": "?"}, "unk_token: must be <unk> (?)"),
        ({"layer_norm_epsilon": "x"}, "layer_norm_epsilon: must be a number"),
    ],
)
def test_settings_that_we_do_not_have_are_named(settings, message, tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    change_json(folder / "config.json", **settings)
    assert refused(folder)[0].startswith(f"FOLDER/config.json: {message}")


def test_a_folder_without_a_tokenizer_is_refused_with_what_to_copy(tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    (folder / "sentencepiece.model").unlink()
    (message,) = refused(folder)
    assert message.startswith("FOLDER: has no tokenizer: none of source.spm and target.spm, ")
    assert message.endswith("; copy it from the model that was converted")


def test_another_vocabulary_is_refused(tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    file = folder / "shared_vocabulary.json"
    tokens = json.loads(file.read_text())
    write_json(file, tokens[:-1])
    assert "must have a row for each of the" in refused(folder)[0]
    write_json(file, [*tokens[:-1], "<unk>"])
    assert "is of a vocabulary with a token twice" in refused(folder)[0]


DAMAGED = "FOLDER/model.bin: is damaged, cut short, or no model.bin of CTranslate2 ("


def test_cut_weights_are_refused(tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    file = folder / "model.bin"
    content = file.read_bytes()
    for size in (0, 3, 5, 40, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:size])
        assert refused(folder)[0].startswith(DAMAGED)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2**31, 2**31), 16), ((4,), 2**32 - 1), ((2**32 - 1,) * 255, 4)],
)
def test_shapes_beyond_the_file_are_refused_before_they_are_read(shape, size, tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    name = b"encoder/embeddings_0/weight\0"
    header = struct.pack("<IH", 6, 16) + b"TransformerSpec\0" + struct.pack("<III", 7, 1, 0)[:8]
    variable = struct.pack("<H", len(name)) + name + struct.pack("<B", len(shape))
    variable += struct.pack(f"<{len(shape)}I", *shape) + struct.pack("<BI", 0, size) + bytes(64)
    (folder / "model.bin").write_bytes(header + variable)
    assert refused(folder)[0].startswith(DAMAGED)


def test_random_damage_is_no_traceback(tmp_path):
    """Whatever byte is changed, the import works or says what is wrong."""
    folder = write(opennmt(), tmp_path / "folder")
    file = folder / "model.bin"
    content = file.read_bytes()
    generator = random.Random(8)
    for _ in range(40):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[generator.randrange(len(content) // 40)] = generator.randrange(256)
        file.write_bytes(damaged)
        with contextlib.suppress(TformerError):
            read_ctranslate2(folder)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    made = opennmt()
    made.spec.encoder.layer[0].ffn.linear_0.weight[0, 0] = float("nan")
    (message,) = refused(write(made, tmp_path / "folder"))
    assert message == (
        "FOLDER/model.bin: holds numbers that are not finite in 1 of its weights "
        "(encoder.layers.0.feedforward.up.weight); convert or export the model again"
    )
