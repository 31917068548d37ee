"""Thinks of something to say: random meanings that make sense."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

from demo_corpus import nouns, verbs
from demo_corpus import prepositions as prep
from demo_corpus.clauses import TOO, UNWILLED, VERY, Clauses
from demo_corpus.dice import Dice
from demo_corpus.lexicon import Frame, Gender, Kind, Number
from demo_corpus.meaning import (
    Ask,
    Clause,
    Comparison,
    Conjunction,
    Determiner,
    Echo,
    Form,
    Front,
    Identity,
    Infinitive,
    Link,
    Mode,
    Nominal,
    NounPhrase,
    Pronoun,
    Purpose,
    Quality,
    Relative,
    Sentence,
    Subordinate,
)
from demo_corpus.phrases import Phrases, adjectives_for, not_hers, noun_of, nouns_of

Gap: TypeAlias = Literal["subject", "object"]

# With a judgement on the thing these give a reason: she sells the car because it is too old.
_JUDGING = frozenset({"buy", "read", "eat", "drink", "wear", "sell", "throw"})
_REJECTING = frozenset({"sell", "throw"})

_COMPARABLE = (
    Kind.ANIMAL,
    Kind.VEHICLE,
    Kind.CLOTHING,
    Kind.FURNITURE,
    Kind.TEXT,
    Kind.FRUIT,
    Kind.ADULT,
    Kind.MACHINE,
    Kind.SIGHT,
)


class Author:
    """Makes up sentences, one after another."""

    def __init__(self, seed: int) -> None:
        self._dice = Dice(seed)
        self._phrases = Phrases(self._dice)
        self._clauses = Clauses(self._dice, self._phrases)
        self._patterns: dict[Callable[[], Sentence], float] = {
            self._event: 46,
            self._quality: 1,
            self._comparison: 1,
            self._identity: 1,
            self._polar_question: 8,
            self._asking_who: 3,
            self._asking_how: 5,
            self._asking_for_object: 7,
            self._opinion: 5,
            self._indirect_question: 4,
            self._reason: 4,
            self._condition: 9,
            self._judgement: 4,
            self._relative_to_subject: 6,
            self._relative_to_object: 4,
            self._attempt: 4,
            self._purpose: 8,
            self._coordination: 4,
        }

    def sentence(self) -> Sentence:
        """Something new, though perhaps not for the first time."""
        return self._dice.weighted(self._patterns)()

    def _event(self) -> Sentence:
        clause = self._clauses.action()
        if self._dice.chance(0.25):
            clause = self._clauses.negated(clause)
        if self._is_scene(clause) and self._dice.chance(0.5):
            clause = replace(clause, front=Front.PLACE)
        elif self._dice.chance(0.75):
            # At the end of a denial a time would leave open what is denied.
            clause = self._clauses.timed(clause, first=1.0 if clause.negated else 0.5)
        elif not clause.negated and self._dice.chance(0.4):
            clause = self._clauses.with_adverb(clause)
        if clause.verb is verbs.HAVE and self._dice.chance(0.4):
            assert isinstance(clause.object, NounPhrase)
            nothing = replace(clause.object, determiner=Determiner.NO, owner=None)
            clause = replace(clause, object=nothing)
        return Sentence(clause=clause)

    @staticmethod
    def _is_scene(clause: Clause) -> bool:
        """Whether the adjunct only says where, so that it may open the sentence."""
        return (
            clause.verb.frame in (Frame.ALONE, Frame.OBJECT)
            and clause.adjunct is not None
            and clause.adjunct.preposition is not prep.FOR
        )

    def _quality(self) -> Sentence:
        describable = [noun for noun in nouns.NOUNS if adjectives_for(noun.kinds)]
        subject = self._phrases.phrase_of(self._dice.pick(describable), "definite", adjective=0)
        return Sentence(clause=self._clauses.described(subject))

    def _comparison(self) -> Sentence:
        kinds = self._dice.pick(_COMPARABLE)
        subject = self._phrases.phrase(kinds, "definite", adjective=0)
        standard = self._phrases.phrase(kinds, "definite", adjective=0, besides=subject.noun)
        shared = subject.noun.kinds & standard.noun.kinds
        adjectives = [adjective for adjective in adjectives_for(shared) if adjective.comparative]
        clause = Clause(
            subject=subject,
            verb=verbs.BE,
            predicate=Comparison(self._dice.pick(adjectives), standard),
        )
        return Sentence(clause=clause)

    def _identity(self) -> Sentence:
        gender = self._dice.pick((Gender.MASCULINE, Gender.MASCULINE, Gender.FEMININE))
        people = [noun for noun in (nouns.MAN, nouns.WOMAN, *nouns.KIN) if noun.gender is gender]
        subject = self._phrases.phrase_of(self._dice.pick(people), "definite", adjective=0.2)
        jobs = [noun for noun in nouns_of(Kind.PROFESSION) if noun.gender is gender]
        job = self._dice.pick(jobs)
        identity = NounPhrase(
            Determiner.A, job, subject.number, (self._dice.pick(adjectives_for(Kind.PROFESSION)),)
        )
        return Sentence(clause=Clause(subject=subject, verb=verbs.BE, predicate=Identity(identity)))

    def _polar_question(self) -> Sentence:
        clause = self._clauses.action(role="definite")
        if self._dice.chance(0.3):
            clause = self._clauses.timed(clause, first=0)
        elif self._dice.chance(0.3):
            clause = self._clauses.with_adverb(clause)
        return Sentence(clause=clause, form=Form.QUESTION)

    def _asking_who(self) -> Sentence:
        return Sentence(clause=self._clauses.action(Pronoun.WHO), form=Form.QUESTION)

    def _asking_how(self) -> Sentence:
        """Where, when, why, how often."""
        asks = self._dice.weighted({Ask.WHY: 4, Ask.WHEN: 2, Ask.WHERE: 2, Ask.HOW_OFTEN: 2})
        match asks:
            case Ask.WHY:
                clause = self._clauses.short_action()
            case Ask.WHERE:
                clause = self._clauses.whereabouts()
            case Ask.WHEN:
                clause = self._clauses.arrival()
            case _:
                verb = self._dice.pick((*verbs.OBJECT, *verbs.DATIVE))
                subject = self._phrases.subject_of(verb, "definite")
                what = self._phrases.object_of(verb, subject, "definite")
                clause = Clause(subject=subject, verb=verb, object=what)
        return Sentence(clause=replace(clause, asks=asks), form=Form.QUESTION)

    def _asking_for_object(self) -> Sentence:
        """What, whom, which ... and how many ..."""
        groups = (*verbs.OBJECT, *verbs.DATIVE)
        verb = self._dice.pick([one for one in groups if one.english.preposition is None])
        what = self._phrases.phrase(verb.objects, "definite", adjective=0.35)
        if what.noun.german_plural is None or self._dice.chance(0.5):
            asked: Nominal = Pronoun.WHO if what.noun.kinds & Kind.PERSON else Pronoun.WHAT
            # `What` asks for no animal; people say `which animal`.
            if what.noun.kinds & Kind.ANIMAL:
                asked = replace(what, determiner=Determiner.WHICH, owner=None)
        elif what.number is Number.PLURAL:
            asked = replace(what, determiner=Determiner.HOW_MANY, owner=None)
        else:
            asked = replace(what, determiner=Determiner.WHICH, owner=None)
        subject = self._phrases.person(besides=what.noun)
        mode = self._clauses.mode(verb, subject)
        clause = Clause(subject=subject, verb=verb, mode=mode, object=asked)
        return Sentence(clause=clause, form=Form.QUESTION)

    def _opinion(self) -> Sentence:
        verb = self._dice.pick(verbs.OPINION)
        speaker = self._phrases.somebody("subject" if self._dice.chance(0.5) else "definite")
        subject = self._phrases.echo(speaker) if self._dice.chance(0.3) else None
        thought = Subordinate(Conjunction.THAT, self._clauses.short_action(subject))
        return Sentence(clause=Clause(subject=speaker, verb=verb, complement=thought))

    def _indirect_question(self) -> Sentence:
        knows = self._dice.chance(0.5)
        speaker = self._phrases.person()
        conjunction = self._dice.weighted(
            {
                Conjunction.WHETHER: 45,
                Conjunction.WHY: 25,
                Conjunction.WHEN: 15,
                Conjunction.WHERE: 15,
            }
        )
        match conjunction:
            case Conjunction.WHERE:
                question = self._clauses.whereabouts()
            case Conjunction.WHEN:
                question = self._clauses.arrival()
            case _:
                question = replace(self._clauses.short_action(), negated=False)
        clause = Clause(
            subject=speaker,
            verb=verbs.KNOW if knows else verbs.ASK,
            negated=knows,
            complement=Subordinate(conjunction, question),
        )
        return Sentence(clause=clause)

    def _reason(self) -> Sentence:
        """Because or although somebody feels so or has a plan, or the weather is so."""
        person = self._phrases.person()
        echo = self._phrases.echo(person)
        if echo is None or self._dice.chance(0.15):
            main = self._clauses.pastime(person)
            reason = self._clauses.weather()
        else:
            main = self._clauses.action(person)
            think = self._clauses.state if self._dice.chance(0.3) else self._clauses.plan
            reason = think(echo)
        if self._dice.chance(0.4):
            main = self._clauses.timed(main, first=1)
        # Nobody can or may because of how they feel.
        free = main.mode not in (Mode.CAN, Mode.ALLOWED)
        because = free and self._dice.chance(0.55)
        conjunction = Conjunction.BECAUSE if because else Conjunction.ALTHOUGH
        return Sentence(clause=main, after=Subordinate(conjunction, reason))

    def _condition(self) -> Sentence:
        """If somebody feels so, or the weather is so, then."""
        person = self._phrases.phrase(Kind.PERSON, "definite", adjective=0.2)
        if any(adjective.state for adjective in person.adjectives):
            person = replace(person, adjectives=())
        echo = self._phrases.echo(person)
        if self._dice.chance(0.25):
            condition = self._clauses.weather()
        elif self._dice.chance(0.3):
            condition = self._clauses.state(person)
        else:
            condition = self._clauses.done(person)
        conjunction = self._dice.weighted({Conjunction.IF: 75, Conjunction.ALTHOUGH: 25})
        same = conjunction is Conjunction.ALTHOUGH or self._dice.chance(0.5)
        mode = self._dice.pick((Mode.PRESENT, Mode.PRESENT, Mode.SHOULD, Mode.MUST, Mode.CAN))
        doer: Nominal
        if echo is not None and same:
            doer = echo
        elif self._dice.chance(0.5):
            doer = self._dice.pick((Pronoun.I, Pronoun.WE))
        else:
            doer = self._phrases.phrase(Kind.PERSON, "definite", besides=person.noun)
        if condition.subject is person:
            clause = self._clauses.action(doer)
        else:
            clause = self._clauses.pastime(person)
        if not clause.verb.only_present and clause.verb.english.base not in UNWILLED:
            clause = replace(clause, mode=mode)
        else:
            clause = replace(clause, mode=Mode.PRESENT)
        if clause.mode is not Mode.PRESENT and self._dice.chance(0.4):
            clause = self._clauses.timed(clause, first=0)
        return Sentence(clause=clause, before=Subordinate(conjunction, condition))

    def _judgement(self) -> Sentence:
        """Somebody does something with a thing because or although it (er, sie, es) is so."""
        verb = self._dice.pick([v for v in verbs.OBJECT if v.english.base in _JUDGING])
        things = [
            noun
            for noun in nouns_of(verb.objects)
            if not noun.kinds & (Kind.PERSON | Kind.ANIMAL) and adjectives_for(noun.kinds)
        ]
        thing = not_hers(self._phrases.phrase_of(self._dice.pick(things), "definite", adjective=0))
        subject: Nominal = self._dice.pick((Pronoun.I, Pronoun.HE, Pronoun.SHE, Pronoun.WE))
        if self._dice.chance(0.6):
            subject = replace(self._phrases.phrase(Kind.PERSON, "definite"), number=Number.SINGULAR)
        clause = Clause(
            subject=subject, verb=verb, mode=self._clauses.mode(verb, subject), object=thing
        )
        if self._dice.chance(0.3):
            clause = self._clauses.negated(clause)
        if self._dice.chance(0.5):
            clause = self._clauses.timed(clause, first=1)
        disliked = clause.negated != (verb.english.base in _REJECTING)
        conjunction = self._dice.weighted({Conjunction.BECAUSE: 70, Conjunction.ALTHOUGH: 30})
        fault = disliked == (conjunction is Conjunction.BECAUSE)
        adjective = self._dice.pick(
            [one for one in adjectives_for(thing.noun.kinds) if one.gradable and one.fault is fault]
        )
        too = disliked and conjunction is Conjunction.BECAUSE
        degree = TOO if too else self._dice.pick((None, VERY))
        why = Clause(
            subject=Echo(thing.noun, thing.number),
            verb=verbs.BE,
            predicate=Quality(adjective, degree),
        )
        return Sentence(clause=clause, after=Subordinate(conjunction, why))

    def _with_relative(self, phrase: NounPhrase, *, gap: Gap) -> NounPhrase:
        """The phrase with a relative clause; things are never its subject."""
        pronoun = Relative(phrase.noun, phrase.number)
        if gap == "subject":
            clause = self._clauses.action(pronoun, role="definite")
        else:
            verb = self._dice.pick(
                [
                    verb
                    for verb in (*verbs.OBJECT, *verbs.DATIVE)
                    if verb.objects & phrase.noun.kinds and verb.english.preposition is None
                ]
            )
            subject = self._phrases.person(besides=phrase.noun)
            clause = Clause(
                subject=subject, verb=verb, mode=self._clauses.mode(verb, subject), object=pronoun
            )
        if self._dice.chance(0.4):
            clause = self._clauses.dated(clause)
        return replace(phrase, determiner=Determiner.THE, owner=None, relative=clause)

    def _head(self) -> tuple[NounPhrase, Gap]:
        """A noun phrase with room for a relative clause, and the gap that fits."""
        if self._dice.chance(0.5):
            people = [noun for noun in nouns_of(Kind.PERSON) if not noun.kinds & Kind.KIN]
            person = self._phrases.phrase_of(self._dice.pick(people), "definite", adjective=0.2)
            return person, self._dice.pick(("subject", "subject", "object"))
        kinds = Kind.THING | Kind.CLOTHING | Kind.VEHICLE | Kind.TEXT | Kind.FOOD
        return self._phrases.phrase(kinds, "definite", adjective=0.2), "object"

    def _relative_to_subject(self) -> Sentence:
        head, gap = self._head()
        subject = self._with_relative(head, gap=gap)
        if not head.noun.kinds & Kind.PERSON or self._dice.chance(0.45):
            # Without adjectives of its own, or the happy queen could be sad.
            return Sentence(clause=self._clauses.described(replace(subject, adjectives=())))
        assert subject.relative is not None
        groups = (*verbs.ALONE, *verbs.EVENTS, *verbs.OBJECT)
        verb = self._dice.pick([one for one in groups if one is not subject.relative.verb])
        clause = Clause(subject=subject, verb=verb, mode=self._clauses.mode(verb, subject))
        if verb.frame is Frame.OBJECT:
            clause = replace(clause, object=self._phrases.object_of(verb, subject, "definite"))
        return Sentence(clause=clause)

    def _relative_to_object(self) -> Sentence:
        head, gap = self._head()
        what = self._with_relative(head, gap=gap)
        # With a closing bracket German would rather move the relative clause away.
        candidates = [
            verb
            for verb in (*verbs.OBJECT, *verbs.DATIVE, *verbs.PREPOSITIONAL, verbs.SEARCH)
            if verb.objects & head.noun.kinds
            and verb.german.prefix is None
            and what.relative is not None
            and verb is not what.relative.verb
        ]
        subject = self._phrases.person(besides=head.noun)
        return Sentence(
            clause=Clause(subject=subject, verb=self._dice.pick(candidates), object=what)
        )

    def _attempt(self) -> Sentence:
        """Somebody tries or promises to do something."""
        person = self._phrases.somebody()
        verb = self._dice.pick(verbs.INFINITIVE)
        deed = self._clauses.deed(person)
        mode = self._dice.weighted({Mode.PRESENT: 60, Mode.PERFECT: 30, Mode.FUTURE: 10})
        return Sentence(
            clause=Clause(subject=person, verb=verb, mode=mode, complement=Infinitive(deed))
        )

    def _purpose(self) -> Sentence:
        """Somebody goes somewhere in order to do something."""
        person = self._phrases.somebody("definite")
        verb = self._dice.pick(verbs.DIRECTION)
        mode = self._clauses.mode(verb, person)
        main = self._clauses.complete(Clause(subject=person, verb=verb, mode=mode))
        return Sentence(clause=main, after=Purpose(self._clauses.deed(person)))

    def _coordination(self) -> Sentence:
        link = self._dice.pick((Link.AND, Link.BUT))
        first = self._clauses.action(role="definite")
        person = self._phrases.somebody("definite", besides=noun_of(first.subject))
        second = self._clauses.action(person)
        if link is Link.BUT:
            second = self._clauses.negated(second)
        return Sentence(clause=first, joined=(link, second))
