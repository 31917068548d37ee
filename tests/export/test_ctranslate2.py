"""A model in CTranslate2: the same probabilities and translations, and the example of its card."""

import ast
import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exportable import BASE, LINES, LONGEST, MEMBERS, char_tokenizers, lively, trained
from family import encoder_decoders
from hypothesis import given, settings

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    LearnedPositions,
    ModelConfig,
    RotaryPositions,
    YarnScaling,
)
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig, WordConfig
from tformer_cli.errors import ConfigError, UsageError
from tformer_cli.export.check import CheckText, check_export
from tformer_cli.export.ctranslate2 import (
    CTranslate2Format,
    quantize_weights,
    specification,
)
from tformer_cli.export.ctranslate2_engine import unsupported_by_ctranslate2
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, NUM_SPECIAL
from tformer_cli.text.subword import MarianTokenizer, marian_file
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.translate.postprocess import Translation
from tformer_cli.translate.translator import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

TRANSLATIONS = ["ED CBA", "G", "G F E", "ABCDEFG GFEDCBA", "", "CCCCCCC C", "A", "E", "J A H"]

PLAIN = EncoderDecoderConfig(
    dim=12,
    num_heads=3,
    feedforward_dim=14,
    num_encoder_layers=1,
    num_decoder_layers=2,
    norm_epsilon=1e-3,
)
CONFIGS = {
    "pre": PLAIN,
    "post": replace(PLAIN, norm_position="post", tie_embeddings="output"),
    "rms": replace(PLAIN, norm="rms", activation="gelu"),
    "post-rms": replace(PLAIN, norm="rms", norm_position="post", tie_embeddings="none"),
    "learned": replace(
        PLAIN, positions=LearnedPositions(max_length=LONGEST), tie_embeddings="none"
    ),
}
SEARCHES = [
    GreedyConfig(max_length=23),
    BeamConfig(beam_size=5, max_length=23),
    BeamConfig(beam_size=3, max_length=19, length_penalty=0.6, patience=2.0),
    BeamConfig(beam_size=4, max_length=23, length_penalty=0.0, coverage_penalty=0.9),
    BeamConfig(beam_size=3, max_length=19, patience=2.0, coverage_penalty=0.4),
]


def random_model(config: EncoderDecoderConfig, tokenizers: Tokenizers) -> Seq2Seq:
    """Weights that let every part matter, and with this seed some translations end early."""
    torch.manual_seed(7)
    model = build_model(
        config, source_size=tokenizers.source.size, target_size=tokenizers.target.size, seed=5
    )
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter)
        else:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    model.output.weight.data[EOS_ID] *= 3
    return model.eval()


def save(
    model: Seq2Seq,
    tokenizers: Tokenizers,
    config: ModelConfig,
    folder: Path,
    quantization: str = "float32",
) -> None:
    CTranslate2Format(quantization).save(trained(model, tokenizers, config), folder)


def exported(
    model: Seq2Seq, tokenizers: Tokenizers, config: EncoderDecoderConfig, folder: Path, **options
) -> Any:
    save(model, tokenizers, config, folder, **options)
    return ctranslate2.Translator(str(folder), intra_threads=1)


def log_probs(
    model: Seq2Seq, tokenizers: Tokenizers, source: str, target: str
) -> tuple[float, ...]:
    """What each token of a given translation has, `</s>` included, by the formula."""
    read = torch.tensor([[*tokenizers.source.encode(source), EOS_ID]])
    written = [*tokenizers.target.encode(target), EOS_ID]
    shown = torch.tensor([[BOS_ID, *written[:-1]]])
    real = torch.ones_like(read, dtype=torch.bool)
    with torch.no_grad():
        logits = model(read, real, shown, torch.arange(shown.numel()))
    logits[:, list(tokenizers.target.suppressed_ids)] = -torch.inf
    return tuple(logits.log_softmax(-1)[range(len(written)), written].tolist())


