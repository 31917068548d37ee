"""Limits and rules of the configuration tree."""

import dataclasses
import math
from pathlib import Path

import pytest

from tformer_cli.config.schema.config import ChrfConfig, Config, EvaluationConfig
from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
    search_in_words,
)
from tformer_cli.config.schema.fields import Bounds, check
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    MaskedEncoderConfig,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
    YarnScaling,
)
from tformer_cli.config.schema.text import (
    PairsFile,
    ParallelText,
    PlainText,
    PlainTrainingText,
    TrainingText,
)
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig, WordConfig
from tformer_cli.config.schema.training import (
    AdamWConfig,
    BpeDropoutConfig,
    SourceNoiseConfig,
    TrainingConfig,
    UnigramSamplingConfig,
)
from tformer_cli.errors import Problem

TEXT = ParallelText(source=Path("a"), target=Path("b"))
DATA = DataConfig(
    train=(TrainingText(source=Path("a"), target=Path("b")),), valid=TEXT, test={"x": TEXT}
)
CONFIG = Config(data=DATA)
PLAIN = PlainText(text=Path("a"))
MASKED = Config(
    data=DataConfig(train=(PlainTrainingText(text=Path("a")),), valid=PLAIN),
    model=MaskedEncoderConfig(),
    training=TrainingConfig(selection_metric="loss"),
)
NO_LENGTH = FilterConfig(max_length=0)
NO_RATIO = FilterConfig(max_ratio=0.5)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (ParallelText, ("source", "target")),
        (TrainingText, ("source", "target")),
        (PairsFile, ("pairs",)),
        (PlainText, ("text",)),
        (PlainTrainingText, ("text",)),
    ],
)
def test_texts_take_strings_for_paths(kind, keys):
    named = kind(**{key: f"{key}.en" for key in keys})
    assert named == kind(**{key: Path(f"{key}.en") for key in keys})
    assert [file.name for file in named.files.values()] == [f"{key}.en" for key in keys]


IDLE = "must be left out with model.kind masked_encoder, which does not translate"


def test_masked_encoder_has_its_own_rules() -> None:
    assert list(check(MASKED)) == []
    pair_alone = "must be a monolingual text with model.kind masked_encoder"
    for changes, complaint in (
        (
            {"data": dataclasses.replace(MASKED.data, valid=TEXT)},
            Problem("data.valid", pair_alone, "source and target", "write {text: FILE}"),
        ),
        (
            {"data": dataclasses.replace(MASKED.data, test={"x": TEXT})},
            Problem("data.test.x", pair_alone, "source and target", "remove it"),
        ),
        (
            {"data": dataclasses.replace(MASKED.data, filters=FilterConfig(max_ratio=2.5))},
            Problem(
                "data.filters.max_ratio",
                "must be null with model.kind masked_encoder, whose text is monolingual",
                "2.5",
            ),
        ),
        (
            {"data": dataclasses.replace(MASKED.data, filters=FilterConfig(max_copied=0.5))},
            Problem(
                "data.filters.max_copied",
                "must be null with model.kind masked_encoder, whose text is monolingual",
                "0.5",
            ),
        ),
        (
            {"tokenizer": CharConfig(shared=False)},
            Problem(
                "tokenizer.shared",
                "must be true with model.kind masked_encoder, whose text is monolingual",
                "false",
            ),
        ),
        (
            {"training": TrainingConfig()},
            Problem(
                "training.selection_metric",
                "must be loss with model.kind masked_encoder, which does not translate",
                "bleu",
            ),
        ),
        (
            {"training": dataclasses.replace(MASKED.training, sample_translations=5)},
            Problem("training.sample_translations", IDLE, "5"),
        ),
        (
            {"training": dataclasses.replace(MASKED.training, validation_decoding=BeamConfig())},
            Problem("training.validation_decoding", IDLE),
        ),
        ({"decoding": GreedyConfig()}, Problem("decoding", IDLE)),
        (
            {"evaluation": EvaluationConfig(chrf=ChrfConfig(word_order=2))},
            Problem("evaluation", IDLE),
        ),
    ):
        assert list(check(dataclasses.replace(MASKED, **changes))) == [complaint]


def test_masked_encoder_is_not_held_to_rules_of_translations() -> None:
    """Its searches do not run, and what it lower-cases nobody reads."""
    short = MaskedEncoderConfig(positions=LearnedPositions(max_length=257))
    lowercased = WordConfig(shared=True)
    assert list(check(dataclasses.replace(MASKED, model=short, tokenizer=lowercased))) == []


