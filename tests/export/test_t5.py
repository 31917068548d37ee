"""T5 models of transformers as runs of ours, and back: the same ids, logits and translations."""

import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from exportable import content_of, exported
from opus import SOURCES, change_json, unnamed
from safetensors.torch import load_file, save_file
from t5 import CASES, PREFIX, save_t5, tokenizer_of
from transformers import T5ForConditionalGeneration

from tformer_cli.api import train
from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.errors import ConfigError, TformerError
from tformer_cli.export.check import CheckText
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.format import first_ids
from tformer_cli.export.run import export_run, import_run
from tformer_cli.export.t5 import T5Format, read_t5
from tformer_cli.export.t5_weights import OUTPUT_PROJECTION, SHARED, t5_names
from tformer_cli.export.weights import to_theirs
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.special_tokens import EOS_ID, UNK_ID
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.translate.translator import Translator

LONGEST = 12
WORDS = sorted({word for line in SOURCES for word in line.split()})
LINES = [
    " ".join(words)
    for words in itertools.islice(itertools.product(WORDS[3:9], WORDS[:6], WORDS[5:11]), 200)
]


class Parity:
    """A model of transformers, and ours that was made of it."""

    def __init__(self, folder: Path, name: str) -> None:
        torch.manual_seed(3)
        self.folder = folder / name
        self.theirs = save_t5(self.folder, **CASES[name])
        self.tokenizer = tokenizer_of(self.folder)
        self.ours = read_t5(self.folder)
        self.rows = torch.tensor(self.ours.tokenizers.source.rows)
        self.prefix = {"1.0": PREFIX, "madlad": "<2de> "}.get(name, "")

    def batch(self, lines: list[str]) -> Any:
        texts = [self.prefix + line for line in lines]
        return self.tokenizer(texts, return_tensors="pt", padding=True)

    def our_ids(self, rows: torch.Tensor) -> torch.Tensor:
        """Our id of each of their rows."""
        order = self.rows.argsort()
        return order[(self.rows < 0).sum() :][rows]

    def translator(self) -> Translator:
        ours = self.ours
        translator = Translator.from_model(
            ours.model, ours.tokenizers, ours.config, torch.device("cpu")
        )
        return translator.into("de") if self.prefix else translator

    def generated(self, lines: list[str], **search: Any) -> list[str]:
        """Translate as `generate` does, without tokens that no translation of ours contains."""
        suppressed = self.ours.tokenizers.target.suppressed_ids
        ids = self.theirs.generate(
            **self.batch(lines),
            max_new_tokens=LONGEST,
            min_new_tokens=1,
            suppress_tokens=sorted({int(self.rows[i]) for i in suppressed} - {-1}),
            renormalize_logits=True,
            # Their cache has as many layers as the encoder.
            use_cache=False,
            **search,
        )
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.fixture(scope="module", params=CASES)
def parity(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parity:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        return Parity(tmp_path_factory.mktemp("t5"), request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_t5(tmp_path / "t5")
    return tmp_path / "t5"


def test_lines_have_t5s_tokens(parity):
    source = parity.ours.tokenizers.source
    lines = [*LINES, *SOURCES, "  dogs  and ", "Ｔhe\tcat", ">>de<< dogs", "▁a"]
    if source.rows[UNK_ID] != 2:
        # Their tokenizer has id 2 for what is unknown, whatever the model's.
        lines = [line for line in lines if UNK_ID not in source.encode(line)]
    for line in lines:
        expected = parity.tokenizer(parity.prefix + line)["input_ids"]
        found = [*first_ids(parity.ours)[0], *source.encode(line), EOS_ID]
        assert parity.rows[found].tolist() == expected, line


def test_logits_are_t5s(parity):
    batch = parity.batch(SOURCES)
    mask = batch["attention_mask"]
    target = torch.randint(3, len(parity.theirs.shared.weight), (len(SOURCES), 11))
    target[:, 0] = parity.theirs.config.decoder_start_token_id
    with torch.no_grad():
        expected = parity.theirs(**batch, decoder_input_ids=target).logits.flatten(0, 1)
        logits = parity.ours.model(
            parity.our_ids(batch["input_ids"]),
            mask.bool(),
            parity.our_ids(target),
            torch.arange(target.numel()),
        )
    has_row = parity.rows >= 0
    torch.testing.assert_close(
        logits[:, has_row], expected[:, parity.rows[has_row]], rtol=1e-5, atol=5e-5
    )
    assert parity.rows[has_row].sort().values.equal(torch.arange(expected.shape[1]))
    assert logits[:, ~has_row].max() < -50


def test_greedy_translations_are_t5s(parity):
    ours = parity.translator().translate(LINES, decoding=GreedyConfig(max_length=LONGEST))
    assert ours == parity.generated(LINES, num_beams=1)
    assert len(set(ours)) > 3


def test_beam_translations_are_t5s(parity):
    search = BeamConfig(beam_size=3, length_penalty=1.0, max_length=LONGEST)
    ours = parity.translator().translate(LINES, decoding=search)
    # Theirs then stops as ours does: once as many hypotheses as beams are stored.
    theirs = parity.generated(LINES, num_beams=3, length_penalty=1.0, early_stopping=True)
    assert ours == theirs


def test_a_training_step_is_t5s(parity):
    """By gradient descent, and labels that are real tokens."""
    ours, theirs = read_t5(parity.folder), type(parity.theirs).from_pretrained(parity.folder)
    batch = parity.batch(SOURCES[:2])
    labels = torch.randint(3, 30, (2, 6))
    labels[1, 4:] = -100
    before = {name: weight.clone() for name, weight in theirs.state_dict().items()}
    theirs(**batch, labels=labels).loss.backward()
    start = torch.full((2, 1), theirs.config.decoder_start_token_id)
    target = parity.our_ids(torch.cat((start, labels[:, :-1]), 1).clamp(min=0))
    assert set(target[:, 0].tolist()) == {ours.tokenizers.start_id("encoder_decoder")}
    positions = (labels >= 0).flatten().nonzero()[:, 0]
    ours.model.freeze([])
    states = ours.model.hidden_states(
        parity.our_ids(batch["input_ids"]), batch["attention_mask"].bool(), target, positions
    )
    targets = parity.our_ids(labels[labels >= 0])
    loss = smoothed_nll_sum(states, ours.model.output, targets, 0.0)
    (loss.objective / len(targets)).backward()
    with torch.no_grad():
        for model in (theirs, ours.model):
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= 0.1 * weight.grad
    named = dict(ours.model.named_parameters(remove_duplicate=False))
    rows = torch.tensor(ours.tokenizers.source.rows)
    ids = torch.tensor([rows.tolist().index(row) for row in range(int(rows.max()) + 1)])
    found = to_theirs(named, t5_names(ours.config.model), (ids, ids))
    for name, weight in theirs.state_dict().items():
        if name in found:
            # Some of these random weights move by tens, and rounding with them.
            moved, rounding = (weight - before[name]).norm(), 1e-6 * weight.norm()
            assert (found[name] - weight).norm() <= 1e-4 * moved + rounding, name
    assert found.keys() <= theirs.state_dict().keys()


def test_weights_and_tokens_come_back_unchanged(parity, tmp_path):
    T5Format().save(parity.ours, tmp_path / "back")
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path / "back")
    expected = parity.theirs.state_dict()
    assert theirs.state_dict().keys() == expected.keys()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    batch = parity.batch(SOURCES)
    lengths = batch["attention_mask"].sum(1).tolist()
    assert tokenizer_of(tmp_path / "back")([parity.prefix + x for x in SOURCES]) == {
        key: [row[:length] for row, length in zip(value.tolist(), lengths, strict=True)]
        for key, value in batch.items()
    }
    with torch.no_grad():
        inputs = {**batch, "decoder_input_ids": batch["input_ids"]}
        assert torch.equal(theirs(**inputs).logits, parity.theirs(**inputs).logits)
    assert content_of(read_t5(tmp_path / "back")) == content_of(parity.ours)


def test_a_folder_that_goes_back_writes_no_token_that_ours_does_not(parity, tmp_path):
    T5Format().save(parity.ours, tmp_path / "back")
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path / "back")
    ids = theirs.generate(**parity.batch(LINES), num_beams=1, max_new_tokens=LONGEST)
    found = parity.tokenizer.batch_decode(ids, skip_special_tokens=True)
    ours = parity.translator().translate(LINES, decoding=GreedyConfig(max_length=LONGEST))
    assert found == ours