def ours(
    model: Seq2Seq, tokenizers: Tokenizers, config: EncoderDecoderConfig, search: DecodingConfig
) -> list[Translation]:
    nowhere = {"source": Path("source"), "target": Path("target")}
    data = DataConfig(train=(TrainingText(**nowhere),), valid=ParallelText(**nowhere))
    whole = Config(data=data, model=config)
    translator = Translator.from_model(
        model, tokenizers, whole, torch.device("cpu"), max_source_length=LONGEST - 1
    )
    return [best for (best,) in translator.nbest(LINES, 1, decoding=search)]


def source_tokens(tokenizers: Tokenizers) -> list[list[str]]:
    source = tokenizers.source
    return [source.tokens(source.encode(line)) for line in LINES]


@pytest.mark.parametrize("name", CONFIGS)
def test_given_translations_have_the_same_probabilities(name, tmp_path):
    config, tokenizers = (
        CONFIGS[name],
        char_tokenizers(shared=CONFIGS[name].tie_embeddings == "all"),
    )
    model = random_model(config, tokenizers)
    target = tokenizers.target
    pairs = [pair for pair in zip(LINES, TRANSLATIONS, strict=True) if pair[0]]
    results = exported(model, tokenizers, config, tmp_path / "model").score_batch(
        [tokens for tokens in source_tokens(tokenizers) if tokens],
        [target.tokens(target.encode(line)) for _, line in pairs],
    )
    for result, pair in zip(results, pairs, strict=True):
        expected = log_probs(model, tokenizers, *pair)
        assert result.log_probs == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "patient", "covering", "both"])
@pytest.mark.parametrize("name", CONFIGS)
def test_translations_are_those_of_our_own_engine(name, search, tmp_path):
    config, tokenizers = (
        CONFIGS[name],
        char_tokenizers(shared=CONFIGS[name].tie_embeddings == "all"),
    )
    model = random_model(config, tokenizers)
    beam = search if isinstance(search, BeamConfig) else BeamConfig(beam_size=1, length_penalty=0)
    results = exported(model, tokenizers, config, tmp_path / "model").translate_batch(
        source_tokens(tokenizers),
        beam_size=beam.beam_size,
        length_penalty=beam.length_penalty,
        coverage_penalty=beam.coverage_penalty,
        patience=beam.patience,
        max_decoding_length=search.max_length,
        max_input_length=0,
        # CTranslate2 counts the padding of a batch as source tokens that are not covered.
        max_batch_size=1 if beam.coverage_penalty else 0,
        return_scores=True,
    )
    expected = ours(model, tokenizers, config, search)
    assert [tuple(result.hypotheses[0]) for result in results] == [
        translation.tokens for translation in expected
    ]
    filled = [index for index, line in enumerate(LINES) if line]
    # Random weights make some logits so large, and coverage some logarithms, that the last digits
    # are off by a ten-thousandth: in float64 one score lies half-way between the two.
    assert [results[index].scores[0] for index in filled] == pytest.approx(
        [expected[index].score for index in filled], rel=1e-3
    )
    assert len({len(translation.tokens) for translation in expected}) > 2


def test_sentences_longer_than_training_ones_have_positions(tmp_path):
    tokenizers = char_tokenizers(shared=True)
    model = random_model(PLAIN, tokenizers)
    source, target = "abcdefg " * 40, "GFED CBA" * 30
    (result,) = exported(model, tokenizers, PLAIN, tmp_path / "model").score_batch(
        [list(source)], [list(target)]
    )
    expected = log_probs(model, tokenizers, source, target)
    assert result.log_probs == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_quantizing_changes_the_export_by_rounding_and_the_model_not_at_all(tmp_path):
    whole = lively(BASE)
    model, tokenizers, config = (
        whole.model,
        whole.tokenizers,
        whole.config.model,
    )
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rounded = exported(model, tokenizers, config, tmp_path / "int8", quantization="int8")
    save(model, tokenizers, config, tmp_path / "half", "float16")
    save(model, tokenizers, config, tmp_path / "float32")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    sizes = {
        name: (tmp_path / name / "model.bin").stat().st_size for name in ("int8", "half", "float32")
    }
    assert max(sizes["int8"], sizes["half"]) < sizes["float32"]
    for source, target in zip(LINES, TRANSLATIONS, strict=True):
        if source:
            (result,) = rounded.score_batch([list(source)], [list(target)])
            expected = log_probs(model, tokenizers, source, target)
            assert result.log_probs == pytest.approx(expected, abs=1.0)
            assert result.log_probs != pytest.approx(expected, abs=1e-4)