def test_a_model_that_translates_needs_translations() -> None:
    plain = PlainTrainingText(text=Path("a"))
    data = dataclasses.replace(DATA, train=(DATA.train[0], plain))
    assert list(check(dataclasses.replace(CONFIG, data=data))) == [
        Problem(
            "data.train.1",
            "must be a parallel text with model.kind encoder_decoder",
            "text",
            "write {source: FILE, target: FILE}",
        )
    ]


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "rule"),
    [
        (Bounds(ge=1), 1, 0, "must be at least 1"),
        (Bounds(le=1_000_000), 1_000_000, 1_000_001, "must be at most 1000000"),
        (Bounds(gt=0), 0.001, 0, "must be above 0"),
        (Bounds(lt=0.5), 0.499, 0.5, "must be below 0.5"),
    ],
)
def test_bounds_rule_names_the_bound_that_is_broken(
    bounds: Bounds, inside: float, outside: float, rule: str
) -> None:
    assert bounds.rule(inside) is None
    assert bounds.rule(outside) == rule


@pytest.mark.parametrize(
    "bounds",
    [Bounds(ge=1, le=9), Bounds(gt=0, lt=1), Bounds(ge=0, lt=1), Bounds(gt=1), Bounds(le=2)],
)
def test_ends_of_bounds_are_within_them(bounds: Bounds) -> None:
    least, greatest = bounds.ends
    assert bounds.rule(least) is None
    assert bounds.rule(greatest) is None
    for beyond in (math.nextafter(least, -math.inf), math.nextafter(greatest, math.inf)):
        assert math.isinf(beyond) or bounds.rule(beyond) is not None


@pytest.mark.parametrize("bounds", [Bounds(ge=0), Bounds(le=1), Bounds(gt=0), Bounds(lt=1)])
def test_what_is_no_number_is_within_no_bounds(bounds: Bounds) -> None:
    assert bounds.rule(math.nan) is not None


def test_check_finds_nothing_wrong_with_the_defaults() -> None:
    assert list(check(CONFIG)) == []


def test_check_looks_into_lists_and_names() -> None:
    heavy = dataclasses.replace(DATA.train[0], weight=0.0)
    data = dataclasses.replace(DATA, train=(DATA.train[0], heavy))
    assert list(check(data, "data")) == [
        Problem("data.train.1.weight", "must be at least 1e-06", "0.0")
    ]
    optimizer = AdamWConfig(betas=(0.9, 1.0), epsilon=1e-80)
    assert list(check(optimizer)) == [
        Problem("betas.1", "must be below 1", "1.0"),
        Problem("epsilon", "must be at least 1e-38", "1e-80"),
    ]


def test_check_asks_no_rule_of_numbers_that_are_out_of_their_limits() -> None:
    model = EncoderDecoderConfig(num_heads=0)
    assert list(check(model)) == [Problem("num_heads", "must be at least 1", "0")]
    assert list(check(dataclasses.replace(CONFIG, model=model))) == [
        Problem("model.num_heads", "must be at least 1", "0")
    ]


def test_numbers_out_of_bounds_hide_no_rule_between_other_keys() -> None:
    training = TrainingConfig(clip_norm=-1.0, max_steps=500, validate_every=900)
    config = dataclasses.replace(CONFIG, tokenizer=CharConfig(shared=False), training=training)
    sound = dataclasses.replace(config, training=dataclasses.replace(training, clip_norm=1.0))
    rules = list(check(sound))
    assert [rule.where for rule in rules] == ["model.tie_embeddings", "training.validate_every"]
    bound = Problem("training.clip_norm", "must be above 0", "-1.0")
    assert list(check(config)) == [bound, *rules]


