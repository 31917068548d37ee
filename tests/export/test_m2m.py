"""M2M-100, NLLB and mBART-50 of transformers as runs of ours: the same model, and back again."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from m2m import FAMILIES, LONGEST, generate, lines, save_m2m, token_ids, tokenizer_of
from opus import SOURCES, TARGETS, change_json, unnamed
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.corpus.batch import collate
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.errors import TformerError, UsageError
from tformer_cli.export.argos import ArgosFormat
from tformer_cli.export.check import CheckText, check_export
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.m2m import M2MFormat, m2m_names, read_m2m
from tformer_cli.export.onnx import OnnxFormat
from tformer_cli.export.run import import_run
from tformer_cli.export.weights import to_theirs
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.translate.translator import Translator

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CASES: dict[str, dict[str, Any]] = {
    "m2m": {},
    "nllb": {"activation_function": "gelu", "encoder_layers": 1, "decoder_layers": 2},
    "mbart": {},
}
SEARCHES: list[tuple[DecodingConfig, dict[str, Any]]] = [
    (GreedyConfig(max_length=LONGEST), {"num_beams": 1}),
    (
        BeamConfig(beam_size=4, length_penalty=0.6, max_length=LONGEST),
        {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
    ),
]
WORDS = [*SOURCES, "xyz sat", "hats  hats", "Hüte", "a", "Ｔｈｅ ｏｌｄ dog", "dogs\tand"]


class Parity:
    """A model of transformers, and ours that was made of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder / name
        self.theirs = save_m2m(self.folder, name, **CASES[name])
        self.tokenizer = tokenizer_of(self.folder, name)
        self.ours: TrainedModel = read_m2m(self.folder)
        self.languages = FAMILIES[name].languages
        self.ids = token_ids(self.ours)
        self.translator = translator(self.ours)

    def named(self, ids: list[int]) -> list[str]:
        return [self.ours.tokenizers.source.vocabulary[i] for i in ids]


def translator(model: TrainedModel) -> Translator:
    return Translator.from_model(model.model, model.tokenizers, model.config, torch.device("cpu"))