def test_int8_weights_miss_by_half_a_step_and_no_pair_of_products_leaves_16_bits():
    whole = lively(BASE)
    exact, rounded = (specification(whole.model, whole.config.model) for _ in range(2))
    quantize_weights(rounded)
    weights, found = exact.variables(), rounded.variables()
    quantizable = {name.removesuffix("_scale") for name in found if name.endswith("_scale")}
    # Both tables and the output; 4 matrices of a layer of the encoder, 7 of the decoder's.
    assert len(quantizable) == 3 + 2 * 4 + 2 * 7
    for name in quantizable:
        scales = found[f"{name}_scale"][:, None]
        assert found[name].dtype == torch.int8
        assert (found[name] - weights[name] * scales).abs().max() < 0.501
        assert 2 * 255 * int(found[name].abs().max()) < 2**15


def test_rows_of_zeros_stay_zeros_in_int8():
    whole = lively(BASE)
    torch.nn.init.zeros_(whole.model.decoder.layers[0].feedforward.up.weight)
    spec = specification(whole.model, whole.config.model)
    quantize_weights(spec)
    zeros = spec.decoder.layer[0].ffn.linear_0
    assert zeros.weight.count_nonzero() == 0
    assert zeros.weight_scale.isfinite().all()


WRITTEN = """
import json, sys
import ctranslate2
translator = ctranslate2.Translator(sys.argv[1], intra_threads=1)
(result,) = translator.score_batch([list(sys.argv[2])], [list(sys.argv[3])])
print(json.dumps(result.log_probs))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a processor has one library for int8")
def test_int8_means_the_same_to_every_library(tmp_path):
    """Without VNNI oneDNN adds pairs of products in 16 bits, and MKL only on some processors."""
    tokenizers = char_tokenizers(shared=True)
    # Without room to saturate, weights as large as these were off by six nats on AVX2.
    model = random_model(PLAIN, tokenizers)
    save(model, tokenizers, PLAIN, tmp_path / "int8", "int8")
    command = [sys.executable, "-c", WRITTEN, str(tmp_path / "int8"), LINES[0], TRANSLATIONS[0]]
    by_onednn, by_mkl, generic = (
        json.loads(subprocess.check_output(command, env=os.environ | variables))
        for variables in (
            {"CT2_USE_MKL": "0"},
            {"CT2_USE_MKL": "1"},
            {"CT2_FORCE_CPU_ISA": "GENERIC"},
        )
    )
    assert by_mkl == pytest.approx(by_onednn, abs=1e-3)
    assert generic == pytest.approx(by_onednn, abs=1e-3)


def test_tied_tables_are_written_once(tmp_path):
    tokenizers = char_tokenizers(shared=True)
    sizes = []
    for tie in ("all", "output", "none"):
        config = replace(PLAIN, tie_embeddings=tie)
        save(random_model(config, tokenizers), tokenizers, config, tmp_path / tie)
        sizes.append((tmp_path / tie / "model.bin").stat().st_size)
    table = tokenizers.target.size * PLAIN.dim * 4
    one, two, three = sizes
    assert two - one == pytest.approx(table, abs=100)
    assert three - two == pytest.approx(table, abs=100)


def test_folder_that_is_there_is_left_alone(tmp_path):
    tokenizers = char_tokenizers(shared=True)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError) as raised:
        save(random_model(PLAIN, tokenizers), tokenizers, PLAIN, tmp_path)
    assert str(raised.value) == f"{tmp_path}: already exists; remove it, or name another"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_missing_ctranslate2_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    tokenizers = char_tokenizers(shared=True)
    with pytest.raises(UsageError) as raised:
        save(random_model(PLAIN, tokenizers), tokenizers, PLAIN, tmp_path / "model")
    assert str(raised.value) == (
        "ctranslate2: is not installed; pip install 'tformer[ctranslate2]'"
    )


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_translates_as_it_does_itself(name, tmp_path):
    model, form = lively(MEMBERS[name]), CTranslate2Format()
    form.write(model, tmp_path)
    text = CheckText.of(LINES, model.tokenizers, name="lines", max_length=LONGEST - 1)
    greedy, beam = check_export(model, form, tmp_path, text)
    assert (greedy.num_equal, beam.num_equal) == (8, 8)
    assert greedy.ties == beam.ties == ()
    assert len({found.token_ids for found in beam.theirs}) > 1


@pytest.mark.parametrize("name", ["relative", "relative-window", "window", "none", "yarn", "deep"])
def test_distances_beyond_every_class_are_alike_too(name, tmp_path):
    model = lively(MEMBERS[name])
    source, target = "abcdefg " * 9, "GFED CBA" * 8
    translator = exported(model.model, model.tokenizers, model.config.model, tmp_path / "model")
    (result,) = translator.score_batch([list(source)], [list(target)])
    expected = log_probs(model.model, model.tokenizers, source, target)
    assert result.log_probs == pytest.approx(expected, rel=1e-4, abs=1e-4)


LATENT = LatentConfig(kv_lora_rank=6, rope_head_dim=4)


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        (
            DecoderOnlyConfig(latent=LATENT, positions=RotaryPositions()),
            [
                "model.kind: has no exact counterpart in CTranslate2 (decoder_only); "
                "export an encoder_decoder"
            ],
        ),
        (
            EncoderDecoderConfig(latent=LATENT, positions=RotaryPositions()),
            [
                "model.latent: has no exact counterpart in CTranslate2 (dim 6); "
                "train with model.latent: null"
            ],
        ),
        (
            EncoderDecoderConfig(positions=AlibiPositions()),
            [
                "model.positions.kind: has no exact counterpart in CTranslate2 (alibi); "
                "train with rotary or relative positions"
            ],
        ),
        (
            EncoderDecoderConfig(sliding_window=3),
            [
                "model.sliding_window: has no exact counterpart in CTranslate2 "
                "(3 with positions of kind sinusoidal); "
                "train with rotary positions, or with model.sliding_window: null"
            ],
        ),
        (
            replace(PLAIN, latent=LATENT, positions=LearnedPositions(), sliding_window=2),
            [
                "model.latent: has no exact counterpart in CTranslate2 (dim 6); "
                "train with model.latent: null",
                "model.sliding_window: has no exact counterpart in CTranslate2 "
                "(2 with positions of kind learned); "
                "train with rotary positions, or with model.sliding_window: null",
            ],
        ),
    ],
)
def test_what_would_not_be_exact_is_refused_key_by_key(config, messages, tmp_path):
    tokenizers = char_tokenizers(shared=True)
    model = random_model(PLAIN, tokenizers)
    with pytest.raises(ConfigError) as raised:
        save(model, tokenizers, config, tmp_path / "model")
    assert str(raised.value).split("\n") == messages
    assert list(tmp_path.iterdir()) == []


def test_frequencies_of_yarn_are_not_rounded_to_half():
    config = replace(
        PLAIN, positions=RotaryPositions(scaling=YarnScaling(factor=2.0, original_length=8))
    )
    assert list(unsupported_by_ctranslate2(config, "int8")) == []
    assert [str(problem) for problem in unsupported_by_ctranslate2(config, "float16")] == [
        "model.positions.scaling: has no exact counterpart in CTranslate2 "
        "(yarn in float16, which rounds its frequencies); "
        'use `quantization="int8"` or float32'
    ]


exportable = encoder_decoders.filter(lambda config: not list(unsupported_by_ctranslate2(config)))


@settings(max_examples=15)
@given(exportable)
def test_any_member_gives_translations_the_same_probabilities(config):
    model = lively(config)
    with tempfile.TemporaryDirectory() as folder:
        CTranslate2Format().write(model, Path(folder))
        translator = ctranslate2.Translator(folder, intra_threads=1)
        (result,) = translator.score_batch([list("abcdefg fa")], [list("GFED CBAHI")])
    expected = log_probs(model.model, model.tokenizers, "abcdefg fa", "GFED CBAHI")
    assert result.log_probs == pytest.approx(expected, rel=3e-4, abs=3e-4)


pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

PAIRS = [(f"the Dog {i} sleeps, ok", f"der Hund {i} schläft, gut") for i in range(30)]
BEAM = BeamConfig(beam_size=5, max_length=15)
LINE = "Ｔhe Dog 'sleeps' ok: 漢\\"
# Two code points, of which lowercase and then NFKC makes one.
CARON = "the J\u030cog sleeps"


def learned(config) -> Tokenizers:
    return build_tokenizers(config, lambda: PAIRS, seed=1)


def marian() -> Tokenizers:
    """Two sentencepiece models, the vocabulary of both, and a language code in it."""
    apart = learned(SubwordConfig(vocab_size=310, shared=False))
    sides = (apart.source, apart.target)
    pieces = [side.tokens(range(NUM_SPECIAL, side.size)) for side in sides]
    whole = list(dict.fromkeys([">>de<<", *pieces[0], *pieces[1]]))
    source, target = (
        MarianTokenizer(marian_file(side.content, whole), Normalizer(), name="x") for side in sides
    )
    return Tokenizers(source, target, shared=True)


TOKENIZERS = {
    "shared": lambda: learned(SubwordConfig(vocab_size=320)),
    "apart": lambda: learned(
        SubwordConfig(vocab_size=310, shared=False, lowercase="source", nfkc="source")
    ),
    "char": lambda: learned(CharConfig(lowercase="source")),
    "word": lambda: learned(WordConfig()),
    "marian": marian,
}
NUM_STATEMENTS = {"shared": 5, "apart": 6, "char": 4, "word": 5, "marian": 6}


def known(tokenizers: Tokenizers):
    """A model of these tokens; characters that no piece has go through bytes."""
    config = replace(BASE, tie_embeddings="all" if tokenizers.shared else "output")
    model = build_model(
        config, source_size=tokenizers.source.size, target_size=tokenizers.target.size, seed=5
    )
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return trained(model.eval(), tokenizers, config)


@pytest.mark.parametrize("line", [LINE, f">>de<<{LINE}", CARON], ids=["plain", "code", "caron"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_example_in_python_prints_the_translation(kind, line, tmp_path, monkeypatch):
    model, form = known(TOKENIZERS[kind]()), CTranslate2Format()
    form.write(model, tmp_path)
    python = form.example(model, line)
    assert len(ast.parse(python).body) == NUM_STATEMENTS[kind]
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(python, {})
    translator = Translator.from_model(
        model.model, model.tokenizers, model.config, torch.device("cpu")
    )
    assert printed.getvalue() == f"{translator.translate([line], decoding=BEAM)[0]}\n"
    imported = {package.partition("=")[0] for package in form.packages(model)}
    assert all(package in python for package in imported)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("shared", ["shared.model"]),
        ("apart", ["source.model", "target.model"]),
        ("marian", ["source.model", "target.model"]),
        ("char", []),
    ],
)
def test_files_that_make_tokens_are_those_of_the_run(kind, names, tmp_path):
    tokenizers = TOKENIZERS[kind]()
    CTranslate2Format("int8").write(known(tokenizers), tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.model")) == names
    contents = [
        getattr(side, "model", side.content) for side in (tokenizers.source, tokenizers.target)
    ]
    for name, content in zip(names, contents, strict=False):
        assert (tmp_path / name).read_bytes() == content