def test_mere_consequences_of_numbers_out_of_bounds_are_left_out() -> None:
    """They would be broken with some numbers in bounds and not with others, or name the number."""
    for section, where in (
        (TrainingConfig(max_steps=0), "max_steps"),
        (TrainingConfig(keep_checkpoints=0, average_checkpoints=5), "keep_checkpoints"),
        (BeamConfig(beam_size=0, num_beam_groups=3), "beam_size"),
        (GreedyConfig(max_length=0, min_length=7), "max_length"),
        (GreedyConfig(max_length_ratio=-1.0, min_length_ratio=0.5), "max_length_ratio"),
        (EncoderDecoderConfig(dim=0, num_heads=3), "dim"),
        (EncoderDecoderConfig(num_heads=0, num_kv_heads=3), "num_heads"),
        (T5Positions(num_buckets=3, max_distance=1), "num_buckets"),
        (YarnScaling(factor=2.0, original_length=9, beta_slow=-1.0), "beta_slow"),
    ):
        assert [problem.where for problem in check(section)] == [where]
    for config, where in (
        (dataclasses.replace(CONFIG, training=TrainingConfig(batch_tokens=0)), "batch_tokens"),
        (
            dataclasses.replace(CONFIG, data=dataclasses.replace(DATA, filters=NO_LENGTH)),
            "max_length",
        ),
        (
            dataclasses.replace(MASKED, data=dataclasses.replace(MASKED.data, filters=NO_RATIO)),
            "max_ratio",
        ),
    ):
        assert [problem.where.rpartition(".")[2] for problem in check(config)] == [where]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            dataclasses.replace(CONFIG, data=dataclasses.replace(DATA, train=())),
            Problem("data.train", "needs at least one pair of files", "an empty list"),
        ),
        (
            dataclasses.replace(
                CONFIG,
                data=dataclasses.replace(
                    DATA, train=(dataclasses.replace(DATA.train[0], extract="phrases"),)
                ),
            ),
            Problem(
                "data.train",
                "has phrases alone, by which no model learns to translate sentences",
                remedy="add the text without `extract` too",
            ),
        ),
        (
            dataclasses.replace(CONFIG, data=dataclasses.replace(DATA, prefixes={})),
            Problem(
                "data.prefixes",
                "needs a prefix for each target language",
                "an empty mapping",
                "leave it out",
            ),
        ),
        (
            dataclasses.replace(CONFIG, data=dataclasses.replace(DATA, test={"valid": TEXT})),
            Problem("data.test.valid", "this name belongs to data.valid", remedy="rename it"),
        ),
        (
            dataclasses.replace(CONFIG, tokenizer=SubwordConfig(vocab_size=272)),
            Problem(
                "tokenizer.vocab_size",
                "must be at least 273 with byte_fallback, which adds 16 special pieces and "
                "256 bytes",
                "272",
                "enlarge it or set byte_fallback: false",
            ),
        ),
        (
            dataclasses.replace(CONFIG, model=EncoderDecoderConfig(num_heads=3)),
            Problem("model.num_heads", "must divide dim 256", "3"),
        ),
        (
            dataclasses.replace(
                CONFIG, model=EncoderDecoderConfig(head_width=5, positions=RotaryPositions())
            ),
            Problem("model.head_width", "must be even with rotary positions", "5"),
        ),
        (
            dataclasses.replace(CONFIG, model=EncoderDecoderConfig(dim=3, num_heads=3)),
            Problem("model.dim", "must be even with sinusoidal positions", "3"),
        ),
        (
            dataclasses.replace(
                CONFIG,
                model=EncoderDecoderConfig(
                    dim=2, num_heads=1, positions=SinusoidalPositions(frequencies="tensor2tensor")
                ),
            ),
            Problem("model.dim", "must be above 2 with the frequencies of tensor2tensor", "2"),
        ),
        (
            dataclasses.replace(CONFIG, training=TrainingConfig(max_steps=399, validate_every=3)),
            Problem(
                "training.schedule.warmup_steps", "must be at most training.max_steps 399", "400"
            ),
        ),
        (
            dataclasses.replace(CONFIG, training=TrainingConfig(max_steps=999)),
            Problem(
                "training.validate_every",
                "must be at most training.max_steps 999, or nothing is validated",
                "1000",
            ),
        ),
        (
            dataclasses.replace(
                CONFIG,
                training=TrainingConfig(source_noise=SourceNoiseConfig(drop=0.0, swap=0)),
            ),
            Problem(
                "training.source_noise.swap",
                "must be above 0 if drop and replace are 0, or no token is changed",
                "0",
                "raise one of them or leave source_noise out",
            ),
        ),
        (
            dataclasses.replace(CONFIG, tokenizer=CharConfig(shared=False)),
            Problem(
                "model.tie_embeddings",
                "source and target embeddings can be tied only with tokenizer.shared: true",
                "all",
                "write tie_embeddings: output, or share the vocabulary",
            ),
        ),
        (
            dataclasses.replace(
                CONFIG, model=EncoderDecoderConfig(positions=LearnedPositions(max_length=256))
            ),
            Problem(
                "model.positions.max_length",
                "must be at least 257, which is data.filters.max_length with tags + 1",
                "256",
            ),
        ),
        (
            dataclasses.replace(CONFIG, training=TrainingConfig(batch_tokens=256)),
            Problem(
                "training.batch_tokens",
                "must be above 256, which is data.filters.max_length with tags, "
                "or a long sentence fits no batch",
                "256",
            ),
        ),
        (
            dataclasses.replace(CONFIG, training=TrainingConfig(bidirectional_steps=20_000)),
            Problem(
                "training.bidirectional_steps",
                "must be below training.max_steps 20000, or no step trains on the wanted direction "
                "alone",
                "20000",
            ),
        ),
        (
            dataclasses.replace(
                CONFIG,
                tokenizer=CharConfig(shared=False),
                model=EncoderDecoderConfig(tie_embeddings="output"),
                training=TrainingConfig(bidirectional_steps=1),
            ),
            Problem(
                "training.bidirectional_steps",
                "needs tokenizer.shared: true, since each language is source and target",
                "1",
                "share the vocabulary, or write null",
            ),
        ),
        (
            dataclasses.replace(
                MASKED, training=dataclasses.replace(MASKED.training, bidirectional_steps=1)
            ),
            Problem(
                "training.bidirectional_steps",
                "must be null with model.kind masked_encoder, which has no direction",
                "1",
            ),
        ),
        (
            dataclasses.replace(
                CONFIG, training=TrainingConfig(subword_sampling=UnigramSamplingConfig())
            ),
            Problem(
                "training.subword_sampling",
                "needs tokenizer.kind subword with algorithm unigram",
                "bpe",
                "change one of them, or write null",
            ),
        ),
        (
            dataclasses.replace(
                CONFIG,
                tokenizer=CharConfig(),
                training=TrainingConfig(subword_sampling=BpeDropoutConfig()),
            ),
            Problem(
                "training.subword_sampling",
                "needs tokenizer.kind subword with algorithm bpe",
                "kind char",
                "change one of them, or write null",
            ),
        ),
        (
            dataclasses.replace(
                MASKED,
                training=dataclasses.replace(MASKED.training, source_noise=SourceNoiseConfig()),
            ),
            Problem(
                "training.source_noise",
                "changes sentence pairs, and a masked_encoder has none",
                remedy="write null",
            ),
        ),
        (
            dataclasses.replace(CONFIG, tokenizer=WordConfig(shared=True)),
            Problem(
                "evaluation.bleu.lowercase",
                "must be true, since this tokenizer lowercases the target",
                "false",
            ),
        ),
        (
            dataclasses.replace(CONFIG, tokenizer=SubwordConfig(lowercase="both")),
            Problem(
                "evaluation.bleu.lowercase",
                "must be true, since this tokenizer lowercases the target",
                "false",
            ),
        ),
    ],
)
def test_check_reports_each_rule_between_fields(config: Config, complaint: Problem) -> None:
    assert list(check(config)) == [complaint]


