"""Models that CTranslate2's converters wrote: what they translate equals what their makers' do."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from opus import CODE, LONGEST, SOURCES, change_json, greedy, save_opus, tokenizer_of, write_json
from transformers import MarianMTModel, MarianTokenizer

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.errors import TformerError
from tformer_cli.export.converted import read_converted
from tformer_cli.export.ctranslate2_file import summarize_weights
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import find_model
from tformer_cli.translate.options import SearchOptions
from tformer_cli.translate.synthesis import synthesize
from tformer_cli.translate.translator import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

LINES = [*SOURCES, f"{CODE}a cat", "", "xyz 漢字 sat", "hats  hats ", "the mat", "▁a"]
COPIED = ["source.spm", "target.spm", "tokenizer_config.json"]
# Of `MarianConfig` in tests/opus.py.
POSITIONS = 64


class Original:
    """A Marian model of transformers, and a folder that CTranslate2's converter made of it."""

    def __init__(self, folder: Path) -> None:
        # By these weights all lines have different translations, of which some end.
        torch.manual_seed(42)
        self.model: MarianMTModel = save_opus(folder / "opus")
        # As trained models have it: a translation begins with zeros, and has no unknown token.
        self.model.model.shared.weight.data[-1] = 0
        self.model.final_logits_bias[0, 1] = -1e4
        self.model.save_pretrained(folder / "opus")
        self.tokenizer: MarianTokenizer = tokenizer_of(folder / "opus")
        self.folder = folder / "converted"
        converter = ctranslate2.converters.TransformersConverter(
            str(folder / "opus"), copy_files=COPIED
        )
        converter.convert(str(self.folder))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        yield Original(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original, tmp_path) -> Path:
    return shutil.copytree(original.folder, tmp_path / "converted")


def directly(original: Original, line: str, count: int, end: tuple[str, ...]) -> list[str]:
    """Translate by CTranslate2 and the tokenizer of transformers, without any of our code."""
    tokens = original.tokenizer.convert_ids_to_tokens(original.tokenizer.encode(line))
    assert tokens.pop() == "</s>"
    (result,) = ctranslate2.Translator(str(original.folder)).translate_batch(
        [[*tokens, *end]], beam_size=count, num_hypotheses=count, max_decoding_length=LONGEST
    )
    return [
        original.tokenizer.decode(
            original.tokenizer.convert_tokens_to_ids(tokens), skip_special_tokens=True
        )
        for tokens in result.hypotheses
    ]


def test_translations_are_those_of_the_model_that_was_converted(original):
    lines = [line for line in LINES if line]
    expected = greedy(original.model, original.tokenizer, lines)
    assert len(set(expected)) == len(lines)
    decoding = GreedyConfig(max_length=LONGEST)
    assert Translator.load(original.folder).translate(lines, decoding=decoding) == expected


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({}, ("</s>",)),
        ({"decoder_start_token": "<s>"}, ()),
        ({"decoder_start_token": "<s>", "add_source_eos": True}, ("</s>",)),
        ({"add_source_eos": True}, ("</s>",)),
    ],
)
def test_sources_end_as_the_model_was_trained_with_them(original, folder, settings, end):
    change_json(folder / "config.json", **settings)
    search = BeamConfig(beam_size=2, max_length=LONGEST, length_penalty=1)
    translated = list(Translator.load(folder).nbest(LINES, 2, decoding=search))
    for line, translations in zip(LINES, translated, strict=True):
        texts = directly(original, line, 2, end) if line else ["", ""]
        assert [each.text for each in translations] == texts


def test_the_end_of_a_source_matters(original):
    pairs = [directly(original, line, 2, ()) for line in SOURCES]
    assert pairs != [directly(original, line, 2, ("</s>",)) for line in SOURCES]


def with_one_sentencepiece_model(folder: Path) -> None:
    (folder / "source.spm").rename(folder / "sentencepiece.model")
    (folder / "target.spm").unlink()


