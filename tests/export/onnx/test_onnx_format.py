"""Graphs that onnxruntime runs translate as the model does."""

import contextlib
import io
import json
import logging
import random
import sys
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from exportable import BASE, LINES, MEMBERS, ROTARY, lively

from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    LatentConfig,
    T5Positions,
)
from tformer_cli.errors import ExportError, UsageError
from tformer_cli.export.format import CheckText, check, exported
from tformer_cli.export.onnx import format as onnx_format
from tformer_cli.export.onnx.format import OnnxFormat
from tformer_cli.search.request import Request
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID
from tformer_cli.translate.translator import Translator

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

FORM = OnnxFormat()
# What torch follows through a layer takes it seconds.
SMALL = replace(BASE, num_encoder_layers=1, num_decoder_layers=1)
STREAM = DecoderOnlyConfig(
    dim=24, num_heads=3, feedforward_dim=17, num_layers=1, positions=AlibiPositions()
)
ALL = {
    **MEMBERS,
    "latent": replace(ROTARY, latent=LatentConfig(kv_lora_rank=6, rope_head_dim=4)),
    "alibi": replace(BASE, positions=AlibiPositions()),
    "causal-stream": replace(STREAM, num_layers=2, positions=T5Positions(num_buckets=8)),
    "bidirectional-stream": replace(STREAM, num_layers=2, source_attention="bidirectional"),
}


class Written(NamedTuple):
    trained: object
    folder: object
    comparisons: list


def written(config, folder) -> Written:
    trained = lively(config)
    text = CheckText.of(LINES, trained.tokenizers, name="valid.en", max_length=30)
    with exported(trained, FORM, folder, text) as (_, comparisons):
        pass
    return Written(trained, folder, comparisons)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return written(SMALL, tmp_path_factory.mktemp("onnx") / "small")


def all_alike(comparisons) -> bool:
    return all(
        comparison.num_equal == comparison.num_lines == 8 and not comparison.differences
        for comparison in comparisons
    )


@pytest.mark.slow
def test_encoder_and_decoder_translate_alike_by_beam_and_greedy_search(small):
    assert [comparison.search.kind for comparison in small.comparisons] == ["beam", "greedy"]
    assert all_alike(small.comparisons)


@pytest.mark.slow
def test_one_stream_translates_alike_with_its_weights_in_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format, "MAX_BYTES", 1)
    stream = written(STREAM, tmp_path / "stream")
    assert all_alike(stream.comparisons)
    assert sorted(file.name for file in stream.folder.iterdir()) == [
        "config.json",
        "decoder_step.onnx",
        "decoder_step.onnx.data",
        "encoder.onnx",
        "encoder.onnx.data",
        "shared_vocabulary.json",
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ALL)
def test_every_member_translates_alike(name, tmp_path):
    assert all_alike(written(ALL[name], tmp_path / name).comparisons)


@pytest.mark.slow
def test_folder_says_what_goes_round(small):
    assert sorted(file.name for file in small.folder.iterdir()) == [
        "config.json",
        "decoder_step.onnx",
        "encoder.onnx",
        "shared_vocabulary.json",
    ]
    tokens = json.loads((small.folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    tokenizer = small.trained.tokenizers.source
    assert tokens == tokenizer.tokens(range(tokenizer.size))
    assert json.loads((small.folder / "config.json").read_text()) == {
        "start_id": BOS_ID,
        "end_id": EOS_ID,
        "unk_id": UNK_ID,
        "max_length": 15,
    }
    assert tokens[BOS_ID] == SPECIAL_TOKENS[BOS_ID]


@pytest.mark.slow
def test_example_in_python_prints_the_greedy_translation(small, monkeypatch):
    line = "abc fedcba?"
    monkeypatch.chdir(small.folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(FORM.example(small.trained, line), {})
    trained = small.trained
    translator = Translator.from_model(
        trained.model, trained.tokenizers, trained.config, torch.device("cpu")
    )
    (expected,) = translator.translate([line], decoding=small.comparisons[-1].search)
    assert printed.getvalue() == f"{expected}\n"
    assert FORM.packages(trained) == ["numpy", "onnxruntime"]


@pytest.mark.slow
def test_translations_do_not_depend_on_their_company(small):
    engine = FORM.engine(small.trained, small.folder)
    text = CheckText.of(LINES * 6, small.trained.tokenizers, name="x", max_length=30)
    requests = [*map(Request, text.sources), Request(())]
    order = random.Random(1).sample(range(len(requests)), len(requests))
    done = []
    for search in FORM.searches(15):
        alone = [engine.translate([request], search)[0][0] for request in requests[:8]]
        found = engine.translate([requests[i] for i in order], search, on_done=done.append)
        for place, number in enumerate(order[:-1]):
            if number < len(requests) - 1:
                one = alone[number % 8]
                assert found[place][0].token_ids == one.token_ids
                assert found[place][0].score == pytest.approx(one.score, abs=1e-4)
        assert found[order.index(len(requests) - 1)][0].token_ids == ()
    assert sum(done) == 2 * len(requests)


@pytest.mark.slow
def test_scores_of_pairs_are_those_of_the_model(small):
    from tformer_cli.search.engine import NativeEngine
    from tformer_cli.translate.preprocess import special_tokens

    engine = FORM.engine(small.trained, small.folder)
    roles = special_tokens(small.trained.tokenizers.target, small.trained.config.model)
    ours = NativeEngine(small.trained.model, roles, device=torch.device("cpu"))
    pairs = [((8, 9, EOS_ID), (10, 11)), ((8, EOS_ID), ()), ((), ()), ((), (9,))]
    found = engine.scorer.score(pairs)
    for own, other in zip(ours.scorer.score(pairs), found, strict=True):
        assert other == pytest.approx(own, abs=1e-4)


@pytest.mark.slow
def test_one_wrong_number_fails_the_check(small):
    twin = lively(SMALL)
    with torch.no_grad():
        twin.model.decoder.layers[0].cross_attention.value.weight[0, 3] += 0.1
    text = CheckText.of(LINES, twin.tokenizers, name="valid.en", max_length=30)
    with pytest.raises(ExportError, match=r"^valid.en:1: onnxruntime has another translation"):
        check(twin, FORM, small.folder, text)


@pytest.mark.slow
def test_torch_says_as_much_as_before_to_others(small):
    assert logging.getLogger("torch.onnx").level == logging.NOTSET


def refused(folder) -> str:
    trained = lively(SMALL)
    text = CheckText.of(LINES, trained.tokenizers, name="valid.en", max_length=30)
    with pytest.raises(UsageError) as raised, exported(trained, FORM, folder / "model", text):
        raise AssertionError("it has been written")
    assert list(folder.iterdir()) == []
    return str(raised.value)


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages_are_one_line_and_leave_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    assert refused(tmp_path) == f"{name}: is not installed; pip install 'tformer[onnx]'"


def test_what_torch_cannot_write_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise torch.onnx.OnnxExporterError("Failed to decompose.\n\nA page of reasons.")

    monkeypatch.setattr(torch.onnx, "export", fail)
    assert refused(tmp_path) == (
        "torch.onnx: cannot write this network; got Failed to decompose.; "
        "pip install --upgrade 'tformer[onnx]'"
    )