def test_rules_hold_at_their_edges() -> None:
    assert not list(
        check(
            dataclasses.replace(
                CONFIG,
                data=dataclasses.replace(DATA, filters=FilterConfig(max_length=255)),
                tokenizer=SubwordConfig(vocab_size=273, lowercase="source"),
                model=EncoderDecoderConfig(positions=LearnedPositions(max_length=256)),
                training=TrainingConfig(
                    max_steps=1000,
                    validate_every=1000,
                    batch_tokens=256,
                    bidirectional_steps=999,
                ),
                evaluation=EvaluationConfig(),
            )
        )
    )


def test_groups_of_a_beam_are_equal_and_more_than_one() -> None:
    assert list(check(BeamConfig(beam_size=6, num_beam_groups=3, diversity_penalty=2.0))) == []
    assert list(check(BeamConfig(beam_size=5, num_beam_groups=3))) == [
        Problem("num_beam_groups", "must divide beam_size 5", "3")
    ]
    assert list(check(BeamConfig(diversity_penalty=2.0))) == [
        Problem(
            "diversity_penalty",
            "has no effect on one group",
            "2.0",
            "set num_beam_groups to 2 or more, or leave it out",
        )
    ]


@pytest.mark.parametrize(
    ("search", "key", "rule"),
    [
        (BeamConfig(length_penalty=10.1), "length_penalty", "must be at most 10"),
        (BeamConfig(patience=1e308), "patience", "must be at most 1000"),
        (BeamConfig(coverage_penalty=1e308), "coverage_penalty", "must be at most 1000"),
        (
            BeamConfig(num_beam_groups=5, diversity_penalty=1e39),
            "diversity_penalty",
            "must be at most 1000",
        ),
        (GreedyConfig(max_length_ratio=1e308), "max_length_ratio", "must be at most 1000"),
        (GreedyConfig(min_length_ratio=1e308), "min_length_ratio", "must be at most 1000"),
        (GreedyConfig(frequency_penalty=1e308), "frequency_penalty", "must be at most 1000"),
        (GreedyConfig(repetition_penalty=1e308), "repetition_penalty", "must be at most 1000"),
        (GreedyConfig(repetition_penalty=1e-300), "repetition_penalty", "must be at least 0.001"),
        (SampleConfig(temperature=1e39), "temperature", "must be at most 1000"),
        (SampleConfig(temperature=1e-39), "temperature", "must be at least 0.001"),
        (SampleConfig(top_p=1e-300), "top_p", "must be at least 1e-06"),
    ],
)
def test_numbers_that_no_search_can_count_with_are_refused(
    search: DecodingConfig, key: str, rule: str
) -> None:
    assert list(check(search)) == [Problem(key, rule, str(getattr(search, key)))]


