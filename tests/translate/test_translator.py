"""Long lines, progress and numbers, over an engine that answers by a rule."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.config.schema.model import EncoderDecoderConfig, LearnedPositions
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.errors import ConfigError, DataError, Problem, UsageError
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.engine import (
    EMPTY,
    Engine,
    Hypothesis,
    Job,
    OnDone,
    OnDraft,
    OnWarning,
    Request,
    SpecialTokens,
)
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.search.workers import with_workers
from tformer_cli.text.segments import Terminology
from tformer_cli.text.special_tokens import EOS_ID
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.translate import translator as translator_module
from tformer_cli.translate.options import MBR
from tformer_cli.translate.postprocess import best_combinations
from tformer_cli.translate.preprocess import MAX_PIECES, InputLine
from tformer_cli.translate.translator import Translator

BEAM = BeamConfig(beam_size=3)
CPU = torch.device("cpu")


class Backwards(Engine):
    """Says each sentence backwards; its second best leaves a token out, its third two."""

    scorer = SimpleNamespace(max_length=None)

    def __init__(self) -> None:
        self.sentences: list[list[int]] = []

    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
        on_draft: OnDraft | None = None,
    ) -> list[list[Hypothesis]]:
        self.sentences += [list(request.source) for request in requests]
        for _ in requests:
            on_done(1)
        return [[hypothesis(one.source, rank) for rank in range(nbest)] for one in requests]

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        return self.translate(job.requests, job.config, nbest=job.nbest, on_done=on_done)


def hypothesis(ids: Sequence[int], rank: int) -> Hypothesis:
    if not ids:
        return EMPTY
    log_prob = -0.5 * len(ids) - rank
    return Hypothesis(tuple(ids[:-1][::-1][rank:]), log_prob, log_prob / len(ids), True)


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    line = "abcdefg .,。"
    return build_tokenizers(CharConfig(), lambda: [(line, line)] * 3, seed=1)


NOWHERE = Path("nowhere")


def config_of(target_language: str = "en", **sections: object) -> Config:
    data = DataConfig(
        train=(TrainingText(source=NOWHERE, target=NOWHERE),),
        valid=ParallelText(source=NOWHERE, target=NOWHERE),
        target_language=target_language,
        filters=FilterConfig(max_length=9),
    )
    return Config(data=data, **sections)


def translator_of(
    tokenizers: Tokenizers, target_language: str = "en", **options: object
) -> Translator:
    config = config_of(target_language, decoding=BEAM)
    return Translator(Backwards(), tokenizers, config, **options)


@pytest.fixture
def translator(tokenizers) -> Translator:
    return translator_of(tokenizers, max_source_length=6)


def said(translator: Translator) -> list[str]:
    """The sentences that the engine was given, as text."""
    assert all(not ids or ids[-1] == EOS_ID for ids in translator.engine.sentences)
    return [translator.tokenizers.source.decode(ids) for ids in translator.engine.sentences]


def test_a_line_as_long_as_training_has_seen_is_one_sentence(translator):
    warnings = []
    lines = ["abc ef", "", " ", "a"]
    assert translator.translate(lines, on_warning=warnings.append) == ["fe cba", "", "", "a"]
    assert said(translator) == ["abc ef", "", "", "a"]
    assert warnings == []


def test_a_long_line_is_said_in_pieces_between_its_neighbours(translator):
    warnings = []
    lines = ["ab", "abc. de. fg, abcdefg", "cd"]
    found = translator.translate(lines, on_warning=warnings.append)
    assert found == ["ba", ".cba .ed ,gf fedcba g", "dc"]
    assert said(translator) == ["ab", "abc.", "de.", "fg,", "abcdef", "g", "cd"]
    assert [str(warning) for warning in warnings] == [
        "line 2: is longer than 6 tokens (20); translated in 5 pieces"
    ]


@pytest.fixture
def of_single_sentences(tokenizers) -> Translator:
    return translator_of(tokenizers, max_source_length=20, max_source_sentences=1)


def test_a_line_of_several_sentences_is_said_sentence_by_sentence(of_single_sentences):
    translator, warnings = of_single_sentences, []
    lines = ["abc de.", "abc. de. fg", "abcde. abcdefgabcdefg abcdefg.", "cd. ef."]
    found = translator.translate(lines, on_warning=warnings.append)
    assert found == [".ed cba", ".cba .ed gf", ".edcba gfedcbagfedcba .gfedcba", ".dc .fe"]
    assert said(translator) == [
        "abc de.",
        *("abc.", "de.", "fg"),
        *("abcde.", "abcdefgabcdefg", "abcdefg."),
        *("cd.", "ef."),
    ]
    assert [str(warning) for warning in warnings] == [
        "line 2: has more sentences than a training line (3); "
        "such lines are translated sentence by sentence",
        "line 3: is longer than 20 tokens (30); translated in 3 pieces",
    ]
    # Once for all that it translates.
    translator.translate(lines[1:2], on_warning=warnings.append)
    assert len(warnings) == 2


def test_as_many_sentences_as_training_lines_had_are_said_at_once(of_single_sentences):
    translator, warnings = of_single_sentences, []
    translator.preprocessor.max_source_sentences = 2
    translator.translate(["ab. cd.", "ab. cd. ef. ga. bc."], on_warning=warnings.append)
    assert said(translator) == ["ab. cd.", "ab. cd.", "ef. ga.", "bc."]
    (warning,) = warnings
    assert warning.remedy == "such lines are translated at most 2 sentences at a time"


@pytest.mark.parametrize("long_lines", ["truncate", "error"])
def test_whoever_cuts_no_long_line_cuts_no_line_of_sentences(of_single_sentences, long_lines):
    of_single_sentences.preprocessor.long_lines = long_lines
    of_single_sentences.translate(["ab. cd."])
    assert said(of_single_sentences) == ["ab. cd."]


def test_alignments_nbest_and_prefixes_of_sentences_are_those_of_pieces(of_single_sentences):
    translator = of_single_sentences
    translator.load_aligner = Mirror
    ((first, second),) = translator.nbest(["a abc. de"], 2, prefixes=["fg"], aligned=True)
    assert (first.text, second.text) == (".cba a ed", "cba a ed")
    assert first.alignments == second.alignments == ((0, 1), (1, 0), (2, 2))
    with pytest.raises(DataError) as caught:
        required(translator, ["ab. cd"], required=[["a"]])
    assert str(caught.value) == (
        "line 1: has required phrases but is split into pieces (2 pieces); "
        "split it and them, or raise `max_source_sentences`"
    )


def test_a_language_without_whitespace_gets_none(translator):
    translator.postprocessor.separator = ""
    assert translator.translate(["abc。defg。"]) == ["。cba。gfed"]


def test_whitespace_at_the_end_makes_no_piece(translator):
    warnings = []
    found = translator.translate(["abc" + 9 * " ", 9 * " " + "abc"], on_warning=warnings.append)
    assert found == ["cba", "cba"]
    assert str(warnings[0]) == "line 1: is longer than 6 tokens (12); translated in 1 piece"


def test_whitespace_at_the_beginning_makes_no_piece(translator):
    translator.engine = Requested()
    ((indented,),) = translator.nbest([9 * " " + "abcdefg."], 1, prefixes=["g"])
    asked = translator.engine.requests
    assert said(translator) == ["abcdef", "g."]
    assert ["".join(translator.tokenizers.target.tokens(one.prefix)) for one in asked] == ["g", ""]
    assert [indented] == next(translator.nbest(["abcdefg."], 1))


def test_scores_of_pieces_make_those_of_the_line(translator):
    first, second, third = next(translator.nbest(["abc. defg."], 3))
    best = [hypothesis([*range(4), EOS_ID], 0), hypothesis([*range(5), EOS_ID], 0)]
    assert first.text == ".cba .gfed"
    assert first.tokens == tuple(".cba.gfed")
    assert first.log_prob == pytest.approx(sum(piece.log_prob for piece in best))
    assert first.score == pytest.approx(sum(piece.score for piece in best) / 2)
    # The longer piece loses less by a token, so its second best comes first.
    assert (second.text, third.text) == (".cba gfed", "cba .gfed")
    assert first.score > second.score > third.score


def test_each_sample_of_a_piece_is_in_one_translation_of_its_line(translator):
    lines, search = 9 * ["abc. defg."], SampleConfig()
    found = [[best.text for best in line] for line in translator.nbest(lines, 3, decoding=search)]
    for texts in found:
        first, second = zip(*map(str.split, texts), strict=True)
        assert sorted(first) == [".cba", "ba", "cba"]
        assert sorted(second) == [".gfed", "fed", "gfed"]
    # A good sample of one piece has no better sample of the other than chance gives.
    assert len(set(map(tuple, found))) > 2
    again = translator.nbest(lines, 3, decoding=search)
    assert [[best.text for best in line] for line in again] == found
    for line in translator.nbest(lines, 3, decoding=search):
        scores = [best.score for best in line]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("ends", [[True], [False], [True, True], [False, True], [True, False]])
def test_a_line_is_finished_where_all_its_pieces_are(translator, ends):
    pieces = [replace(EMPTY, finished=finished) for finished in ends]
    assert translator.postprocessor.decode(pieces).finished is (False not in ends)


HYPOTHESES = st.lists(
    st.integers(-8, 0).map(lambda score: replace(EMPTY, score=float(score))), min_size=1, max_size=4
).map(lambda found: sorted(found, key=lambda one: -one.score))


@given(st.lists(HYPOTHESES, min_size=1, max_size=4), st.integers(1, 9))
def test_best_combinations_are_the_best_of_all(pieces, count):
    everything = sorted(
        (sum(one.score for one in chosen) for chosen in itertools.product(*pieces)), reverse=True
    )
    found = best_combinations(pieces, count)
    assert [sum(one.score for one in chosen) for chosen in found] == everything[:count]
    assert found[0] == tuple(hypotheses[0] for hypotheses in pieces)


@pytest.mark.parametrize("rounding", [-1e-6, 0.0, 1e-6])
def test_rounding_does_not_order_combinations_of_a_sentence_that_comes_twice(rounding):
    first = [replace(EMPTY, token_ids=(i,), score=-float(i)) for i in range(3)]
    second = [replace(each, score=each.score + rounding * each.token_ids[0]) for each in first]
    found = best_combinations([first, second], 5)
    ranks = [tuple(part.token_ids[0] for part in parts) for parts in found]
    assert ranks == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]


def test_truncating_keeps_the_first_tokens(translator):
    translator.preprocessor.long_lines = "truncate"
    warnings = []
    found = translator.translate(["abcdefg", "ab"], on_warning=warnings.append)
    assert found == ["fedcba", "ba"]
    assert [str(warning) for warning in warnings] == [
        "line 1: is longer than 6 tokens (7); only the first 6 are translated"
    ]


def test_a_long_line_as_an_error_is_named_before_any_is_translated(translator):
    translator.preprocessor.long_lines = "error"
    with pytest.raises(DataError) as caught:
        translator.translate(["ab", "abcdefg"])
    assert str(caught.value) == (
        'line 2: is longer than 6 tokens (7); split it, or use `long_lines="split"`'
    )
    assert translator.engine.sentences == []


def test_messages_count_across_windows_and_name_the_file(translator, monkeypatch):
    monkeypatch.setattr(translator_module, "WINDOW_LINES", 2)
    warnings = []
    lines = ["abcdefg", "ab", "cd", "abcd efg", "abcdefg"]
    found = translator.nbest(lines, 1, name="x.en", first_line=11, on_warning=warnings.append)
    assert [best.text for (best,) in found] == ["fedcba g", "ba", "dc", "dcba gfe", "fedcba g"]
    assert [warning.where for warning in warnings] == ["x.en:11", "x.en:14", "x.en:15"]


def test_lines_of_a_share_have_their_numbers_in_the_whole(translator, monkeypatch):
    monkeypatch.setattr(translator_module, "WINDOW_LINES", 2)
    warnings, numbers = [], []
    translate = translator.engine.translate

    def numbered(requests, *arguments, **options):
        numbers.extend(request.number // MAX_PIECES for request in requests)
        return translate(requests, *arguments, **options)

    monkeypatch.setattr(translator.engine, "translate", numbered)
    lines = ["ab", "c", "abcdefg", "d"]
    list(
        translator.nbest(
            lines, 1, name="x.en", first_line=5, line_stride=3, on_warning=warnings.append
        )
    )
    assert numbers == [5, 8, 11, 11, 14]
    assert [warning.where for warning in warnings] == ["x.en:11"]


def test_progress_counts_lines_not_pieces(translator):
    counts: list[int] = []
    lines = ["abc. defg. abcdefg", "", "ab", "abcdefgabcdefg", "c"]
    list(translator.nbest(lines, 1, on_done=counts.append))
    assert sum(counts) == len(lines)
    assert min(counts) >= 0


def test_a_character_with_more_tokens_than_the_limit_is_cut(tokenizers):
    pairs = [("abcdefg", "abcdefg")]
    source = build_tokenizers(CharConfig(nfkc="both"), lambda: pairs, seed=1).source
    translator = translator_of(replace(tokenizers, source=source), max_source_length=2)
    translator.translate(["\ufdfaa"])
    assert [len(ids) for ids in translator.engine.sentences] == [2 + 1, 1 + 1]


def learned_positions(tokenizers: Tokenizers) -> tuple[Seq2Seq, Config]:
    """A random model with learned positions for nine tokens and `</s>`, and its config."""
    model = EncoderDecoderConfig(
        dim=12, num_heads=3, feedforward_dim=16, positions=LearnedPositions(max_length=10)
    )
    size = tokenizers.source.size
    config = config_of("ja", model=model, decoding=BeamConfig(beam_size=2, max_length=7))
    return build_model(model, source_size=size, target_size=size, seed=4), config


def test_a_line_beyond_learned_positions_is_translated_as_its_pieces(tokenizers):
    model, config = learned_positions(tokenizers)
    translator = Translator.from_model(model, tokenizers, config, CPU)
    line, pieces = "abcdefg abc. def, ga", ["abcdefg", "abc.", "def, ga"]
    alone = translator.translate(pieces)
    assert len(set(alone)) > 1
    assert translator.translate([line]) == ["".join(alone)]


def test_no_limit_goes_beyond_learned_positions(tokenizers):
    model, config = learned_positions(tokenizers)
    shorter = Translator.from_model(model, tokenizers, config, CPU, max_source_length=3)
    assert shorter.preprocessor.max_source_length == 3
    with pytest.raises(UsageError) as caught:
        Translator.from_model(model, tokenizers, config, CPU, max_source_length=10)
    assert str(caught.value) == (
        "`max_source_length`: must be below 10, the number of learned positions (10); "
        "leave it out, or train with model.positions: {kind: sinusoidal}"
    )


@pytest.mark.parametrize("kind", [BeamConfig, GreedyConfig, SampleConfig])
def test_no_search_goes_beyond_learned_positions(tokenizers, kind):
    model, config = learned_positions(tokenizers)
    translator = Translator.from_model(model, tokenizers, config, CPU)
    assert len(translator.translate(["ab", "c"], decoding=kind(max_length=10))) == 2
    with pytest.raises(ConfigError) as caught:
        translator.translate(["ab", "c"], decoding=kind(max_length=11))
    assert str(caught.value) == (
        "decoding.max_length: must be at most the 10 that model.positions.max_length leaves (11)"
    )


def test_a_prefix_may_use_all_learned_positions_and_no_more(tokenizers):
    model, config = learned_positions(tokenizers)
    translator = Translator.from_model(model, tokenizers, config, CPU)
    lines, prefix = 25 * ["ab"], "abcdefgab"
    for (best,) in translator.nbest(lines, 1, prefixes=[prefix] * 25):
        assert best.text.startswith(prefix)
    with pytest.raises(DataError) as caught:
        list(translator.nbest(["ab", "c"], 1, prefixes=["a", f"{prefix}c"], name="x.en"))
    assert str(caught.value) == (
        "x.en:2: requires more tokens than the 10 positions that the model has learned "
        "(11 tokens); shorten its prefix or its required phrases"
    )


def test_several_processes_on_a_gpu_are_refused(tokenizers):
    model, config = learned_positions(tokenizers)
    tokens = SpecialTokens(*tokenizers.special_ids(config.model.kind))
    engine = NativeEngine(model, tokens, device=CPU)
    engine.device = torch.device("cuda")
    with pytest.raises(UsageError) as caught:
        with_workers(engine, 2)
    assert str(caught.value) == ('`workers`: is for a CPU (2); use 1, or `device="cpu"`')


def test_what_there_must_be_one_of_is_never_none(translator, tokenizers):
    model, config = learned_positions(tokenizers)
    asked = {
        "count": lambda number: list(translator.nbest(["ab"], number)),
        "workers": lambda number: Translator.from_model(
            model, tokenizers, config, CPU, workers=number
        ),
        "max_source_sentences": lambda number: Translator.from_model(
            model, tokenizers, config, CPU, max_source_sentences=number
        ),
        "max_source_length": lambda number: Translator.from_model(
            model, tokenizers, config, CPU, max_source_length=number
        ),
    }
    for (argument, ask), number in itertools.product(asked.items(), (0, -1)):
        with pytest.raises(UsageError) as caught:
            ask(number)
        assert str(caught.value) == f"`{argument}`: must be at least 1 ({number})"


def test_an_unknown_way_with_long_lines_is_refused(tokenizers):
    with pytest.raises(UsageError) as caught:
        translator_of(tokenizers, max_source_length=6, long_lines="cut")
    assert str(caught.value) == ("`long_lines`: must be one of split, truncate, error (cut)")


class Mirror:
    """Knows where the words of `Backwards` come from."""

    def align(
        self,
        sentences: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]],
        num_tags: int,
        num_start: int,
    ) -> list[list[tuple[int, ...]]]:
        return [[tuple(range(len(row)))[::-1] for row in rows] for _, rows in sentences]


def test_alignments_count_words_of_the_line_and_of_its_translation(translator):
    translator.load_aligner = Mirror
    lines = ["abc ef", "", "a b", " "]
    found = [best for (best,) in translator.nbest(lines, 1, aligned=True)]
    assert [best.text for best in found] == ["fe cba", "", "b a", ""]
    assert [best.alignments for best in found] == [((0, 1), (1, 0)), (), ((0, 1), (1, 0)), ()]
    assert found[0].source_tokens == tuple("abc ef")
    assert found[0].source_words == ("abc", "ef")


def test_alignments_of_pieces_are_those_of_the_joined_text(translator):
    translator.load_aligner = Mirror
    found = list(translator.nbest(["a abc. de. fg, g"], 2, aligned=True))
    ((first, second),) = found
    assert said(translator) == ["a abc.", "de.", "fg, g"]
    assert (first.text, second.text) == (".cba a .ed g ,gf", "cba a .ed g ,gf")
    assert first.alignments == ((0, 1), (1, 0), (2, 2), (3, 4), (4, 3))
    assert second.alignments == first.alignments


def test_a_word_that_is_cut_counts_once_among_the_words_of_its_line(translator):
    translator.load_aligner = Mirror
    ((best,),) = translator.nbest(["abcdefgab fg"], 1, aligned=True)
    assert said(translator) == ["abcdef", "gab fg"]
    assert best.text == "fedcba gf bag"
    assert best.alignments == ((0, 0), (0, 2), (1, 1))
    assert best.source_words == ("abcdefgab", "fg")
    assert best.words == ("fedcba", "gf", "bag")


@pytest.mark.parametrize(
    ("line", "source_words"),
    [("a XY b", ("a", "", "b")), ("aX b", ("a", "b")), ("X", ("",)), (" ", ())],
)
def test_a_word_of_unknown_characters_counts_and_has_no_text(translator, line, source_words):
    translator.load_aligner = Mirror
    ((best,),) = translator.nbest([line], 1, aligned=True)
    assert best.source_words == source_words
    assert {source for source, _ in best.alignments} == {*range(len(source_words))}


def test_without_whitespace_alignments_count_tokens(translator):
    translator.load_aligner = Mirror
    translator.postprocessor.separator = translator.postprocessor.source_separator = ""
    ((best,),) = translator.nbest(["abc。de。"], 1, aligned=True)
    assert said(translator) == ["abc。", "de。"]
    assert best.text == "。cba。ed"
    assert best.alignments == ((0, 3), (1, 2), (2, 1), (3, 0), (4, 6), (5, 5), (6, 4))
    assert best.source_words == tuple("abc。de。")


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (BeamConfig(num_beam_groups=2), "num_beam_groups: must divide beam_size 5 (2)"),
        (SampleConfig(temperature=0.0), "temperature: must be at least 0.001 (0.0)"),
        (GreedyConfig(max_length=0), "max_length: must be at least 1 (0)"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(translator, search, message):
    with pytest.raises(ConfigError) as caught:
        translator.translate(["ab"], decoding=search)
    assert str(caught.value) == f"decoding.{message}"
    assert translator.engine.sentences == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lines", {"lines": "ab"}),
        ("prefixes", {"prefixes": "ab"}),
        ("banned", {"banned": "ab"}),
        ("required", {"required": "ab"}),
        ("required[1]", {"required": [["ab"], "ab"]}),
    ],
)
def test_a_text_is_not_taken_apart_into_letters(translator, name, options):
    with pytest.raises(UsageError) as caught:
        next(translator.nbest(**{"lines": ["ab", "cd"], "count": 1} | options))
    assert (
        str(caught.value) == f"`{name}`: must be a list of texts (a text); put brackets around it"
    )
    assert translator.engine.sentences == []


def test_a_run_to_join_is_not_taken_apart_either(toy_run):
    with pytest.raises(UsageError) as caught:
        Translator.load(toy_run, ensemble=str(toy_run))
    assert str(caught.value) == (
        "`ensemble`: must be a list of texts (a text); put brackets around it"
    )


def test_texts_to_score_are_not_taken_apart_either(translator):
    for name in ("sources", "targets"):
        with pytest.raises(UsageError) as caught:
            translator.score(**{"sources": ["ab"], "targets": ["ab"]} | {name: "ab"})
        assert caught.value.problems[0].where == f"`{name}`"


@pytest.mark.parametrize(
    ("targets", "got"), [(["a"], "none for line 2"), ([*"abc"], "more than 2")]
)
def test_texts_to_score_come_in_pairs(translator, targets, got):
    with pytest.raises(UsageError) as caught:
        list(translator.score(["a", "b"], targets))
    assert str(caught.value) == f"`targets`: must have an item for each line ({got})"


def test_alignments_without_an_aligner_are_refused(translator):
    with pytest.raises(UsageError) as caught:
        next(translator.nbest(["a"], 1, aligned=True))
    assert str(caught.value) == ("`aligned`: needs a translator that has an aligner; leave it out")
    ((best,),) = translator.nbest(["a"], 1)
    assert (best.alignments, best.source_tokens) == (None, None)


def utilities(texts: Sequence[str]) -> dict[str, float]:
    """The mean chrF2 of each text against all."""
    return {
        text: sum(CHRF().sentence_score(text, [other]).score for other in texts) / len(texts)
        for text in texts
    }


def test_mbr_chooses_among_all_that_the_search_finds(translator):
    expected = utilities(["fedcba", "edcba", "dcba"])
    (found,) = translator.nbest(["abcdef"], 2, mbr=MBR("chrf"))
    assert [best.text for best in found] == sorted(expected, key=lambda text: -expected[text])[:2]
    assert [best.score for best in found] == pytest.approx([expected[one.text] for one in found])
    assert translator.translate(["abcdef", ""], mbr=MBR()) == [found[0].text, ""]


def test_each_piece_of_a_line_is_reranked_by_mbr(translator):
    first, second = utilities([".cba", "cba", "ba"]), utilities([".gfed", "gfed", "fed"])
    ((best,),) = translator.nbest(["abc. defg."], 1, mbr=MBR("chrf"))
    assert best.text == " ".join(max(texts, key=texts.get) for texts in (first, second))
    assert best.score == pytest.approx((max(first.values()) + max(second.values())) / 2)


def test_more_translations_than_candidates_are_refused(translator):
    with pytest.raises(UsageError) as caught:
        next(translator.nbest(["ab"], 3, mbr=MBR("bleu", 2)))
    assert str(caught.value) == (
        "`count`: must be at most the 2 candidates of `mbr` (3); use `MBR(num_candidates=3)`"
    )


class Unscored(Engine):
    """As `Backwards`, by `decode` alone, and with scores only where they are asked for."""

    scorer = None

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        on_done(len(job.requests))
        found = [
            [hypothesis(one.source, rank) for rank in range(job.nbest)] for one in job.requests
        ]
        score = {} if job.scored else {"score": math.nan}
        return [[replace(part, **score) for part in hypotheses] for hypotheses in found]


def test_a_window_without_lines_has_no_translations(translator):
    """A process of torchrun has none where there are fewer lines than processes."""
    translator.engine, counts = Unscored(), []
    windows = [[], [InputLine("ab")]]
    found = translator.translate_windows(windows, 1, has_phrases=False, on_done=counts.append)
    assert [[line.translations[0].text for line in window] for window in found] == [[], ["ba"]]
    assert sum(counts) == 1


def test_several_translations_come_best_first_without_scores_too(translator):
    translator.engine = Unscored()
    lines = ["abc", "abc. abcdefg"]
    found = [
        [[best.text for best in line] for line in translator.nbest(lines, 3, scored=scored)]
        for scored in (True, False)
    ]
    assert found[0][0] == ["cba", "ba", "a"]
    assert found[0] == found[1]


class Requested(Backwards):
    """Says what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []

    def translate(self, requests, config, **others):
        self.requests += requests
        return super().translate(requests, config, **others)


