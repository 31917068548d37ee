"""Picks noun phrases that fit their place."""

from dataclasses import replace
from functools import cache
from typing import Literal, TypeAlias

from demo_corpus import nouns
from demo_corpus.adjectives import ADJECTIVES
from demo_corpus.dice import Dice
from demo_corpus.lexicon import Adjective, Case, Gender, Kind, Noun, Number, Preposition, Verb
from demo_corpus.meaning import (
    NUMERALS,
    POSSESSIVES,
    Determiner,
    Nominal,
    NounPhrase,
    Pronoun,
)

Role: TypeAlias = Literal["subject", "object", "definite"]

SUBJECTS = (Pronoun.I, Pronoun.HE, Pronoun.SHE, Pronoun.WE, Pronoun.THEY)
# `sie` would be both `her` and `them`, so `them` is kept for the dative (ihnen).
_ACCUSATIVES = (Pronoun.I, Pronoun.HE, Pronoun.SHE, Pronoun.WE)
_FIRST_PERSONS = (Pronoun.I, Pronoun.WE)

# MY stands for any possessive here, TWO for any numeral.
# fmt: off
_DETERMINERS: dict[tuple[Role, Number], dict[Determiner, float]] = {
    ("subject", Number.SINGULAR): {
        Determiner.THE: 50, Determiner.MY: 20, Determiner.THIS: 10, Determiner.A: 7,
        Determiner.EVERY: 6, Determiner.NO: 4,
    },
    ("subject", Number.PLURAL): {
        Determiner.THE: 40, Determiner.MY: 20, Determiner.THIS: 12, Determiner.MANY: 10,
        Determiner.ALL: 8, Determiner.TWO: 14,
    },
    ("object", Number.SINGULAR): {
        Determiner.THE: 40, Determiner.A: 30, Determiner.MY: 20, Determiner.THIS: 10,
    },
    ("object", Number.PLURAL): {
        Determiner.THE: 35, Determiner.A: 22, Determiner.MY: 15, Determiner.THIS: 10,
        Determiner.MANY: 8, Determiner.TWO: 14,
    },
    ("definite", Number.SINGULAR): {
        Determiner.THE: 60, Determiner.MY: 25, Determiner.THIS: 15,
    },
    ("definite", Number.PLURAL): {
        Determiner.THE: 60, Determiner.MY: 25, Determiner.THIS: 15,
    },
}
# fmt: on


@cache
def nouns_of(kinds: Kind) -> tuple[Noun, ...]:
    """The nouns of any of these kinds."""
    return tuple(noun for noun in nouns.NOUNS if noun.kinds & kinds)


@cache
def _nouns_besides(kinds: Kind, besides: Noun | None) -> tuple[Noun, ...]:
    return tuple(noun for noun in nouns_of(kinds) if noun is not besides)


@cache
def adjectives_for(kinds: Kind) -> tuple[Adjective, ...]:
    """The adjectives for nouns of these kinds."""
    return tuple(adjective for adjective in ADJECTIVES if adjective.kinds & kinds)


def noun_of(what: Nominal | None) -> Noun | None:
    """The noun, which pronouns lack."""
    return None if what is None or isinstance(what, Pronoun) else what.noun


def is_definite(what: Nominal | None) -> bool:
    """Whether it is clear who or what is meant, so that a denial has one reading."""
    return not isinstance(what, NounPhrase) or what.determiner in (
        Determiner.THE,
        Determiner.THIS,
        *POSSESSIVES,
    )


def _may_be_bare(phrase: NounPhrase) -> bool:
    """Whether the phrase could stand without a determiner: letters, milk."""
    return phrase.number is Number.PLURAL or phrase.noun.german_plural is None


def not_hers(phrase: NounPhrase) -> NounPhrase:
    """No `buys her shoes`, which could be shoes for her."""
    ambiguous = phrase.determiner is Determiner.HER and _may_be_bare(phrase)
    if ambiguous and not phrase.noun.kinds & Kind.PERSON:
        return replace(phrase, determiner=Determiner.HIS)
    return phrase


def opens_plainly(phrase: NounPhrase) -> bool:
    """Whether nobody would read a preceding `her` as the phrase's own."""
    if phrase.determiner is Determiner.A:
        return not _may_be_bare(phrase)
    return phrase.determiner not in (Determiner.HER, Determiner.MANY, *NUMERALS)


