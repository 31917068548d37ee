"""The analysis of sentences against what it must be by definition, and against hand-made lines."""

import collections
import difflib
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.evaluation import analysis
from tformer_cli.evaluation.analysis import Finding, compare_terms, mark_differences
from tformer_cli.text.defects import repeated_phrase
from tformer_cli.text.segments import words

TEXTS = st.text(alphabet="ab Äß.,-'’!12\u2028\u202e日本語मस्ते🙂", max_size=30)
LANGUAGES = st.sampled_from(["en", "zh", "ja_JP", ""])


@pytest.mark.parametrize(
    ("line", "language", "expected"),
    [
        (
            "Don't buy 1,000.5 (“Äpfel”), l'eau!",
            "en",
            ["Don't", "buy", "1,000.5", "Äpfel", "l'eau"],
        ),
        ("नमस्ते दुनिया।", "hi", ["नमस्ते", "दुनिया"]),
        ("مرحبا، يا عالم؟", "ar", ["مرحبا", "يا", "عالم"]),
        ("我爱Zürich、3个。", "zh-Hans", ["我", "爱", "Zürich", "3", "个"]),
        ("人々の", "ja", ["人", "々", "の"]),
        ("... --- !", "en", []),
    ],
)
def test_words_have_no_punctuation_around_them(line, language, expected):
    assert words(line, language) == expected


@given(st.lists(TEXTS, max_size=8), st.lists(TEXTS, max_size=4), LANGUAGES)
def test_counts_are_those_of_a_counter(training, sources, language):
    counter = collections.Counter(
        word for line in training for word in words(line.casefold(), language)
    )
    wanted = {word for line in sources for word in words(line.casefold(), language)}
    counts = analysis.count_words(training, sources, language)
    assert counts == {word: counter[word] for word in wanted}


def test_a_bounded_part_of_the_training_text_is_counted(monkeypatch):
    monkeypatch.setattr(analysis, "MAX_COUNTED", 2)
    endless = itertools.repeat("Das Haus")
    assert analysis.count_words(endless, ["ein HAUS"], "de") == {"ein": 0, "haus": 2}


@given(st.lists(TEXTS, max_size=12), LANGUAGES)
def test_buckets_share_out_the_lines(lines, language):
    by_length = analysis.length_buckets(lines, language)
    assert sorted(line for bucket in by_length for line in bucket.lines) == [*range(len(lines))]
    counts = analysis.count_words(lines, lines, language)
    by_frequency = analysis.frequency_buckets(lines, counts, language)
    with_words = [number for number, line in enumerate(lines) if words(line, language)]
    assert sorted(line for bucket in by_frequency for line in bucket.lines) == with_words
    assert all(bucket.lines for bucket in (*by_length, *by_frequency))


def test_buckets_are_named_by_what_is_in_them():
    lines = [" ".join(["word"] * count) for count in (0, 1, 5, 6, 50, 51, 400)]
    buckets = analysis.length_buckets(lines, "en")
    assert {bucket.name: bucket.lines for bucket in buckets} == {
        "0": (0,),
        "1 to 5": (1, 2),
        "6 to 10": (3,),
        "31 to 50": (4,),
        "51 or more": (5, 6),
    }
    counts = {"new": 0, "rare": 9, "common": 10_000}
    sources = ["Common, rare", "new common", "Common!"]
    assert {
        bucket.name: bucket.lines for bucket in analysis.frequency_buckets(sources, counts, "en")
    } == {"0": (1,), "1 to 9": (0,), "10,000 or more": (2,)}


def terms(source, reference, hypothesis, languages=("en", "de")):
    compared = compare_terms([source], [reference], [hypothesis], *languages)
    return {each.kind: each for each in compared}