def required(translator: Translator, lines: Sequence[str], **options: object) -> list[list[str]]:
    """What a translator requires of each piece of some lines, as text."""
    translator.engine = Requested()
    list(translator.nbest(lines, 1, **options))
    decode = translator.tokenizers.target.decode
    return [[decode(ids) for ids in one.required] for one in translator.engine.requests]


def test_each_line_requires_its_phrases(translator):
    phrases = [["ab", "c", "ab"], [], ["d e"]]
    assert required(translator, ["abc", "", "ed"], required=phrases) == phrases


def test_each_piece_requires_the_terms_of_its_own_text(translator):
    terms = Terminology(["ab\tga", "c\tef", "ab c\tg"], "terms.tsv", source_language="en")
    lines = ["c ab c", "c. ab. ab c.", "gab"]
    assert required(translator, lines, terminology=terms) == [["ef", "g"], ["ef", "ga"], ["g"], []]


def test_terms_beyond_a_cut_are_not_required(translator):
    translator.preprocessor.long_lines = "truncate"
    terms = Terminology(["ab\tga", "c\tef"], "terms.tsv", source_language="en")
    assert required(translator, ["ab def c"], terminology=terms) == [["ga"]]


def test_a_term_that_is_required_anyway_is_required_once(translator):
    terms = Terminology(["ab\tga", "c\tef"], "terms.tsv", source_language="en")
    found = required(translator, ["ab c"], required=[["ef", "d"]], terminology=terms)
    assert found == [["ef", "d", "ga"]]