def test_ctranslate2_translates_alike(parity, tmp_path):
    data = parity.ours.config.data
    text = CheckText.of(
        LINES[::10],
        parity.ours.tokenizers,
        name="lines",
        max_length=data.filters.max_length,
        first_ids=first_ids(parity.ours),
    )
    decoding = BeamConfig(max_length=LONGEST)
    ours = replace(parity.ours, config=replace(parity.ours.config, decoding=decoding))
    with exported(ours, CTranslate2Format(), tmp_path / "ct2", text) as (_, checks):
        assert all(check.num_best_equal == check.num_lines for check in checks)


def test_a_tokenizer_json_has_the_same_tokens(folder, tmp_path):
    expected = read_t5(folder).tokenizers.source
    tokenizer_of(folder).save_pretrained(tmp_path / "saved")
    (folder / "spiece.model").unlink()
    shutil.copy(tmp_path / "saved" / "tokenizer.json", folder)
    found = read_t5(folder).tokenizers.source
    assert found.rows == expected.rows
    for line in [*LINES, *SOURCES, "  dogs  and ", "Ｔhe\tcat"]:
        assert found.encode(line) == expected.encode(line)
        assert found.decode(found.encode(line)) == expected.decode(expected.encode(line))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed_forward_proj": "tanh"}, "feed_forward_proj: must be one of relu, gelu"),
        ({"vocab_size": 9}, "has more pieces than the 9 embedding rows that config.json has"),
        ({"d_kv": 6}, "differs in 16 of its weights from the model that config.json describes"),
        # Its root is no number of the machine.
        ({"d_model": 10**400}, "model.dim: must be at most"),
        ({"decoder_start_token_id": 999}, "decoder_start_token_id: must be below vocab_size"),
    ],
)
def test_settings_that_the_files_contradict_are_named(folder, changes, message):
    change_json(folder / "config.json", **changes)
    if "vocab_size" in changes:
        weights = load_file(folder / "model.safetensors")
        for name in (SHARED, OUTPUT_PROJECTION):
            weights[name] = weights[name][: changes["vocab_size"]].contiguous()
        save_file(weights, folder / "model.safetensors")
    with pytest.raises(TformerError, match=re.escape(message)):
        read_t5(folder)