@pytest.mark.parametrize(
    ("source", "reference", "hypothesis", "num_kept", "lost", "added"),
    [
        ("1,000.5 euros", "1.000,5 Euro", "1 000,5 Euro", 0, ("1,000.5",), ("1", "000,5")),
        ("1,000.5 euros", "1.000,5 Euro", "1000,5 Euro", 1, (), ()),
        ("at 12:30, room 7", "um 12.30 in Raum 7", "um 12.30 in Raum 8", 1, ("7",), ("8",)),
        ("٣ apples", "3 Äpfel", "3 Äpfel", 1, (), ()),
        # The reference writes it out.
        ("3 apples", "drei Äpfel", "Äpfel", 0, (), ()),
        # No digits of a position system.
        ("x² and ½", "x² und ½", "x", 0, (), ()),
    ],
)
def test_numbers_are_kept_whatever_their_separators(
    source, reference, hypothesis, num_kept, lost, added
):
    numbers = terms(source, reference, hypothesis)["numbers"]
    assert numbers.num_kept == num_kept
    assert numbers.lost == ((Finding(0, lost),) if lost else ())
    assert numbers.added == ((Finding(0, added),) if added else ())
    assert numbers.num_lost == len(lost)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Yesterday Peter met Anna-Maria.", {"Peter", "Anna-Maria"}),
        ("Peter slept. Then (Anna) came: Good.", {"Anna"}),
        ('"Peter" and I saw TV', {"TV"}),
        ("- Peter, come", set()),
        ("昨天 北京", set()),
        ("", set()),
    ],
)
def test_names_are_capitalized_words_that_begin_no_sentence(line, expected):
    assert set(analysis.names(line)) == expected


def test_a_name_is_kept_wherever_it_stands():
    both = "I saw Peter and Anna", "Peter sah ich und Anna"
    names = terms(*both, "Anna sah ich")["names"]
    assert (names.num_kept, names.lost, names.added) == (1, (Finding(0, ("Peter",)),), ())
    chinese = terms("I saw Peter", "我看见Peter了", "我看见Peter了", ("en", "zh"))["names"]
    assert chinese.num_kept == 1


NEGATED = {
    "en": ["I don't know", "he can’t", "Nobody came", "we cannot", "NOT now"],
    "de": ["das ist nicht so", "Keine Ahnung", "mit keinem Wort", "nie wieder"],
    "fr": ["il n'a rien", "je ne sais", "aucune idée", "Jamais"],
    "es": ["no sé", "ningún libro", "ninguna", "Nadie"],
    "it": ["non so", "nessun'altra", "nessuno", "mai più"],
    "nl": ["ik weet het niet", "geen idee", "nooit"],
    "pt": ["não sei", "nenhuma", "Ninguém"],
    "ru": ["я не знаю", "Никогда", "нет"],
}
PLAIN = {
    "en": ["a northern knot", "another note", "Nora"],
    "de": ["die Nichte", "niedlich", "eine Keimzelle"],
    "fr": ["une nation", "le passage", "nous"],
    "es": ["nosotros", "una nota", "nido"],
    "it": ["nonna", "maiale", "nota"],
    "nl": ["nieuw", "de geest", "nochtans"],
    "pt": ["nadar", "no mar", "nemesis"],
    "ru": ["небо", "нити", "нетто"],
}


@pytest.mark.parametrize("language", NEGATED)
def test_negations_are_whole_words_of_the_language(language):
    assert set(NEGATED) == set(PLAIN) == set(analysis._NEGATIONS)
    for line in NEGATED[language]:
        assert analysis.negation(line, language), line
    for line in PLAIN[language]:
        assert not analysis.negation(line, language), line


def test_negations_are_compared_where_both_languages_are_known():
    lost = terms("I don't know", "Ich weiß nicht", "Ich weiß", ("en_US", "de"))["negations"]
    assert (lost.num_kept, lost.lost) == (0, (Finding(0, ("don't",)),))
    added = terms("I know", "Ich weiß", "Ich weiß nichts")["negations"]
    assert (added.num_lost, added.added) == (0, (Finding(0, ("nichts",)),))
    assert "negations" not in terms("I don't", "知らない", "知る", ("en", "ja"))
    assert "negations" in terms("I don't", "Nein", "Ja", ("eng_Latn", "deu_Latn"))


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6))
def test_a_perfect_translation_has_no_defect(pairs):
    sources, references = ([*side] for side in zip(*pairs, strict=True)) if pairs else ([], [])
    for each in compare_terms(sources, references, references, "en", "de"):
        assert (each.lost, each.added) == ((), ())
    defects = analysis.find_defects(sources, references, references, "en", "de")
    assert not any(defects.values())


