"""The demo corpus: paradigms written by hand, and what the files promise."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import make_demo_corpus
import pytest

from demo_corpus import adverbials, baseline, english, german, nouns, verbs
from demo_corpus import prepositions as prep
from demo_corpus.adjectives import ADJECTIVES
from demo_corpus.corpus import MIN_FORM_COUNT, NUM_UNSEEN, Corpus, Pair, forms, generate
from demo_corpus.dice import Dice
from demo_corpus.holdout import combinations
from demo_corpus.lexicon import Adjective, Case, Noun, Number, Verb
from demo_corpus.meaning import (
    Agreement,
    Ask,
    Clause,
    Comparison,
    Conjunction,
    Determiner,
    Echo,
    Form,
    Front,
    Infinitive,
    Mode,
    NounPhrase,
    PrepositionalPhrase,
    Pronoun,
    Purpose,
    Quality,
    Relative,
    Sentence,
    Subordinate,
)

DATA = Path(__file__).resolve().parents[2] / "data" / "demo"
CASES = (Case.NOMINATIVE, Case.ACCUSATIVE, Case.DATIVE)
SPLITS = ("train", "valid", "test")


def noun(name: str) -> Noun:
    return next(one for one in nouns.NOUNS if one.english == name)


def adjective(name: str) -> Adjective:
    return next(one for one in ADJECTIVES if one.english == name)


def verb(name: str) -> Verb:
    return next(one for one in verbs.VERBS if one.english.base == name)


def phrase(determiner: Determiner, words: str, number: Number = Number.SINGULAR) -> NounPhrase:
    """A phrase such as THE `small dog`, its words in the singular."""
    *adjectives, name = words.split()
    return NounPhrase(determiner, noun(name), number, tuple(map(adjective, adjectives)))


def both(sentence: Sentence) -> tuple[str, str]:
    return english.sentence(sentence), german.sentence(sentence)


THE_MAN = phrase(Determiner.THE, "man")
THE_DOOR = phrase(Determiner.THE, "door")
THE_BOOK = phrase(Determiner.THE, "book")
OPENS = Clause(subject=THE_MAN, verb=verb("open"), object=THE_DOOR)


# fmt: off
PARADIGMS = [
    (Determiner.THE, "small dog", "der kleine Hund, den kleinen Hund, dem kleinen Hund"),
    (Determiner.A, "small dog", "ein kleiner Hund, einen kleinen Hund, einem kleinen Hund"),
    (Determiner.HER, "sweet apple", "ihr süßer Apfel, ihren süßen Apfel, ihrem süßen Apfel"),
    (Determiner.THE, "old cat", "die alte Katze, die alte Katze, der alten Katze"),
    (Determiner.NO, "old cat", "keine alte Katze, keine alte Katze, keiner alten Katze"),
    (Determiner.A, "new book", "ein neues Buch, ein neues Buch, einem neuen Buch"),
    (Determiner.A, "cold coffee", "kalter Kaffee, kalten Kaffee, kaltem Kaffee"),
    (Determiner.A, "fresh meat", "frisches Fleisch, frisches Fleisch, frischem Fleisch"),
    (Determiner.A, "cold milk", "kalte Milch, kalte Milch, kalter Milch"),
    (Determiner.EVERY, "tired student",
     "jeder müde Student, jeden müden Studenten, jedem müden Studenten"),
    (Determiner.THE, "brave boy", "der mutige Junge, den mutigen Jungen, dem mutigen Jungen"),
    (Determiner.THIS, "expensive car",
     "dieses teure Auto, dieses teure Auto, diesem teuren Auto"),
    (Determiner.MY, "dark big kitchen",
     "meine dunkle große Küche, meine dunkle große Küche, meiner dunklen großen Küche"),
]
PLURAL_PARADIGMS = [
    (Determiner.THE, "small dog", "die kleinen Hunde, die kleinen Hunde, den kleinen Hunden"),
    (Determiner.A, "small dog", "kleine Hunde, kleine Hunde, kleinen Hunden"),
    (Determiner.OUR, "new book", "unsere neuen Bücher, unsere neuen Bücher, unseren neuen Büchern"),
    (Determiner.ALL, "young woman", "alle jungen Frauen, alle jungen Frauen, allen jungen Frauen"),
    (Determiner.MANY, "old car", "viele alte Autos, viele alte Autos, vielen alten Autos"),
    (Determiner.THREE, "red chair", "drei rote Stühle, drei rote Stühle, drei roten Stühlen"),
]
# fmt: on


@pytest.mark.parametrize(("determiner", "words", "expected"), PARADIGMS)
def test_noun_phrase_agrees_in_the_singular(
    determiner: Determiner, words: str, expected: str
) -> None:
    what = phrase(determiner, words)

    assert ", ".join(german.noun_phrase(what, case) for case in CASES) == expected


@pytest.mark.parametrize(("determiner", "words", "expected"), PLURAL_PARADIGMS)
def test_noun_phrase_agrees_in_the_plural(
    determiner: Determiner, words: str, expected: str
) -> None:
    what = phrase(determiner, words, Number.PLURAL)

    assert ", ".join(german.noun_phrase(what, case) for case in CASES) == expected


@pytest.mark.parametrize(
    ("determiner", "owner", "expected"),
    [
        (Determiner.MY, "brother", "der Hund meines Bruders"),
        (Determiner.THE, "old man", "der Hund des alten Mannes"),
        (Determiner.THIS, "queen", "der Hund dieser Königin"),
        (Determiner.THE, "neighbour", "der Hund des Nachbarn"),
        (Determiner.THE, "girl", "der Hund des Mädchens"),
        (Determiner.HER, "son", "der Hund ihres Sohnes"),
    ],
)
def test_owner_stands_in_the_genitive(determiner: Determiner, owner: str, expected: str) -> None:
    what = NounPhrase(Determiner.THE, noun("dog"), owner=phrase(determiner, owner))

    assert german.noun_phrase(what, Case.NOMINATIVE) == expected


def test_preposition_contracts_with_a_plain_article_only() -> None:
    garden = phrase(Determiner.THE, "garden")
    doors = phrase(Determiner.THE, "door", Number.PLURAL)

    assert german.prepositional(prep.IN, garden) == "im Garten"
    assert german.prepositional(prep.INTO, garden) == "in den Garten"
    assert german.prepositional(prep.INTO, phrase(Determiner.THE, "house")) == "ins Haus"
    assert german.prepositional(prep.TO, phrase(Determiner.THE, "school")) == "zur Schule"
    assert german.prepositional(prep.TO, phrase(Determiner.THIS, "lake")) == "zu diesem See"
    assert german.prepositional(prep.IN, doors) == "in den Türen"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("read", "lese liest lesen"),
        ("drive", "fahre fährt fahren"),
        ("feed", "füttere füttert füttern"),
        ("know", "weiß weiß wissen"),
        ("be", "bin ist sind"),
        ("have", "habe hat haben"),
    ],
)
def test_present_agrees_with_the_subject(word: str, expected: str) -> None:
    assert " ".join(german.present(verb(word).german, who) for who in Agreement) == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.PRESENT, ("The man opens the door.", "Der Mann macht die Tür auf.")),
        (Mode.PERFECT, ("The man has opened the door.", "Der Mann hat die Tür aufgemacht.")),
        (Mode.FUTURE, ("The man will open the door.", "Der Mann wird die Tür aufmachen.")),
        (Mode.CAN, ("The man can open the door.", "Der Mann kann die Tür aufmachen.")),
        (Mode.WANT, ("The man wants to open the door.", "Der Mann will die Tür aufmachen.")),
        (
            Mode.ALLOWED,
            ("The man is allowed to open the door.", "Der Mann darf die Tür aufmachen."),
        ),
    ],
)
def test_separable_verb_closes_the_main_clause(mode: Mode, expected: tuple[str, str]) -> None:
    assert both(Sentence(clause=replace(OPENS, mode=mode))) == expected


def test_separable_verb_is_whole_in_subordinate_and_infinitive_clauses() -> None:
    knows = Clause(subject=Pronoun.SHE, verb=verb("know"))
    that = replace(knows, complement=Subordinate(Conjunction.THAT, OPENS))
    tries = Clause(subject=THE_MAN, verb=verb("try"), complement=Infinitive(OPENS))

    assert both(Sentence(clause=that)) == (
        "She knows that the man opens the door.",
        "Sie weiß, dass der Mann die Tür aufmacht.",
    )
    assert both(Sentence(clause=tries)) == (
        "The man tries to open the door.",
        "Der Mann versucht, die Tür aufzumachen.",
    )


def test_perfect_of_motion_takes_sein() -> None:
    to_the_lake = PrepositionalPhrase(prep.TO, phrase(Determiner.THE, "lake"))
    runs = Clause(subject=Pronoun.WE, verb=verb("run"), mode=Mode.PERFECT, adjunct=to_the_lake)
    helps = Clause(subject=Pronoun.WE, verb=verb("help"), object=phrase(Determiner.MY, "sister"))

    assert both(Sentence(clause=runs, after=Purpose(helps))) == (
        "We have run to the lake in order to help my sister.",
        "Wir sind zum See gerannt, um meiner Schwester zu helfen.",
    )


def test_time_and_place_invert_when_they_come_first() -> None:
    today = adverbials.PAST_TIMES[0]
    read = Clause(subject=THE_MAN, verb=verb("read"), object=THE_BOOK, mode=Mode.PERFECT)
    read = replace(read, time=today)
    kitchen = PrepositionalPhrase(prep.IN, phrase(Determiner.THE, "kitchen"))
    sleeps = Clause(subject=THE_MAN, verb=verb("sleep"), adjunct=kitchen, front=Front.PLACE)

    assert both(Sentence(clause=replace(read, front=Front.TIME))) == (
        "Today the man has read the book.",
        "Heute hat der Mann das Buch gelesen.",
    )
    assert both(Sentence(clause=read)) == (
        "The man has read the book today.",
        "Der Mann hat heute das Buch gelesen.",
    )
    assert both(Sentence(clause=sleeps)) == (
        "In the kitchen the man sleeps.",
        "In der Küche schläft der Mann.",
    )


def test_denial_is_nicht_or_kein() -> None:
    buys = Clause(subject=Pronoun.HE, verb=verb("buy"), object=THE_BOOK, negated=True)
    a_book = phrase(Determiner.A, "new book")
    books = phrase(Determiner.A, "book", Number.PLURAL)

    assert both(Sentence(clause=buys)) == (
        "He does not buy the book.",
        "Er kauft das Buch nicht.",
    )
    assert both(Sentence(clause=replace(buys, mode=Mode.CAN))) == (
        "He cannot buy the book.",
        "Er kann das Buch nicht kaufen.",
    )
    assert both(Sentence(clause=replace(buys, object=a_book))) == (
        "He does not buy a new book.",
        "Er kauft kein neues Buch.",
    )
    assert both(Sentence(clause=replace(buys, object=books, mode=Mode.PERFECT))) == (
        "He has not bought any books.",
        "Er hat keine Bücher gekauft.",
    )


def test_questions_invert_and_ask_in_the_right_case() -> None:
    helps = Clause(subject=phrase(Determiner.THE, "teacher"), verb=verb("help"), object=Pronoun.WHO)
    which = replace(OPENS, object=phrase(Determiner.WHICH, "window"), mode=Mode.PERFECT)
    arrives = Clause(subject=phrase(Determiner.THE, "train"), verb=verb("arrive"), asks=Ask.WHEN)

    assert both(Sentence(clause=OPENS, form=Form.QUESTION)) == (
        "Does the man open the door?",
        "Macht der Mann die Tür auf?",
    )
    assert both(Sentence(clause=helps, form=Form.QUESTION)) == (
        "Whom does the teacher help?",
        "Wem hilft der Lehrer?",
    )
    assert both(Sentence(clause=which, form=Form.QUESTION)) == (
        "Which window has the man opened?",
        "Welches Fenster hat der Mann aufgemacht?",
    )
    assert both(Sentence(clause=arrives, form=Form.QUESTION)) == (
        "When does the train arrive?",
        "Wann kommt der Zug an?",
    )


def test_relative_pronoun_agrees_with_its_noun_in_the_case_of_its_clause() -> None:
    people = phrase(Determiner.THE, "child", Number.PLURAL)
    trusts = Clause(
        subject=Pronoun.SHE, verb=verb("trust"), object=Relative(people.noun, people.number)
    )
    tired = Clause(
        subject=replace(people, relative=trusts),
        verb=verbs.BE,
        predicate=Quality(adjective("tired")),
    )

    assert both(Sentence(clause=tired)) == (
        "The children whom she trusts are tired.",
        "Die Kinder, denen sie vertraut, sind müde.",
    )


@pytest.mark.parametrize(("thing", "pronoun"), [("hat", "er"), ("lamp", "sie"), ("radio", "es")])
def test_it_follows_the_gender_of_the_thing(thing: str, pronoun: str) -> None:
    what = phrase(Determiner.THE, thing)
    sells = Clause(subject=Pronoun.I, verb=verb("sell"), object=what)
    old = Clause(
        subject=Echo(what.noun, what.number),
        verb=verbs.BE,
        predicate=Quality(adjective("old")),
    )
    sentence = Sentence(clause=sells, after=Subordinate(Conjunction.BECAUSE, old))

    assert english.sentence(sentence) == f"I sell the {thing} because it is old."
    assert german.sentence(sentence).endswith(f", weil {pronoun} alt ist.")


def test_clause_before_puts_the_finite_verb_first() -> None:
    sick = Clause(subject=THE_MAN, verb=verbs.BE, predicate=Quality(adjective("sick")))
    clause = Clause(subject=Pronoun.HE, verb=verb("sleep"), mode=Mode.SHOULD)

    assert both(Sentence(clause=clause, before=Subordinate(Conjunction.IF, sick))) == (
        "If the man is sick, he should sleep.",
        "Wenn der Mann krank ist, sollte er schlafen.",
    )


def test_comparison_and_english_articles() -> None:
    longer = Clause(
        subject=phrase(Determiner.THE, "story"),
        verb=verbs.BE,
        predicate=Comparison(adjective("long"), phrase(Determiner.A, "poem")),
    )

    assert both(Sentence(clause=longer)) == (
        "The story is longer than a poem.",
        "Die Geschichte ist länger als ein Gedicht.",
    )
    assert english.noun_phrase(phrase(Determiner.A, "old hat")) == "an old hat"
    assert english.noun_phrase(phrase(Determiner.A, "small umbrella")) == "a small umbrella"
    assert english.noun_phrase(phrase(Determiner.THIS, "story", Number.PLURAL)) == "these stories"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate()


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    paths = sorted(DATA.glob("*.en")) + sorted(DATA.glob("*.de"))
    return {path.name: path.read_text(encoding="utf-8").splitlines() for path in paths}


@pytest.mark.slow
def test_files_are_what_the_command_writes(corpus: Corpus) -> None:
    for name, text in make_demo_corpus.contents(corpus).items():
        assert (DATA / name).read_bytes() == text.encode(), f"{name} is stale"


def test_no_sentence_comes_back_on_either_side(files: dict[str, list[str]]) -> None:
    for language, num in (("en", 21_000), ("de", 21_000)):
        sentences = [line for split in SPLITS for line in files[f"{split}.{language}"]]

        assert len(sentences) == len(set(sentences)) == num


def test_test_forms_are_common_in_training(files: dict[str, list[str]]) -> None:
    for language in ("en", "de"):
        counts = Counter(form for line in files[f"train.{language}"] for form in forms(line))
        rare = {
            form
            for split in ("valid", "test")
            for line in files[f"{split}.{language}"]
            for form in forms(line)
            if counts[form] < MIN_FORM_COUNT
        }

        assert not rare


@pytest.mark.slow
def test_held_out_combinations_are_in_the_test_only(corpus: Corpus) -> None:
    known = {one for pair in (*corpus.train, *corpus.valid) for one in pair.combinations}
    news = [pair for pair in corpus.test if pair.combinations - known]

    assert not any(one.is_held_out() for one in known)
    assert sum(pair.has_held_out for pair in corpus.test) == NUM_UNSEEN
    assert len(news) >= NUM_UNSEEN


def test_combinations_reach_into_every_clause() -> None:
    dog = phrase(Determiner.THE, "black dog")
    sees = Clause(subject=THE_MAN, verb=verb("see"), object=Relative(dog.noun, dog.number))
    sleeps = Clause(subject=replace(dog, relative=sees), verb=verb("sleep"))

    found = combinations(Sentence(clause=sleeps))

    assert {(one.relation, one.word, one.noun) for one in found} == {
        ("describes", "black", "dog"),
        ("does", "see", "man"),
        ("is done to", "see", "dog"),
        ("does", "sleep", "dog"),
    }


def test_lexicon_gives_each_english_content_word_one_german() -> None:
    meanings: dict[str, set[str]] = {}
    for one in nouns.NOUNS:
        for form in {one.english, english.plural(one)}:
            meanings.setdefault(form, set()).add(one.german)
    for quality in ADJECTIVES:
        meanings.setdefault(quality.english, set()).add(quality.german)
    for action in verbs.VERBS:
        for form in (action.english.base, action.english.third, action.english.participle):
            # The prefix is what tells `switch on` from `switch off`.
            meanings.setdefault(form, set()).add(action.german.infinitive)

    assert {form: found for form, found in meanings.items() if len(found) > 1} == {}


def test_weighted_dice_keep_to_the_weights() -> None:
    dice = Dice(seed=7)
    counts = Counter(dice.weighted({"a": 3, "b": 1, "c": 0}) for _ in range(4000))

    assert counts["c"] == 0
    assert counts["a"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_baseline_looks_up_the_longest_phrase() -> None:
    source = ["The dog sleeps.", "The cat sleeps.", "The dog eats.", "A cat eats."]
    target = ["Der Hund schläft.", "Die Katze schläft.", "Der Hund frisst.", "Eine Katze frisst."]
    table = baseline.PhraseTable(source, target)

    assert table.translate("The cat eats.") == "Die Katze frisst."
    assert table.translate("The dog barks.") == "Der Hund barks."


def test_baseline_scores_itself_with_sacrebleu() -> None:
    lines = ["Der Hund schläft im Garten.", "Die Katze frisst."]
    score, signature = baseline.bleu(lines, lines)

    assert score == pytest.approx(100)
    assert "tok:13a" in signature
    assert "case:mixed" in signature


def test_command_writes_six_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair("The dog sleeps in the garden.", "Der Hund schläft im Garten.", frozenset())
    few = Corpus((pair,), (pair,), (pair,))
    monkeypatch.setattr(make_demo_corpus, "generate", lambda: few)

    make_demo_corpus.main(["--output", str(tmp_path / "new")])

    written = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert written == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    assert "phrase-lookup baseline on the test: BLEU" in capsys.readouterr().out