@pytest.mark.parametrize("kind", [BeamConfig, GreedyConfig, SampleConfig])
def test_the_shortest_translation_fits_into_the_longest(kind: type[DecodingConfig]) -> None:
    for longest, shortest in ((1, 1), (3, 2), (9, 8)):
        assert list(check(kind(max_length=longest, min_length=shortest))) == []
    for longest, shortest in ((1, 2), (5, 5), (5, 9)):
        what = f"must be below max_length {longest}, which counts the end token"
        assert list(check(kind(max_length=longest, min_length=shortest))) == [
            Problem("min_length", what, str(shortest))
        ]
    for longest, shortest in ((None, 2.0), (1.5, 1.5)):
        assert list(check(kind(max_length_ratio=longest, min_length_ratio=shortest))) == []
    assert list(check(kind(max_length_ratio=1.5, min_length_ratio=2.0))) == [
        Problem("min_length_ratio", "must be at most max_length_ratio 1.5", "2.0")
    ]


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (BeamConfig(beam_size=4), "beam 4"),
        (
            BeamConfig(length_penalty=1.4, no_repeat_ngram_size=3),
            "beam 5, length penalty 1.4, no repeated 3-grams",
        ),
        (GreedyConfig(), "greedy"),
        (GreedyConfig(no_repeat_ngram_size=4), "greedy, no repeated 4-grams"),
    ],
)
def test_a_search_is_told_with_what_is_tuned(search: DecodingConfig, words: str) -> None:
    assert search_in_words(dataclasses.asdict(search)) == words


def tagged(*texts: tuple[str, ...]) -> DataConfig:
    files = {"source": Path("a"), "target": Path("b")}
    train = tuple(TrainingText(**files, tags=tags) for tags in texts)
    return DataConfig(train=train, valid=ParallelText(**files))


def test_tags_are_numbered_as_they_first_appear() -> None:
    assert tagged(("b",), (), ("a", "b"), ("c",)).tags == ("b", "a", "c")
    assert tagged(("b",), (), ("a", "b")).max_length == 258


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            [tuple("abcdef"), tuple("efghijk")],
            "train: has more than the 10 tags that a vocabulary reserves "
            "(a, b, c, d, e, f, g, h, i, j, k); share tags between texts",
        ),
        (
            [("a b",)],
            "train.0.tags.0: must be a name without whitespace or a control character "
            '("a b"); rename it',
        ),
        (
            [("a",), ("",)],
            "train.1.tags.0: must be a name without whitespace or a control character "
            '(""); rename it',
        ),
        ([("a", "b", "a")], "train.0.tags.2: is a tag of this text already (a)"),
    ],
)
def test_tags_that_nobody_could_ask_for_are_refused(
    texts: list[tuple[str, ...]], message: str
) -> None:
    assert [str(problem) for problem in check(tagged(*texts))] == [message]
    assert not list(check(tagged(tuple("abcdef"), tuple("efghij"))))