def with_two_vocabularies(folder: Path) -> None:
    shared = folder / "shared_vocabulary.json"
    shutil.copy(shared, folder / "source_vocabulary.json")
    shared.rename(folder / "target_vocabulary.json")


def with_text_vocabulary(folder: Path) -> None:
    shared = folder / "shared_vocabulary.json"
    tokens = json.loads(shared.read_text())
    shared.with_suffix(".txt").write_text("".join(f"{token}\n" for token in tokens))
    shared.unlink()


@pytest.mark.parametrize("change", [with_two_vocabularies, with_text_vocabulary])
def test_vocabularies_may_have_other_files(original, folder, change):
    change(folder)
    expected = Translator.load(original.folder).translate(LINES)
    assert Translator.load(folder).translate(LINES) == expected


def test_one_sentencepiece_model_is_of_both_languages(folder):
    model = (folder / "source.spm").read_bytes()
    with_one_sentencepiece_model(folder)
    tokenizers = read_converted(folder).tokenizers
    assert tokenizers.source.model == tokenizers.target.model == model


def test_languages_and_search_are_those_of_the_model(folder):
    # CTranslate2 has no such limit as ours.
    search = {"num_beams": 4, "max_length": 33, "no_repeat_ngram_size": 3}
    write_json(folder / "generation_config.json", search)
    files = read_converted(folder)
    languages = files.config.data.source_language, files.config.data.target_language
    assert languages == ("en", "de")
    assert files.config.decoding == BeamConfig(beam_size=4, max_length=32)
    (folder / "tokenizer_config.json").unlink()
    (folder / "generation_config.json").unlink()
    data = read_converted(folder).config.data
    assert (data.source_language, data.target_language) == ("source", "target")


def test_no_line_is_longer_than_the_positions_of_the_model(folder):
    translator = Translator.load(folder)
    assert translator.config.decoding.max_length == POSITIONS
    line = "a cat sat on the mat. " * 30
    warnings: list[Any] = []
    (translation,) = translator.translate([line], on_warning=warnings.append)
    assert translation
    assert str(warnings[0]).startswith(f"line 1: is longer than {POSITIONS - 1} tokens")
    with pytest.raises(TformerError, match=f"decoding.max_length: must be at most the {POSITIONS}"):
        translator.translate(["a"], decoding=GreedyConfig(max_length=POSITIONS + 1))
    changed = translator.translate(LINES, decoding=SearchOptions(settings=["decoding.patience=1"]))
    assert changed == translator.translate(LINES)


@pytest.mark.parametrize("quantization", ["int8", "float16", "bfloat16", "float32"])
def test_weights_say_their_positions_and_number_format(original, tmp_path, quantization):
    opus = original.folder.with_name("opus")
    converter = ctranslate2.converters.TransformersConverter(str(opus))
    converter.convert(str(tmp_path / "model"), quantization=quantization)
    assert summarize_weights(tmp_path / "model" / "model.bin") == (POSITIONS, quantization)


def test_of_cut_weights_ctranslate2_says_that_they_are(folder):
    weights = folder / "model.bin"
    content = weights.read_bytes()
    for size in (0, 3, 20, 100, len(content) // 2):
        weights.write_bytes(content[:size])
        with pytest.raises(TformerError, match="cannot be loaded by CTranslate2"):
            Translator.load(folder)


def test_it_teaches_beside_a_run(original, folder, toy_run, tmp_path):
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES))
    teachers = [str(folder), str(toy_run)]
    result = synthesize(teachers, tmp_path / "text", tmp_path / "pairs", real="source")
    rows = list(map(json.loads, result.record.read_text().splitlines()))
    texts = Translator.load(folder).translate(LINES)
    expected = [(i, text) for i, text in enumerate(texts, start=1) if text.strip()]
    own = [row for row in rows if row["teacher"] == str(folder)]
    assert [(row["line"], row["target"]) for row in own] == expected
    assert result.num_pairs[str(toy_run)] > 0


