"""Word combinations kept from training, so that the test asks for more than memory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from demo_corpus.lexicon import Frame, Noun
from demo_corpus.meaning import (
    Clause,
    Comparison,
    Identity,
    Infinitive,
    Nominal,
    NounPhrase,
    PrepositionalPhrase,
    Pronoun,
    Purpose,
    Quality,
    Sentence,
    Subordinate,
)

Relation: TypeAlias = Literal["describes", "is done to", "does"]

# Of 256; about one combination in eighteen.
_HELD_OUT = 14


@dataclass(frozen=True)
class Combination:
    """Two words that meet: an adjective or verb, and its noun, by their English base form."""

    relation: Relation
    word: str
    noun: str

    def is_held_out(self) -> bool:
        """Whether training never sees the two together; a hash decides, so nothing is stored."""
        name = f"{self.relation} {self.word} {self.noun}"
        return hashlib.sha256(name.encode()).digest()[0] < _HELD_OUT


def combinations(sentence: Sentence) -> frozenset[Combination]:
    """All combinations in a sentence, those of its relative and other clauses included."""
    return frozenset(_within(sentence))


def _within(part: object) -> Iterator[Combination]:
    match part:
        case NounPhrase():
            for adjective in part.adjectives:
                yield Combination("describes", adjective.english, part.noun.english)
        case Clause():
            yield from _of_clause(part)
    for member in _members(part):
        yield from _within(member)


def _members(part: object) -> tuple[object, ...]:
    """The parts of a meaning that hold meanings themselves."""
    match part:
        case tuple():
            return part
        case Sentence():
            return part.clause, part.before, part.after, part.joined
        case Clause():
            return (
                part.subject,
                part.object,
                part.indirect,
                part.predicate,
                part.adjunct,
                part.complement,
            )
        case NounPhrase():
            return part.owner, part.relative
        case Subordinate() | Infinitive() | Purpose():
            return (part.clause,)
        case PrepositionalPhrase() | Identity():
            return (part.phrase,)
        case Comparison():
            return (part.standard,)
        case _:
            return ()


def _of_clause(clause: Clause) -> Iterator[Combination]:
    subject, verb = _noun(clause.subject), clause.verb
    match clause.predicate:
        case Quality(adjective) | Comparison(adjective) if subject is not None:
            yield Combination("describes", adjective.english, subject.english)
    if verb.frame is Frame.COPULA:
        return
    name = " ".join(filter(None, (verb.english.base, verb.english.particle)))
    if subject is not None:
        yield Combination("does", name, subject.english)
    for what in (clause.object, clause.indirect):
        noun = _noun(what)
        if noun is not None:
            yield Combination("is done to", name, noun.english)


def _noun(what: Nominal | None) -> Noun | None:
    return None if what is None or isinstance(what, Pronoun) else what.noun
