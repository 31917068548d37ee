"""Graphs that onnxruntime runs say and translate what the model does."""

import contextlib
import io
import json
import logging
import math
import random
import sys
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from exportable import BASE, LINES, MEMBERS, ROTARY, exported, lively
from family import translating
from hypothesis import given

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    LatentConfig,
    T5Positions,
)
from tformer_cli.errors import ExportError, UsageError
from tformer_cli.export import onnx as onnx_format
from tformer_cli.export.check import CheckText, check_export
from tformer_cli.export.onnx import OnnxFormat, SourceGraph, StepGraph, traceable
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.engine import Request, SpecialTokens
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID
from tformer_cli.translate.translator import Translator

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
# The graphs that an older one writes are not ours.
pytest.importorskip("torch", minversion="2.7")

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
    monkeypatch.setattr(onnx_format, "MAX_PROTOBUF_BYTES", 1)
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
    for search in FORM.searches(GreedyConfig(max_length=15)):
        alone = [engine.translate([request], search)[0][0] for request in requests[:8]]
        found = engine.translate([requests[i] for i in order], search, on_done=done.append)
        for position, number in enumerate(order[:-1]):
            if number < len(requests) - 1:
                one = alone[number % 8]
                assert found[position][0].token_ids == one.token_ids
                assert found[position][0].score == pytest.approx(one.score, abs=1e-4)
        assert found[order.index(len(requests) - 1)][0].token_ids == ()
    assert sum(done) == 2 * len(requests)


@pytest.mark.slow
def test_scores_of_pairs_are_those_of_the_model(small):
    from tformer_cli.search.native_engine import NativeEngine

    engine = FORM.engine(small.trained, small.folder)
    roles = SpecialTokens(*small.trained.tokenizers.special_ids(small.trained.config.model.kind))
    ours = NativeEngine(small.trained.model, roles, device=torch.device("cpu"))
    pairs = [((8, 9, EOS_ID), (10, 11)), ((8, EOS_ID), ()), ((), ()), ((), (9,))]
    found = engine.scorer.score(pairs)
    for own, other in zip(ours.scorer.score(pairs), found, strict=True):
        assert other == pytest.approx(own, abs=1e-4)


@pytest.mark.slow
def test_one_wrong_number_fails_the_check(small):
    changed = lively(SMALL)
    with torch.no_grad():
        changed.model.decoder.layers[0].cross_attention.value.weight[0, 3] += 0.1
    text = CheckText.of(LINES, changed.tokenizers, name="valid.en", max_length=30)
    with pytest.raises(ExportError, match=r"^valid.en:1: onnxruntime has another translation"):
        check_export(changed, FORM, small.folder, text)


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
        "torch.onnx: cannot write this network (Failed to decompose.); "
        "pip install --upgrade 'tformer[onnx]'"
    )


B, S, T, V = 3, 6, 7, 23
LENGTHS = torch.tensor([6, 1, 4])
ROLES = SpecialTokens(bos=1, eos=2, suppressed=(0, 1, 5))


def built(config) -> Seq2Seq:
    model = build_model(config, source_size=V, target_size=V, seed=7).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def source():
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(6, V, (B, S), generator=generator)
    return ids, torch.arange(S) < LENGTHS[:, None]


@torch.no_grad()
def stepped(model, ids, mask, target):
    """Log probabilities (B, T, V) of a token at a time, through both graphs."""
    traced = traceable(model)
    reading, stepping = SourceGraph(traced), StepGraph(traced, ROLES)
    seen = reading(ids, mask)
    past = [
        (
            torch.zeros(len(ids), kept.num_heads, 0, kept.key_dim),
            torch.zeros(len(ids), kept.num_heads, 0, kept.value_dim),
        )
        for kept in model.stacks()[-1].kv_shapes()
    ]
    found = []
    for position in range(target.shape[1]):
        log_probs, past = stepping(target[:, position, None], mask, seen, past)
        found.append(log_probs)
    return torch.stack(found, dim=1)


@torch.no_grad()
def expected(model, ids, mask, target):
    logits = model.output(model.target_hidden_states(ids, mask, target))
    logits[..., list(ROLES.suppressed)] = -math.inf
    logits[:, 0, ROLES.eos] = -math.inf
    return logits.log_softmax(dim=-1)


@given(translating)
def test_graphs_of_any_member_say_what_the_model_says(config):
    model, (ids, mask) = built(config), source()
    target = torch.randint(6, V, (B, T), generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(
        stepped(model, ids, mask, target),
        expected(model, ids, mask, target),
        rtol=1e-4,
        atol=1e-4,
    )


def test_what_no_translation_contains_has_no_probability():
    model, (ids, mask) = built(MEMBERS["modern"]), source()
    probabilities = stepped(model, ids, mask, torch.full((B, 2), 7)).exp()
    assert (probabilities[..., list(ROLES.suppressed)] == 0).all()
    assert (probabilities[:, 0, ROLES.eos] == 0).all()
    assert (probabilities[:, 1, ROLES.eos] > 0).all()
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(B, 2))


def test_formal_model_shares_its_weights_and_leaves_the_other_as_it_was():
    model = built(MEMBERS["modern"])
    attends = [one.attend for layer in model.decoder.layers for one in layer.attentions()]
    traced = traceable(model)
    assert traced.output.weight is model.output.weight
    assert [one.attend for layer in model.decoder.layers for one in layer.attentions()] == attends
    assert not {one.attend for layer in traced.decoder.layers for one in layer.attentions()} & set(
        attends
    )


@pytest.mark.parametrize("name", ["sinusoidal", "relative-window"])
def test_rows_of_other_lengths_say_the_same_alone(name):
    model, (ids, mask) = built(MEMBERS[name]), source()
    target = torch.randint(6, V, (B, T), generator=torch.Generator().manual_seed(9))
    together = stepped(model, ids, mask, target)
    for row, length in enumerate(LENGTHS.tolist()):
        own = slice(row, row + 1)
        alone = stepped(model, ids[own, :length], mask[own, :length], target[own])
        torch.testing.assert_close(together[own], alone, rtol=1e-4, atol=1e-4)
