"""Defects and repairs of translations: by an engine with given answers, and by a random model."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.errors import UsageError
from tformer_cli.model.build import build_model
from tformer_cli.search.engine import EMPTY, Engine, Hypothesis, Job, OnDone, OnWarning
from tformer_cli.text.spans import PATTERNS, KeptSpans
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.translate.translator import Translator

NOWHERE = Path("nowhere")
ALL = KeptSpans.of(list(PATTERNS))
BEAM = BeamConfig(beam_size=2)
LETTERS = "abcdefghijklmnopqrstuvwxyzBH .,0123456789{}%<>/"


def config_of(search, **sections) -> Config:
    data = DataConfig(
        train=(TrainingText(source=NOWHERE, target=NOWHERE),),
        valid=ParallelText(source=NOWHERE, target=NOWHERE),
        source_language="en",
        target_language="de",
        filters=FilterConfig(max_length=60),
    )
    return Config(data=data, decoding=search, **sections)


class Answers(Engine):
    """Gives each source its answers in turn, without those that lack what is required."""

    def __init__(self, tokenizers: Tokenizers, answers: dict[str, Sequence[str]]) -> None:
        self.tokenizers = tokenizers
        self.answers = answers
        self.jobs: list[Job] = []

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        self.jobs.append(job)
        return [self.best(request, job) for request in job.requests]

    def best(self, request, job) -> list[Hypothesis]:
        decode = self.tokenizers.target.decode
        required = [decode(phrase) for phrase in request.required]
        texts = [
            text
            for text in self.answers[self.tokenizers.source.decode(request.source[:-1])]
            if all(phrase in text for phrase in required)
            and not (job.config.no_repeat_ngram_size and "Hund Hund" in text)
        ]
        ids = [tuple(self.tokenizers.target.encode(text)) for text in texts]
        hypotheses = [Hypothesis(each, -rank, -rank, True) for rank, each in enumerate(ids)]
        return [*hypotheses, *[EMPTY] * job.nbest][: job.nbest]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return build_tokenizers(CharConfig(), lambda: [(LETTERS, LETTERS)] * 3, seed=1)


def best_of(tokenizers, answers, search=BEAM, **options):
    engine = Answers(tokenizers, answers)
    translator = Translator(engine, tokenizers, config_of(search))
    (best,) = (best for (best,) in translator.nbest([next(iter(answers))], 1, **options))
    return best, engine


def test_defects_are_named_and_nothing_is_translated_again(tokenizers):
    best, engine = best_of(
        tokenizers, {"a dog {x}": ["ein Hund Hund Hund", "ein Hund {x}"]}, inspected=True
    )
    assert best.text == "ein Hund Hund Hund"
    assert [(each.kind, each.words) for each in best.defects] == [
        ("loops", ("hund",)),
        ("lost placeholders", ("{x}",)),
    ]
    assert (best.repair, len(engine.jobs)) == (None, 1)


@pytest.mark.parametrize(
    ("answers", "repair", "text"),
    [
        ({"a dog": ["ein Hund"]}, None, "ein Hund"),
        ({"a dog": ["ein Hund Hund Hund", "ein Hund"]}, "n-best", "ein Hund"),
        (
            {"a dog": ["Hund Hund Hund", "der Hund Hund Hund", "ein Hund"]},
            "no repetition",
            "ein Hund",
        ),
        ({"in 2008": ["im Jahr", "im Jahr 1", "in 2008"]}, "constraints", "in 2008"),
        ({"{x} dog": ["xx", "x"], "dog": ["Hund"]}, "splice", "{x} Hund"),
        ({"{x} in 2008": ["xx", "x"], "in 2008": ["in", "i", "im 2008"]}, "splice", "{x} im 2008"),
    ],
)
@pytest.mark.parametrize("search", [BeamConfig(beam_size=2), GreedyConfig()])
def test_a_defect_is_repaired_by_the_first_attempt_that_helps(
    tokenizers, answers, repair, text, search, monkeypatch
):
    monkeypatch.setattr("tformer_cli.translate.options.RETRY_BEAM_SIZE", 2)
    best, engine = best_of(tokenizers, answers, search, repair=True)
    assert (best.repair, best.text, best.defects) == (repair, text, ())
    assert (len(engine.jobs) == 1) == (repair is None)


def test_a_translation_stays_where_no_attempt_helps(tokenizers):
    best, engine = best_of(
        tokenizers, {"a dog": ["Hund Hund Hund", "Hund Hund Hund 5 5 5"]}, repair=True
    )
    assert (best.text, best.repair, len(engine.jobs)) == ("Hund Hund Hund", None, 3)
    assert [each.kind for each in best.defects] == ["loops"]


def test_only_spans_to_keep_are_repaired_without_repair(tokenizers):
    answers = {"a dog 3 <b>": ["Hund Hund Hund Hund Hund Hund"]}
    best, _ = best_of(tokenizers, answers, keep=["numbers"])
    assert best.text.replace(" 3", "") == " ".join(["Hund"] * 6)
    assert [each.kind for each in best.defects] == ["loops", "lost placeholders"]


def test_spans_that_cannot_be_kept_are_named(tokenizers):
    best, _ = best_of(tokenizers, {"a. 5": ["ein"]}, keep=[r"(?<=a\. )\d"])
    assert (best.text, best.repair) == ("ein", None)
    assert [(each.kind, each.words) for each in best.defects] == [(r"lost (?<=a\. )\d", ("5",))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repair": True}, r"`repair`: is for one translation of each line \(2\)"),
        ({"keep": ["numbers"]}, r"`keep`: is for one translation of each line \(2\)"),
        ({"keep": "numbers"}, "`keep`: must be a list of texts"),
    ],
)
def test_wrong_options_are_refused(tokenizers, options, message):
    translator = Translator(
        Answers(tokenizers, {"a": ["b"]}), tokenizers, config_of(BeamConfig(beam_size=2))
    )
    with pytest.raises(UsageError, match=message):
        list(translator.nbest(["a"], 2, **options))


def fuzzed_line(chooser: random.Random) -> str:
    """Words with up to four spans at any position, with and without spaces around them."""
    name = "".join(chooser.choices("abcxyz", k=chooser.randint(1, 5)))
    number = chooser.choice(["{}", "{}.5", "1,{:03}", "{}:30"]).format(chooser.randint(0, 999))
    kinds = [f"{{{name}}}", f"${{{name}}}", "%s", "%.2f", f"%({name})d", f"<{name}>", f"</{name}>"]
    kinds += [number, f"https://{name}.org/{name}?a={number}", f"{name}@{name}.org"]
    words = chooser.choices(["dog", "the", "of", "Haus,", "a.", "{", "<", "%", "@"], k=6)
    for _ in range(chooser.randint(1, 4)):
        span = chooser.choice(kinds) * chooser.choice([1, 1, 1, 2])
        words.insert(chooser.randint(0, len(words)), span)
    return "".join(word + chooser.choice([" ", " ", ""]) for word in words)


@pytest.mark.parametrize(
    ("num_lines", "target"),
    [
        (150, "de"),
        (150, "zh"),
        pytest.param(10_000, "de", marks=pytest.mark.slow),
        pytest.param(10_000, "zh", marks=pytest.mark.slow),
    ],
)
def test_all_spans_of_fuzzed_lines_are_in_the_translations_of_a_random_model(num_lines, target):
    chooser = random.Random(num_lines)
    lines = [fuzzed_line(chooser) for _ in range(num_lines)]
    text = lines[:150] * 2
    tokenizer = SubwordConfig(vocab_size=400, byte_fallback=True)
    tokenizers = build_tokenizers(tokenizer, lambda: zip(text, text, strict=True), seed=1)
    model = EncoderDecoderConfig(dim=16, num_heads=2, feedforward_dim=16)
    model = replace(model, num_encoder_layers=1, num_decoder_layers=1)
    search = BeamConfig(beam_size=2, max_length=12)
    config = config_of(search, model=model, tokenizer=tokenizer)
    config = replace(config, data=replace(config.data, target_language=target))
    size = tokenizers.source.size
    network = build_model(model, source_size=size, target_size=size, seed=1)
    translator = Translator.from_model(network, tokenizers, config, torch.device("cpu"))
    translations = translator.translate(lines, keep=list(PATTERNS))
    assert len(translations) == num_lines
    for line, translation in zip(lines, translations, strict=True):
        expected, present = (
            Counter((span.kind, span.text) for span in ALL.find(each))
            for each in (line, translation)
        )
        for span, count in expected.items():
            assert span[1] in translation
            assert present[span] == count or (span[0] == "numbers" and present[span] > count), line
    plain = translator.translate(lines)
    unchanged = [number for number, line in enumerate(lines) if ALL.is_kept(line, plain[number])]
    assert [plain[number] for number in unchanged] == [translations[number] for number in unchanged]