@pytest.fixture(scope="module", params=CASES)
def parity(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parity:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        return Parity(tmp_path_factory.mktemp("m2m"), request.param)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    save_m2m(tmp_path / "nllb", "nllb")
    return tmp_path / "nllb"


def test_lines_have_their_tokens_and_text(parity):
    side, source = parity.ours.tokenizers.source, parity.translator.tag_ids()
    for line in [*WORDS, *lines()]:
        ids = parity.tokenizer(line)["input_ids"]
        assert side.tokens([*source, *side.encode(line), EOS_ID]) == parity.named(ids)
        written = parity.tokenizer(text_target=line)["input_ids"]
        target = [*parity.translator.direction.target_ids, *side.encode(line), EOS_ID]
        assert side.tokens(target) == parity.named(written)
        if "<unk>" not in parity.named(ids):
            expected = parity.tokenizer.decode(written[1:-1])
            assert side.decode(target) == expected


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_logits_are_theirs(parity, precision):
    """Those of tokens that their model does not have are too low for a probability."""
    size = len(parity.ids)
    source, target = torch.randint(2, size, (2, 7)), torch.randint(2, size, (2, 11))
    seen = torch.arange(7) < torch.tensor([[7], [4]])
    target[:, 0] = 2
    theirs, ours = parity.theirs.to(precision), parity.ours.model.to(precision)
    source[~seen] = 1
    with torch.no_grad():
        expected = theirs(
            input_ids=source, attention_mask=seen.long(), decoder_input_ids=target
        ).logits.flatten(0, 1)
        logits = ours(parity.ids[source], seen, parity.ids[target], torch.arange(2 * 11))
    theirs.float(), ours.float()
    absent = torch.ones(logits.shape[1], dtype=torch.bool)
    absent[parity.ids] = False
    assert logits[:, absent].max() < -90
    # Their sinusoids have single precision.
    torch.testing.assert_close(logits[:, parity.ids], expected, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(("search", "options"), SEARCHES, ids=["greedy", "beam"])
def test_translations_are_theirs(parity, search, options):
    target = parity.languages[1]
    expected = generate(parity.theirs, parity.tokenizer, lines(), target, **options)
    found = [
        [token for token in best.tokens if token != "</s>"]
        for (best,) in parity.translator.nbest(lines(), 1, decoding=search)
    ]
    assert found == [parity.named(ids) for ids in expected]
    assert len({tuple(tokens) for tokens in found}) > 20


def test_given_translations_have_their_scores(parity):
    for source, target in zip(SOURCES, TARGETS, strict=True):
        (pair,) = parity.translator.score([source], [target])
        read = parity.tokenizer([source], return_tensors="pt")
        written = parity.tokenizer(text_target=target)["input_ids"]
        shown = torch.tensor([[2, *written[:-1]]])
        with torch.no_grad():
            logits = parity.theirs(**read, decoder_input_ids=shown).logits[0]
        names = enumerate(parity.ours.tokenizers.target.vocabulary)
        logits[:, [i for i, x in names if x in ("<s>", "<pad>", "<unk>", "<mask>")]] = -torch.inf
        expected = logits.log_softmax(-1)[range(len(written)), written].tolist()
        # The language is given.
        assert pair.token_log_probs == pytest.approx(expected[1:], abs=1e-4)


def test_alignments_count_the_words_of_a_translation_without_its_language(parity):
    search = BeamConfig(beam_size=3, max_length=9)
    for (best,) in parity.translator.nbest(lines()[:20], 1, decoding=search, aligned=True):
        assert best.words == tuple(best.text.split())
        assert {word for _, word in best.alignments} <= {*range(len(best.words))}


def test_without_whitespace_the_language_of_a_translation_is_linked_to_nothing(parity):
    languages = parity.translator.direction.targets
    into = parity.translator.into(next(x for x in languages if x.startswith(("zh", "ja"))))
    search = BeamConfig(beam_size=3, max_length=9)
    for (best,) in into.nbest(lines()[:20], 1, decoding=search, aligned=True):
        # Tokens count, of which the language is the first and has no text.
        assert len(best.words) == len(best.tokens)
        assert {word for _, word in best.alignments} == {*range(1, len(best.words))}


def test_an_empty_line_has_the_empty_translation(parity):
    (pair,) = parity.translator.score([""], [""])
    assert (pair.tokens, pair.token_log_probs) == (("</s>",), (0.0,))


def test_the_token_of_a_language_has_a_learned_position_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    save_m2m(tmp_path / "mbart", "mbart")
    ours = read_m2m(tmp_path / "mbart")
    most = ours.config.model.max_length - 2
    line, search = " ".join(TARGETS) * 9, GreedyConfig(max_length=3)
    for limit in (most, most + 1):
        limited = Translator.from_model(
            ours.model, ours.tokenizers, ours.config, torch.device("cpu"), max_source_length=limit
        )
        if limit == most:
            assert limited.translate([line], decoding=search) != [""]
            continue
        with pytest.raises(UsageError) as caught:
            limited.translate([line], decoding=search)
        assert str(caught.value) == (
            f"`max_source_length`: must be at most {most}, since each line begins with the token "
            f"of its language ({limit}); lower it"
        )


def test_a_step_of_training_is_theirs(parity, tmp_path):
    """The batch is the one that a training makes of a text, language tokens included."""
    for side, rows in (("source", SOURCES), ("target", TARGETS)):
        (tmp_path / side).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    files = {side: tmp_path / side for side in ("source", "target")}
    config, tokenizers = parity.ours.config, parity.ours.tokenizers
    data = replace(config.data, train=(TrainingText(**files),), valid=ParallelText(**files))
    store, _ = training_store(data, tokenizers)
    assert store.target_lengths.tolist() == [len(ids) for ids in targets_of(parity)]
    examples = store.examples(torch.arange(len(SOURCES)).numpy())
    batch = collate(examples, tokenizers.start_id("encoder_decoder"))
    ours = read_m2m(parity.folder).model
    ours.freeze(config.training.freeze)
    states = ours.hidden_states(
        batch.source, batch.source_mask, batch.target_in, batch.target_positions
    )
    loss = smoothed_nll_sum(states, ours.output, batch.targets, 0.0)[0] / batch.num_target_tokens
    read = parity.tokenizer(SOURCES, text_target=TARGETS, padding=True, return_tensors="pt")
    labels = read["labels"].masked_fill(read["labels"] == 1, -100)
    shown = torch.cat((torch.full((len(SOURCES), 1), 2), read["labels"][:, :-1]), dim=1)
    theirs = type(parity.theirs).from_pretrained(parity.folder)
    expected = theirs(
        input_ids=read["input_ids"],
        attention_mask=read["attention_mask"],
        decoder_input_ids=shown,
        labels=labels,
    ).loss
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for part, model in ((loss, ours), (expected, theirs)):
        part.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    named = dict(ours.named_parameters(remove_duplicate=False))
    names = m2m_names(parity.ours.config.model)
    changed = to_theirs(named, names, (parity.ids, parity.ids))
    state = theirs.state_dict()
    for name, weight in changed.items():
        torch.testing.assert_close(weight.detach(), state[name], rtol=1e-4, atol=2e-6, msg=name)


def targets_of(parity: Parity) -> list[list[int]]:
    """Their ids of the targets, without EOS."""
    return [ids[:-1] for ids in parity.tokenizer(text_target=TARGETS)["input_ids"]]


def test_a_model_goes_back_unchanged(parity, tmp_path, monkeypatch, capsys):
    back = tmp_path / "back"
    M2MFormat().save(parity.ours, back)
    before, after = (load_file(x / "model.safetensors") for x in (parity.folder, back))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    model, report = AutoModelForSeq2SeqLM.from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    tokenizer = tokenizer_of(back, parity.name)
    assert parity.tokenizer.get_vocab().items() <= tokenizer.get_vocab().items()
    both = [
        generate(each.eval(), tokenizer, WORDS, parity.languages[1], num_beams=1)
        for each in (model, parity.theirs)
    ]
    assert both[0] == both[1]
    again = read_m2m(back)
    assert again.tokenizers.fingerprint == parity.ours.tokenizers.fingerprint
    assert again.config.model == parity.ours.config.model
    monkeypatch.chdir(back)
    exec(M2MFormat().example(parity.ours, SOURCES[0]), {})
    search = GreedyConfig(max_length=parity.ours.config.decoding.max_length)
    (expected,) = parity.translator.translate(SOURCES[:1], decoding=search)
    assert capsys.readouterr().out.strip() == expected


def test_ctranslate2_translates_alike(parity, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    ours, form = parity.ours, CTranslate2Format()
    valid = ours.config.data.valid
    first_ids = ours.tokenizers.first_ids(ours.config.data, valid)
    text = CheckText.of(
        lines(60), ours.tokenizers, name="lines", max_length=60, first_ids=first_ids
    )
    form.save(ours, tmp_path / "ct2")
    short = replace(ours.config, decoding=BeamConfig(max_length=LONGEST))
    for result in check_export(replace(ours, config=short), form, tmp_path / "ct2", text):
        assert result.num_equal >= 58
    monkeypatch.chdir(tmp_path / "ct2")
    exec(form.example(ours, SOURCES[0]), {})
    beam = BeamConfig(max_length=ours.config.decoding.max_length)
    (expected,) = parity.translator.translate(SOURCES[:1], decoding=beam)
    assert capsys.readouterr().out.strip() == expected


def test_other_languages_are_named_when_lines_are_translated(parity):
    other = FAMILIES[parity.name].languages[::-1]
    turned = parity.translator.into(other[1], other[0])
    parity.tokenizer.src_lang = other[0]
    expected = generate(parity.theirs, parity.tokenizer, WORDS, other[1], num_beams=1)
    parity.tokenizer.src_lang = other[1]
    search = GreedyConfig(max_length=LONGEST)
    found = [best.tokens for (best,) in turned.nbest(WORDS, 1, decoding=search)]
    assert [[x for x in row if x != "</s>"] for row in found] == list(map(parity.named, expected))


def test_a_chosen_source_language_stays_where_another_target_is_named(parity):
    source, target = FAMILIES[parity.name].languages[::-1]
    languages = parity.translator.direction.targets
    (other, *_) = [each for each in languages if each not in (source, target)]
    chosen = parity.translator.into(None, source)
    search = GreedyConfig(max_length=LONGEST)
    expected = parity.translator.into(other, source).translate(WORDS, decoding=search)
    assert chosen.translate(WORDS, to=other, decoding=search) == expected
    # But it is no source of itself.
    assert chosen.into(source).direction.languages[0] != source


def test_shards_are_the_same_model_and_a_run_is_what_was_read(folder, tmp_path):
    whole = read_m2m(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="5KB")
    assert not (folder / "model.safetensors").exists()
    import_run(folder, RunDirectory(tmp_path / "run"), target_language="zho_Hans")
    loaded = load_trained_model(RunDirectory(tmp_path / "run"))
    assert loaded.config.data.target_language == "zho_Hans"
    assert loaded.tokenizers.fingerprint == whole.tokenizers.fingerprint
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, loaded.model.get_parameter(name)), name


def test_a_language_that_the_model_lacks_is_named_with_its_option(folder, tmp_path, tformer):
    import_run(folder, RunDirectory(tmp_path / "imported"))
    for option, side in (("--from", "source"), ("--to", "target")):
        for command in ("translate", "distill"):
            words = ["A dog"] if command == "translate" else ["-i", __file__, "-o", tmp_path / "x"]
            result = tformer(command, tmp_path / "imported", *words, option, "xxx")
            assert result.exit_code == 2
            message = f"{option}: is no {side} language of the model (xxx); choose from: "
            assert result.stderr.splitlines()[-1].startswith(message)


def test_a_text_in_a_language_that_the_model_lacks_is_named(parity):
    data, tokenizers = parity.ours.config.data, parity.ours.tokenizers
    english = replace(data.train[0], source_language="english")
    data = replace(data, train=(*data.train, english))
    known = ", ".join(tokenizers.source.languages)
    what = f"is in a language that the vocabulary lacks (english); choose from: {known}"
    with pytest.raises(TformerError) as caught:
        tokenizers.first_ids(data, english)
    assert str(caught.value) == f"data.train.1: {what}"


def refused(folder: Path, **options: str) -> list[str]:
    with pytest.raises(TformerError) as caught:
        import_run(folder, RunDirectory(folder.parent / "run"), **options)
    assert not (folder.parent / "run").exists()
    return [str(problem) for problem in caught.value.problems]


def test_a_pickle_is_refused_with_the_way_to_convert_it(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    saving = f'AutoModelForSeq2SeqLM.from_pretrained("{folder}").save_pretrained("{folder}")'
    assert refused(folder) == [
        f"{folder}/pytorch_model.bin: is a pickle, which can run any program; only "
        "model.safetensors is read; if you trust it, convert it: "
        f"python -c 'from transformers import AutoModelForSeq2SeqLM; {saving}'"
    ]


def test_settings_of_another_network_come_at_once(folder):
    change_json(
        folder / "config.json",
        scale_embedding=False,
        decoder_start_token_id=250004,
        activation_function="tanh",
    )
    file = folder / "config.json"
    assert refused(folder) == [
        f"{file}: scale_embedding: must be true (false)",
        f"{file}: decoder_start_token_id: must be 2, as in M2M-100, NLLB and mBART-50 (250004)",
        f"{file}: activation_function: must be one of relu, gelu, silu, swish (tanh)",
    ]


def test_sizes_are_those_of_the_weights_before_anything_is_built(folder, monkeypatch):
    read = "tformer_cli.export.m2m"
    settings = json.loads((folder / "config.json").read_text())
    with monkeypatch.context() as patch:
        patch.setattr(f"{read}.read_languages", partial(pytest.fail, "a vocabulary is read"))
        change_json(folder / "config.json", vocab_size=10**12)
        assert refused(folder) == [
            f"{folder}/model.safetensors: differs in 1 of its weights from the model that "
            "config.json describes (model.shared.weight); fetch the folder again"
        ]
    monkeypatch.setattr(f"{read}.weight_names", unnamed)
    change_json(folder / "config.json", **settings | {"encoder_layers": 5 * 10**8})
    (message,) = refused(folder)
    assert message.startswith(f"{folder}/config.json: describes more layers than the ")


def test_an_output_bias_of_another_size_is_refused(folder):
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"final_logits_bias": torch.zeros(1, 3)}, file)
    assert refused(folder) == [
        f"{file}: differs in 1 of its weights from the model that config.json describes "
        "(final_logits_bias); fetch the folder again"
    ]


DAMAGED = [
    ("vocab.json", {"<unk>": "3"}, ": is not a vocabulary (an id that is no whole number); "),
    ("vocab.json", {"<unk>": None}, ": is not a vocabulary (an id that is no whole number); "),
    ("vocab.json", {"\ud800": 99}, ": is not a vocabulary (half a character of Unicode); "),
    ("tokenizer_config.json", {"src_lang": ["en"]}, ': src_lang: must be text (["en"])'),
    (
        "tokenizer_config.json",
        {"additional_special_tokens": [{"lstrip": False}]},
        ': lists a special token that is no text ({"lstrip": false}); ',
    ),
    (
        "special_tokens_map.json",
        {"additional_special_tokens": [3]},
        ": lists a special token that is no text (3); ",
    ),
    (
        "tokenizer_config.json",
        {"added_tokens_decoder": [1]},
        ": has no added tokens with their ids (AttributeError",
    ),
    (
        "tokenizer.json",
        {"added_tokens": [{"id": float("inf"), "content": "x"}]},
        ": has no added tokens with their ids (OverflowError",
    ),
]


@pytest.mark.parametrize(("name", "changes", "message"), DAMAGED)
def test_damaged_files_are_named(tmp_path, monkeypatch, name, changes, message):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    folder = tmp_path / "m2m"
    save_m2m(folder, "m2m")
    file = folder / name
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | changes))
    (found,) = refused(folder)
    assert found.startswith(f"{file}{message}")