def test_the_command_line_translates_and_distills_by_it(folder, tformer, tmp_path):
    (tmp_path / "text").write_text("a cat\n\ndogs and cats\n")
    words = (folder, "-i", tmp_path / "text", "--beam", 1)
    translated = tformer("translate", *words)
    assert (translated.exit_code, translated.stderr) == (0, "")
    result = tformer("distill", *words, "-o", tmp_path / "x")
    assert result.stdout.startswith(f"{folder}: 2 pairs of 3 lines\n")
    lines = [line for line in translated.stdout.splitlines() if line]
    assert (tmp_path / "x.target").read_text().splitlines() == lines


def test_its_fingerprint_is_of_weights_and_tokenizers(original, folder):
    before = read_converted(folder).fingerprint
    assert before == read_converted(original.folder).fingerprint
    shutil.copy(folder / "source.spm", folder / "target.spm")
    assert read_converted(folder).fingerprint != before


def refused(folder: Path) -> str:
    with pytest.raises(TformerError) as raised:
        Translator.load(folder)
    return str(raised.value).replace(str(folder), "FOLDER")


def test_missing_files_are_named(folder):
    (folder / "target.spm").unlink()
    assert refused(folder) == (
        "FOLDER: has no tokenizer: none of source.spm and target.spm, sentencepiece.model, "
        "spiece.model; "
        "copy it from the model that was converted"
    )
    (folder / "shared_vocabulary.json").rename(folder / "source_vocabulary.json")
    assert refused(folder) == (
        "FOLDER: has no vocabulary: none of shared_vocabulary.json, source_vocabulary.json and "
        "target_vocabulary.json, shared_vocabulary.txt, source_vocabulary.txt and "
        "target_vocabulary.txt; copy it from the model that was converted"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("shared_vocabulary.json", "{", "shared_vocabulary.json: is not a vocabulary ("),
        ("shared_vocabulary.json", '["a", 1]', "shared_vocabulary.json: is not a vocabulary (some"),
        ("shared_vocabulary.json", '["\\ud800"]', "shared_vocabulary.json: is not a vocabulary ("),
        ("source.spm", "", "source.spm: is not a sentencepiece model (no bytes)"),
        ("config.json", "[]", "config.json: must be a JSON object (list)"),
        ("config.json", '{"eos_token": "!"}', "config.json: eos_token: must be </s> (!)"),
        ("tokenizer_config.json", '{"source_lang": 3}', "tokenizer_config.json: source_lang: must"),
    ],
)
def test_damaged_files_are_named(folder, name, content, message):
    (folder / name).write_text(content)
    assert refused(folder).startswith(f"FOLDER/{message}")


@pytest.mark.parametrize("change", [lambda tokens: tokens[:-1], lambda tokens: [*tokens, "new"]])
def test_a_vocabulary_of_another_size_is_refused(folder, change):
    # CTranslate2 loads it, and raises ValueError at the first token without a name.
    file = folder / "shared_vocabulary.json"
    tokens = json.loads(file.read_text())
    write_json(file, change(tokens))
    message = refused(folder)
    assert message == (
        "FOLDER/model.bin: encoder/embeddings_0/weight: must have a row for each of the "
        f"{len(change(tokens))} tokens of the vocabulary (({len(tokens)}, 12)); "
        "convert or export the model again"
    )


def test_what_it_does_not_have_is_refused(folder, tformer):
    with pytest.raises(TformerError) as raised:
        Translator.load(folder, checkpoint="400")
    assert str(raised.value) == (
        f"{folder}: has no checkpoints: it was written for CTranslate2 (400); "
        "leave `checkpoint` out"
    )
    with pytest.raises(TformerError) as raised:
        find_model(RunDirectory(folder))
    message = (
        f"{folder}: was written for CTranslate2 by another program; "
        "name a run, which `tformer import` makes of the folder; "
        "only translate, distill and back-translate take it as it is"
    )
    assert str(raised.value) == message
    result = tformer("eval", folder)
    assert (result.exit_code, result.stderr) == (2, f"{message}\n")