def test_the_best_translation_is_asked_for_all_that_several_are(translator):
    translator.engine = Requested()
    translator.translate(
        ["ab", "c"],
        decoding=BEAM,
        prefixes=["g", "ga"],
        banned=["fe"],
        required=[["d"], []],
        terminology=Terminology(["ab\tbe", "c\tef"], "terms.tsv", source_language="en"),
    )
    decode = translator.tokenizers.target.decode
    requests = translator.engine.requests
    assert [decode(one.prefix) for one in requests] == ["g", "ga"]
    assert [[decode(ids) for ids in one.banned] for one in requests] == [["fe"], ["fe"]]
    assert [[decode(ids) for ids in one.required] for one in requests] == [["d", "be"], ["ef"]]


def test_iterators_count_as_lists(translator):
    options = {"decoding": BEAM, "required": [iter(["d"])], "banned": iter(["fe"])}
    assert required(translator, ["ab"], **options) == [["d"]]
    (request,) = translator.engine.requests
    assert [translator.tokenizers.target.decode(ids) for ids in request.banned] == ["fe"]
    (best,) = translator.translate(["ab 12"], keep=iter(["numbers"]))
    assert "12" in best


def test_a_phrase_has_no_space_before_it_in_a_language_without_whitespace():
    lines = ["東京都に住む。", "私は東京に行く。", "京都は東京ではない。"]
    config = SubwordConfig(vocab_size=300)
    japanese = build_tokenizers(config, lambda: [(line, line) for line in lines] * 9, seed=1)
    translator = translator_of(japanese, "ja", max_source_length=50)
    translator.engine = Requested()
    list(translator.nbest(["私"], 1, required=[["東京", "京都"]]))
    ((first, second),) = (one.required for one in translator.engine.requests)
    assert "".join(japanese.target.tokens([*first, *second])) == "東京京都"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"required": [["aéb"]]},
            "has a token that no translation can contain (<unk> in 'aéb')",
        ),
        ({"required": [["ga"]], "banned": ["a"]}, "contains a banned word ('ga')"),
        ({"required": [[""]]}, "has no token ('')"),
    ],
)
def test_a_phrase_that_cannot_come_is_refused(translator, options, message):
    with pytest.raises(DataError) as caught:
        required(translator, ["ab"], name="x.en", **options)
    assert str(caught.value) == f"a required phrase of x.en:1: {message}"


def test_phrases_of_a_line_in_pieces_are_refused(translator):
    with pytest.raises(DataError) as caught:
        required(translator, ["ab", "abc. de. fg"], required=[[], ["a"]])
    assert str(caught.value) == (
        "line 2: has required phrases but is split into pieces (2 pieces); "
        "split it and them, or raise `max_source_length`"
    )


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (GreedyConfig(), "needs beam search (greedy); use `BeamConfig(beam_size=5)`"),
        (SampleConfig(), "needs beam search (sample); use `BeamConfig(beam_size=5)`"),
        (
            BeamConfig(beam_size=4, num_beam_groups=2),
            "needs a beam of one group (2); use decoding.num_beam_groups=1",
        ),
    ],
)
def test_searches_that_keep_to_no_phrases_are_refused(translator, search, message):
    terms = Terminology(["ab\tga"], "terms.tsv", source_language="en")
    for argument, options in (
        ("required", {"required": [["a"]]}),
        ("terminology", {"terminology": terms}),
    ):
        with pytest.raises(UsageError) as caught:
            required(translator, ["ab"], decoding=search, **options)
        assert str(caught.value) == f"`{argument}`: {message}"