def test_layers_without_weights_are_refused_before_they_are_named(folder, monkeypatch):
    monkeypatch.setattr("tformer_cli.export.t5_weights.weight_names", unnamed)
    change_json(folder / "config.json", num_layers=5 * 10**8)
    with pytest.raises(TformerError, match="describes more layers than the "):
        read_t5(folder)


def test_a_pickle_is_refused_with_the_command_that_converts_it(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(TformerError, match="is a pickle, which can run any program"):
        read_t5(folder)


def test_a_network_that_is_no_t5_is_refused(toy_run, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        export_run(RunDirectory(toy_run), tmp_path / "t5", "t5")
    named = {problem.where for problem in refusal.value.problems}
    assert {"tokenizer.kind", "model.norm", "model.positions", "model.embedding_scale"} <= named
    assert not (tmp_path / "t5").exists()


def test_an_imported_run_translates_trains_and_goes_back(tmp_path):
    save_t5(tmp_path / "t5", **CASES["madlad"])
    run = RunDirectory(tmp_path / "run")
    for side, lines in (("en", SOURCES), ("de", SOURCES)):
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    import_run(tmp_path / "t5", run, source_language="en", target_language="de")
    before = Translator.load(run.path, backend="native", to="de").translate(SOURCES)
    text = {"source": "train.en", "target": "train.de"}
    plain = yaml.safe_load(run.config_file.read_text())
    plain["data"] |= {"root": str(tmp_path), "train": [text], "valid": text, "test": {}}
    every = dict.fromkeys(("max_steps", "validate_every", "save_every"), 2)
    plain["training"] |= {**every, "batch_tokens": 1500}
    plain["training"]["schedule"]["warmup_steps"] = 1
    plain["training"]["init_from"] = str(run.path)
    file = tmp_path / "more.yaml"
    file.write_text(yaml.safe_dump(plain))
    train(file, run=tmp_path / "more")
    translator = Translator.load(tmp_path / "more", backend="native", to="de")
    assert len(translator.translate(SOURCES)) == len(before) == len(SOURCES)
    export = export_run(RunDirectory(tmp_path / "more"), tmp_path / "back", "t5", check_lines=2)
    assert all(check.num_best_equal == check.num_lines for check in export.checks)


def test_the_language_that_is_asked_for_comes_first_and_others_stay(tmp_path):
    save_t5(tmp_path / "t5", **CASES["madlad"])
    run = RunDirectory(tmp_path / "run")
    import_run(tmp_path / "t5", run, source_language="en", target_language="fr")
    translator = Translator.load(run.path, backend="native")
    assert translator.direction.targets == ("fr", "de")
    french, german = (translator.into(to).translate(SOURCES) for to in ("fr", "de"))
    assert translator.translate(SOURCES) == french != german
    with pytest.raises(TformerError, match="has no prefix in this model"):
        read_t5(tmp_path / "t5", target_language="it")