def test_files_of_several_models_are_named(folder):
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    more = {str(vocabulary + 2): {"content": "more"}}
    change_json(folder / "tokenizer_config.json", added_tokens_decoder=more)
    assert refused(folder) == [
        f"{folder}: has no vocabulary of the {vocabulary} tokens that config.json has "
        f"({vocabulary + 3} tokens); fetch the folder again"
    ]
    change_json(folder / "tokenizer_config.json", added_tokens_decoder={})
    change_json(folder / "config.json", encoder_layers=1)
    (message,) = refused(folder)
    assert "differs in 16 of its weights from the model that config.json describes" in message
    (folder / "sentencepiece.bpe.model").unlink()
    (message,) = refused(folder)
    assert message.startswith(f"{folder}/sentencepiece.bpe.model: no such file; ")


def test_a_language_without_token_is_named(folder):
    assert refused(folder, source_language="fra_Latn") == [
        f"`source_language`: has no such language, for the usual one of {folder} (fra_Latn); "
        "choose from: eng_Latn, deu_Latn, zho_Hans"
    ]


@pytest.mark.parametrize("form", [ArgosFormat, OnnxFormat])
def test_formats_without_language_tokens_refuse(form, folder, tmp_path):
    with pytest.raises(TformerError, match="has languages as tokens, with which no translation"):
        form().save(read_m2m(folder), tmp_path / "x")


