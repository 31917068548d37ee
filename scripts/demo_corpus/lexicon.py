"""The types of words: what the grammars need to know about each.

Nouns, adjectives and verbs are compared by identity: each is entered once.
"""

from dataclasses import dataclass
from enum import Enum, Flag, auto


class Gender(Enum):
    """Grammatical gender of a German noun."""

    MASCULINE = "m"
    FEMININE = "f"
    NEUTER = "n"


class Case(Enum):
    """The German cases."""

    NOMINATIVE = "nominative"
    ACCUSATIVE = "accusative"
    DATIVE = "dative"
    GENITIVE = "genitive"


class Number(Enum):
    """Grammatical number."""

    SINGULAR = "singular"
    PLURAL = "plural"


class Kind(Flag):
    """What a noun stands for, so that nobody eats a table."""

    PERSON = auto()
    ADULT = auto()
    CHILD = auto()
    PROFESSION = auto()
    ROYAL = auto()
    UNOWNED = auto()
    KIN = auto()
    ANIMAL = auto()
    SMALL_ANIMAL = auto()
    FRUIT = auto()
    FOOD = auto()
    MEAL = auto()
    DRINK = auto()
    TEXT = auto()
    MANUSCRIPT = auto()
    THING = auto()
    FLAT = auto()
    UPRIGHT = auto()
    TOY = auto()
    DEVICE = auto()
    MACHINE = auto()
    CONTAINER = auto()
    DOOR = auto()
    CLOTHING = auto()
    FURNITURE = auto()
    VEHICLE = auto()
    TRANSPORT = auto()
    PLACE = auto()
    ROOM = auto()
    SIGHT = auto()
    SHOP = auto()
    SEAT = auto()
    SUMMIT = auto()
    FAR = auto()
    WEATHER = auto()


@dataclass(frozen=True)
class Preposition:
    """A preposition in a fixed sense, with the German case that it governs."""

    english: str
    german: str
    case: Case


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun.

    Attributes:
        german_plural: None for what is not counted, such as milk.
        english_plural: Only where the spelling rules do not give it.
        weak: n-declension; the oblique singular then equals the plural (den Studenten).
        location: How one is there (in, on, at ...); places only.
        direction: How one goes there (into, to, onto); places only.
    """

    english: str
    german: str
    gender: Gender
    german_plural: str | None
    kinds: Kind
    english_plural: str | None = None
    weak: bool = False
    location: Preposition | None = None
    direction: Preposition | None = None


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective.

    Attributes:
        kinds: The nouns that it may describe.
        stem: What German endings are added to, where it is not the word (teuer, teur-).
        comparative: English and German comparative, where comparisons make sense.
        state: Passing, so that it can be a reason or a condition (tired, hungry).
        gradable: Goes with `very`; colours do not.
        inner: May stand between another adjective and the noun, as age and colour do.
        fault: There is too much of it: too expensive, but not too fresh.
    """

    english: str
    german: str
    kinds: Kind
    stem: str | None = None
    comparative: tuple[str, str] | None = None
    state: bool = False
    gradable: bool = True
    fault: bool = False
    inner: bool = False


@dataclass(frozen=True)
class EnglishVerb:
    """Principal parts: open, opens, opened; a particle moves behind a pronoun (pick him up)."""

    base: str
    third: str
    participle: str
    particle: str | None = None
    preposition: str | None = None


@dataclass(frozen=True)
class GermanVerb:
    """Principal parts: machen, macht, aufgemacht; the prefix (auf) is kept apart."""

    infinitive: str
    third: str
    participle: str
    auxiliary: str
    prefix: str | None = None


class Frame(Enum):
    """What a verb wants beside its subject."""

    ALONE = "alone"
    OBJECT = "object"
    TWO_OBJECTS = "two objects"
    LOCATION = "location"
    DIRECTION = "direction"
    PLACEMENT = "placement"
    COPULA = "copula"
    CLAUSE = "clause"
    INFINITIVE = "infinitive"


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages, with what it selects.

    Attributes:
        government: Case of the German object, or the preposition before it in both languages.
        manners: English names of the adverbs of manner that fit.
        only_present: No perfect, future or modal, because German usage varies there.
    """

    english: EnglishVerb
    german: GermanVerb
    frame: Frame
    subjects: Kind
    objects: Kind
    government: Case | Preposition
    manners: tuple[str, ...] = ()
    only_present: bool = False


@dataclass(frozen=True)
class Adverb:
    """An adverb; `late` ones follow the German object (hat das Buch schon gelesen)."""

    english: str
    german: str
    late: bool = False


@dataclass(frozen=True)
class TimeExpression:
    """A time, ready made in both languages (every morning, jeden Morgen)."""

    english: str
    german: str
