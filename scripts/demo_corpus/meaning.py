"""What a sentence says, before any language: the tree that both grammars read."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from demo_corpus.lexicon import (
    Adjective,
    Adverb,
    Kind,
    Noun,
    Number,
    Preposition,
    TimeExpression,
    Verb,
)


class Determiner(Enum):
    """How a noun phrase opens; A with a plural or an uncounted noun is the bare noun."""

    THE = "the"
    A = "a"
    THIS = "this"
    EVERY = "every"
    NO = "no"
    ALL = "all"
    MANY = "many"
    MY = "my"
    HIS = "his"
    HER = "her"
    OUR = "our"
    TWO = "two"
    THREE = "three"
    FOUR = "four"
    FIVE = "five"
    TEN = "ten"
    WHICH = "which"
    HOW_MANY = "how many"


NUMERALS = (Determiner.TWO, Determiner.THREE, Determiner.FOUR, Determiner.FIVE, Determiner.TEN)
POSSESSIVES = (Determiner.MY, Determiner.HIS, Determiner.HER, Determiner.OUR)


class Agreement(Enum):
    """What a finite verb agrees with; both languages have one plural form without `you`."""

    FIRST_SINGULAR = "I"
    THIRD_SINGULAR = "he"
    PLURAL = "they"


class Pronoun(Enum):
    """Personal and interrogative pronouns. IT stands for the weather only; see Echo."""

    I = "I"  # noqa: E741
    HE = "he"
    SHE = "she"
    WE = "we"
    THEY = "they"
    IT = "it"
    WHO = "who"
    WHAT = "what"


@dataclass(frozen=True)
class Relative:
    """The relative pronoun for an antecedent: who, which; der, die, das."""

    noun: Noun
    number: Number


@dataclass(frozen=True)
class Echo:
    """`it` or `they` for a thing named earlier in the sentence: er, sie, es by its gender."""

    noun: Noun
    number: Number


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjectives, noun and perhaps a relative clause.

    Attributes:
        owner: One person in the genitive (my brother's dog, der Hund meines Bruders); the
            determiner is then THE.
    """

    determiner: Determiner
    noun: Noun
    number: Number = Number.SINGULAR
    adjectives: tuple[Adjective, ...] = ()
    owner: "NounPhrase | None" = None
    relative: "Clause | None" = None


Nominal: TypeAlias = NounPhrase | Pronoun | Relative | Echo


class Mode(Enum):
    """Tense or modal; each is one fixed construction in each language."""

    PRESENT = "present"
    PERFECT = "perfect"
    FUTURE = "will"
    CAN = "can"
    MUST = "must"
    SHOULD = "should"
    WANT = "want to"
    ALLOWED = "be allowed to"


@dataclass(frozen=True)
class PrepositionalPhrase:
    """A place, a direction or whom something is for."""

    preposition: Preposition
    phrase: NounPhrase


@dataclass(frozen=True)
class Quality:
    """A predicate adjective, perhaps with `very` or `too` before it."""

    adjective: Adjective
    degree: Adverb | None = None


@dataclass(frozen=True)
class Comparison:
    """A comparative with what it is compared to."""

    adjective: Adjective
    standard: NounPhrase


@dataclass(frozen=True)
class Identity:
    """A predicate noun: (is) a good doctor."""

    phrase: NounPhrase


Predicate: TypeAlias = Quality | Comparison | Identity


class Ask(Enum):
    """Question adverbs."""

    WHERE = "where"
    WHEN = "when"
    WHY = "why"
    HOW_OFTEN = "how often"


class Conjunction(Enum):
    """What opens a subordinate clause."""

    BECAUSE = "because"
    ALTHOUGH = "although"
    IF = "if"
    THAT = "that"
    WHETHER = "whether"
    WHY = "why"
    WHEN = "when"
    WHERE = "where"


class Link(Enum):
    """What joins two main clauses."""

    AND = "and"
    BUT = "but"


@dataclass(frozen=True)
class Subordinate:
    """A subordinate clause with its conjunction."""

    conjunction: Conjunction
    clause: "Clause"


class Front(Enum):
    """What opens a statement; anything but the subject inverts the German one."""

    SUBJECT = "subject"
    TIME = "time"
    PLACE = "place"


@dataclass(frozen=True)
class Purpose:
    """A clause of purpose (in order to, um ... zu); its subject is understood."""

    clause: "Clause"


@dataclass(frozen=True)
class Infinitive:
    """An infinitive clause (to open the door); its subject is understood."""

    clause: "Clause"


@dataclass(frozen=True, kw_only=True)
class Clause:
    """A verb and what goes with it.

    Attributes:
        adverb: Between subject and verb in English (often, already).
        adjunct: Place, direction or beneficiary.
        asks: The question adverb that opens the clause.
        complement: A clause that the verb calls for.
    """

    subject: Nominal
    verb: Verb
    mode: Mode = Mode.PRESENT
    negated: bool = False
    indirect: Nominal | None = None
    object: Nominal | None = None
    predicate: Predicate | None = None
    adverb: Adverb | None = None
    manner: Adverb | None = None
    adjunct: PrepositionalPhrase | None = None
    time: TimeExpression | None = None
    front: Front = Front.SUBJECT
    asks: Ask | None = None
    complement: Subordinate | Infinitive | None = None


class Form(Enum):
    """Statement or question."""

    STATEMENT = "."
    QUESTION = "?"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A main clause with what surrounds it."""

    clause: Clause
    form: Form = Form.STATEMENT
    before: Subordinate | None = None
    after: Subordinate | Purpose | None = None
    joined: tuple[Link, Clause] | None = None


def agreement(nominal: Nominal) -> Agreement:
    """Person and number that the finite verb takes."""
    if isinstance(nominal, Pronoun):
        if nominal is Pronoun.I:
            return Agreement.FIRST_SINGULAR
        plural = nominal in (Pronoun.WE, Pronoun.THEY)
    else:
        plural = nominal.number is Number.PLURAL
    return Agreement.PLURAL if plural else Agreement.THIRD_SINGULAR


def is_interrogative(nominal: Nominal | None) -> bool:
    """Whether the nominal is what a question asks for."""
    if isinstance(nominal, NounPhrase):
        return nominal.determiner in (Determiner.WHICH, Determiner.HOW_MANY)
    return nominal in (Pronoun.WHO, Pronoun.WHAT)


def is_personal(noun: Noun) -> bool:
    """Whether English says `who` rather than `which`."""
    return bool(noun.kinds & Kind.PERSON)