def test_a_trained_output_bias_does_not_go_back(folder, tmp_path):
    model = read_m2m(folder)
    model.model.output.bias.data += 1
    with pytest.raises(TformerError, match="M2M-100 and NLLB have no output bias"):
        M2MFormat().save(model, tmp_path / "x")


def test_a_run_is_trained_further_scored_and_exported(folder, tmp_path, tformer, monkeypatch):
    """All by commands, into another direction than the usual one of the folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "valid"):
        for side, rows in (("deu_Latn", TARGETS), ("eng_Latn", SOURCES)):
            Path(f"{name}.{side}").write_text("\n".join(rows * 8) + "\n", encoding="utf-8")

    def ran(*words: object) -> str:
        result = tformer(*map(str, words))
        assert result.exit_code == 0, result.stderr
        return str(result.stdout)

    ran("import", folder, "run", "--source-language", "deu_Latn", "--target-language", "eng_Latn")
    languages = "--from", "eng_Latn", "--to", "deu_Latn"
    both = {ran("translate", "run", SOURCES[0], *more) for more in ((), languages)}
    assert len(both) == 2
    settings = [
        *("--set", "data.root=.", "--set", "training.max_steps=3"),
        *("--set", "training.validate_every=3", "--set", "training.schedule.warmup_steps=1"),
    ]
    ran("train", "run/config.yaml", "--init-from", "run", "--run", "more", *settings)
    pair = "--source", "valid.deu_Latn", "--target", "valid.eng_Latn"
    before, after = (sum(map(float, ran("score", run, *pair).split())) for run in ("run", "more"))
    assert after > before
    export = partial(ran, "export", "more", "--check-lines", "8")
    export("back", "--format", "m2m")
    export("ct2", "--format", "ctranslate2")
    assert read_m2m(tmp_path / "back").config.data.source_language == "deu_Latn"
    english = ran("translate", "more", "--backend", "native", TARGETS[0])
    assert ran("translate", "ct2", TARGETS[0]) == english