class Phrases:
    """Makes up noun phrases and pronouns."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    def phrase(
        self,
        kinds: Kind,
        role: Role,
        *,
        besides: Noun | None = None,
        adjective: float = 0.5,
    ) -> NounPhrase:
        """A phrase around some noun of these kinds, described as often as `adjective` says."""
        noun = self._dice.pick(_nouns_besides(kinds, besides))
        phrase = self.phrase_of(noun, role, adjective=adjective)
        ownable = not noun.kinds & (Kind.UNOWNED | Kind.PLACE | Kind.WEATHER)
        if ownable and is_definite(phrase) and self._dice.chance(0.35):
            owner = self._dice.pick(_nouns_besides(Kind.PERSON, besides))
            phrase = replace(phrase, determiner=Determiner.THE, owner=self._owner(owner))
        return phrase

    def phrase_of(self, noun: Noun, role: Role, *, adjective: float = 0.5) -> NounPhrase:
        """A phrase around a noun."""
        plural = noun.german_plural is not None and self._dice.chance(0.3)
        number = Number.PLURAL if plural else Number.SINGULAR
        determiner = self._determiner(noun, role, number)
        return NounPhrase(determiner, noun, number, self._description(noun, adjective))

    def _description(self, noun: Noun, probability: float) -> tuple[Adjective, ...]:
        """No adjective, one, or two of which the second is of age or colour."""
        fitting = adjectives_for(noun.kinds)
        if not fitting or not self._dice.chance(probability):
            return ()
        outer = [adjective for adjective in fitting if not adjective.inner]
        inner = [adjective for adjective in fitting if adjective.inner]
        if outer and inner and self._dice.chance(0.45):
            return self._dice.pick(outer), self._dice.pick(inner)
        return (self._dice.pick(fitting),)

    def _determiner(self, noun: Noun, role: Role, number: Number) -> Determiner:
        if noun.kinds & Kind.KIN:
            return self._dice.pick(POSSESSIVES)
        if noun.kinds & Kind.WEATHER:
            return Determiner.THE
        weights = dict(_DETERMINERS[role, number])
        if noun.kinds & Kind.UNOWNED:
            del weights[Determiner.MY]
        if noun.kinds & Kind.PLACE or (noun.german_plural is None and role == "subject"):
            weights = {Determiner.THE: 85, Determiner.THIS: 15}
        choice = self._dice.weighted(weights)
        if choice is Determiner.MY:
            return self._dice.pick(POSSESSIVES)
        return self._dice.pick(NUMERALS) if choice is Determiner.TWO else choice

    def _owner(self, noun: Noun) -> NounPhrase:
        determiner = self._determiner(noun, "definite", Number.SINGULAR)
        return NounPhrase(determiner, noun, adjectives=self._description(noun, 0.2))

    def somebody(self, role: Role = "subject", *, besides: Noun | None = None) -> Nominal:
        """A person; as a subject now and then a pronoun."""
        if role == "subject" and self._dice.chance(0.3):
            return self._dice.pick(SUBJECTS)
        return self.phrase(Kind.PERSON, role, besides=besides)

    def person(self, *, besides: Noun | None = None) -> Nominal:
        """A pronoun or a definite person."""
        if self._dice.chance(0.35):
            return self._dice.pick(SUBJECTS)
        return self.somebody("definite", besides=besides)

    def subject_of(self, verb: Verb, role: Role) -> Nominal:
        """A subject that the verb can have, most often a person."""
        if verb.subjects & Kind.PERSON and self._dice.chance(0.75):
            return self.somebody(role)
        return self.phrase(verb.subjects, role)

    def object_of(self, verb: Verb, subject: Nominal, role: Role) -> Nominal:
        """An object, now and then a pronoun, never the subject once more."""
        if verb.objects & Kind.PERSON and self._dice.chance(0.3):
            return self.pronoun(subject, dative=self._governs_dative(verb))
        return not_hers(self.phrase(verb.objects, role, besides=noun_of(subject)))

    def pronoun(self, subject: Nominal, *, dative: bool) -> Pronoun:
        """A pronoun as object, for somebody else than the subject."""
        choices = [
            pronoun
            for pronoun in (SUBJECTS if dative else _ACCUSATIVES)
            if pronoun is not subject
            and not (pronoun in _FIRST_PERSONS and subject in _FIRST_PERSONS)
        ]
        return self._dice.pick(choices)

    @staticmethod
    def _governs_dative(verb: Verb) -> bool:
        government = verb.government
        case = government.case if isinstance(government, Preposition) else government
        return case is Case.DATIVE

    @staticmethod
    def echo(person: Nominal) -> Nominal | None:
        """The pronoun that takes a person up again; None for `das Kind`: it, she or he?"""
        if isinstance(person, Pronoun):
            return person
        if person.number is Number.PLURAL:
            return Pronoun.THEY
        pronouns = {Gender.MASCULINE: Pronoun.HE, Gender.FEMININE: Pronoun.SHE}
        if isinstance(person, NounPhrase) and not is_definite(person):
            return None
        return pronouns.get(person.noun.gender)