def test_copies_and_empty_translations():
    sources = ["the cat", "Berlin", "the dog", "", "a bird"]
    references = ["die Katze", "Berlin", "der Hund", "", "ein Vogel"]
    hypotheses = [" the cat ", "Berlin", "der Hund", "", " "]
    defects = analysis.find_defects(sources, references, hypotheses, "en", "de")
    assert (defects["copies"], defects["empty"]) == ([Finding(0)], [Finding(4)])


def test_untranslated_lines_are_made_of_source_words():
    sources = ["the old dog sleeps", "the old dog sleeps", "the old dog", "in Berlin der die"]
    references = ["der alte Hund schläft", "der alte Hund schläft", "der", "in Berlin der die"]
    hypotheses = [
        "der Old dog sleeps",
        "the alte Hund schläft",
        "the old dog",
        "in Berlin der die das",
    ]
    defects = analysis.find_defects(sources, references, hypotheses, "en", "de")
    assert defects["untranslated"] == [Finding(0, ("old", "dog", "sleeps"))]


@pytest.mark.parametrize(
    ("hypothesis", "language", "phrase"),
    [
        ("der Prinz Prinz, prinz ist", "de", "prinz"),
        ("sehr, sehr gut", "de", ""),
        ("die Katze die Katze schläft", "de", "die katze"),
        ("a b c d e f g h a b c d e f g h", "en", "a b c d e f g h"),
        ("Wirdddddd", "de", "d"),
        ("hahahahaha", "de", "ha"),
        ("1000000 --------", "de", ""),
        ("我们我们", "zh", "我们"),
        ("a b a c a d", "en", ""),
    ],
)
def test_a_loop_is_a_phrase_at_once_again(hypothesis, language, phrase):
    assert repeated_phrase(hypothesis, language) == phrase


@given(st.lists(st.sampled_from("abc"), max_size=14))
def test_loops_are_those_of_a_regular_expression(line):
    text = " ".join(line)
    pattern = r"\b(\w)( \1){2}\b|\b(\w(?: \w){1,7})( \3)\b"
    assert bool(repeated_phrase(text, "en")) == bool(re.search(pattern, text))


@given(TEXTS, TEXTS, LANGUAGES)
def test_marked_segments_are_the_texts_and_equal_ones_are_shared(one, other, language):
    segments = mark_differences(one, other, language)
    assert tuple("".join(each) for each in segments) == (one, other)
    equal = ["".join(each[::2]) for each in segments]
    assert equal[0] == equal[1]
    assert all(text for each in segments for text in each[1:])
    assert mark_differences(one, one, language)[0] == [one]


def test_whole_words_are_marked_and_characters_without_spaces():
    one, other = mark_differences("The cat sat.", "The big dog sat!", "en")
    assert (one, other) == (["The ", "cat", " sat", "."], ["The ", "big dog", " sat", "!"])
    assert mark_differences("我爱你", "我恨你", "zh") == (["我", "爱", "你"], ["我", "恨", "你"])
    matcher = difflib.SequenceMatcher(None, [*"abcd"], [*"axc"])
    num_equal = sum(block.size for block in matcher.get_matching_blocks())
    equal = mark_differences("a b c d", "a x c", "en")[0][::2]
    assert len(" ".join(equal).split()) == num_equal


@given(st.integers(0, 200), st.integers(1, 30))
def test_even_lines_are_different_and_in_order(num_lines, count):
    lines = analysis.even_lines(num_lines, count)
    assert lines == sorted(set(lines))
    assert len(lines) == min(num_lines, count)
    assert not lines or (lines[0] == 0 and lines[-1] < num_lines)


def test_the_best_come_first_and_of_equal_ones_the_longest():
    assert analysis.ranked([50.0, 100.0, 100.0, 0.0], ["aa", "a", "aaa", "a"]) == [2, 1, 0, 3]
