"""Makes up clauses: verbs with what goes with them."""

from dataclasses import replace

from demo_corpus import adverbials, nouns, verbs
from demo_corpus import prepositions as prep
from demo_corpus.dice import Dice
from demo_corpus.lexicon import Adverb, Frame, Kind, Preposition, TimeExpression, Verb
from demo_corpus.meaning import (
    Clause,
    Determiner,
    Front,
    Mode,
    Nominal,
    NounPhrase,
    PrepositionalPhrase,
    Pronoun,
    Quality,
)
from demo_corpus.phrases import (
    Phrases,
    Role,
    adjectives_for,
    is_definite,
    noun_of,
    nouns_of,
    opens_plainly,
)

VERY = Adverb("very", "sehr")
TOO = Adverb("too", "zu")

# fmt: off
_MODES = {
    Mode.PRESENT: 22, Mode.PERFECT: 36, Mode.FUTURE: 11, Mode.CAN: 7, Mode.MUST: 7,
    Mode.SHOULD: 6, Mode.WANT: 7, Mode.ALLOWED: 4,
}
_TENSES = (Mode.PRESENT, Mode.PERFECT, Mode.FUTURE)

# fmt: on

# Nobody wants to lose a key or is allowed to wake up.
UNWILLED = frozenset(
    {"lose", "forget", "hear", "wake", "fall", "cry", "dream", "steal", "understand"}
)

# fmt: off
_PLACES_OF_ACTION = {
    "sleep": Kind.PLACE, "sing": Kind.PLACE, "dance": Kind.PLACE, "work": Kind.PLACE,
    "play": Kind.PLACE, "wait": Kind.PLACE, "cry": Kind.PLACE,
    "see": Kind.PLACE, "read": Kind.PLACE, "drink": Kind.PLACE, "eat": Kind.PLACE,
    "find": Kind.PLACE, "lose": Kind.PLACE, "buy": Kind.SHOP, "sell": Kind.SHOP,
    "greet": Kind.PLACE, "hide": Kind.ROOM,
}
# fmt: on
_DONE_FOR_SOMEONE = frozenset({"buy", "cook", "draw", "write"})
_ASKED_WHERE = frozenset({"sleep", "work", "play", "wait", "dance", "lie", "stand", "sit"})


class Clauses:
    """Makes up clauses around given or invented subjects."""

    def __init__(self, dice: Dice, phrases: Phrases) -> None:
        self._dice = dice
        self._phrases = phrases

    def mode(self, verb: Verb, subject: Nominal) -> Mode:
        """A tense or modal that verb and subject allow."""
        if verb.only_present:
            return Mode.PRESENT
        noun = noun_of(subject)
        free = (noun is None or noun.kinds & Kind.PERSON) and verb.english.base not in UNWILLED
        modes = dict(_MODES) if free else {mode: _MODES[mode] for mode in _TENSES}
        # `No boy must cry` forbids it; `kein Junge muss weinen` leaves it open.
        if isinstance(subject, NounPhrase) and subject.determiner is Determiner.NO:
            modes.pop(Mode.MUST, None)
        return self._dice.weighted(modes)

    def _verb(self, *, animals_too: bool = True) -> Verb:
        group = self._dice.weighted(
            {
                verbs.ALONE: 9,
                verbs.EVENTS: 6,
                verbs.OBJECT: 46,
                (verbs.SEARCH,): 2,
                verbs.STATES: 4,
                verbs.DATIVE: 17,
                verbs.PREPOSITIONAL: 14,
                verbs.TWO_OBJECTS: 20,
                verbs.DIRECTION: 7,
                (verbs.CLIMB,): 2,
                (verbs.LAY, verbs.PUT): 6,
                (verbs.HAVE,): 3,
                (verbs.BELONG, verbs.SIT, verbs.LIE, verbs.STAND): 8 if animals_too else 0,
            }
        )
        return self._dice.pick(group)

    def action(self, subject: Nominal | None = None, *, role: Role = "subject") -> Clause:
        """A verb with what it needs; a given subject is a person."""
        verb = self._verb(animals_too=subject is None)
        if subject is None:
            subject = self._phrases.subject_of(verb, role)
        return self.complete(Clause(subject=subject, verb=verb, mode=self.mode(verb, subject)))

    def complete(self, clause: Clause) -> Clause:
        """Add objects and places, as the verb wants them."""
        verb, subject = clause.verb, clause.subject
        match verb.frame:
            case Frame.ALONE:
                return self._somehow(clause) if self._dice.chance(0.6) else clause
            case Frame.OBJECT:
                role: Role = "definite" if verb is verbs.BELONG else "object"
                clause = replace(clause, object=self._phrases.object_of(verb, subject, role))
                return self._somehow(clause) if self._dice.chance(0.35) else clause
            case Frame.TWO_OBJECTS:
                if self._dice.chance(0.3):
                    receiver: Nominal = self._phrases.pronoun(subject, dative=True)
                else:
                    receiver = self._phrases.phrase(
                        Kind.PERSON, "definite", besides=noun_of(subject)
                    )
                gift = self._phrases.phrase(verb.objects, "object")
                # `Send her letters`: letters to her, or her letters?
                if receiver is Pronoun.SHE and not opens_plainly(gift):
                    gift = replace(gift, determiner=Determiner.THE)
                return replace(clause, indirect=receiver, object=gift)
            case Frame.DIRECTION:
                return replace(clause, adjunct=self._direction(verb))
            case Frame.LOCATION:
                return replace(clause, adjunct=self._location(subject))
            case Frame.PLACEMENT:
                goal = self._phrases.phrase(Kind.FURNITURE, "definite", adjective=0.35)
                return replace(
                    clause,
                    object=self._phrases.phrase(verb.objects, "object"),
                    adjunct=PrepositionalPhrase(self._dice.pick(prep.AROUND_IN_MOTION), goal),
                )
            case frame:
                raise ValueError(f"no way to complete a verb with frame {frame}")

    def _somehow(self, clause: Clause) -> Clause:
        """Add a manner, a place or whom it is for, if one fits."""
        base = clause.verb.english.base
        if clause.verb.manners and is_definite(clause.object) and self._dice.chance(0.5):
            manner = adverbials.MANNERS[self._dice.pick(clause.verb.manners)]
            return replace(clause, manner=manner)
        if base in _DONE_FOR_SOMEONE and self._dice.chance(0.6):
            receiver = self._phrases.phrase(
                Kind.PERSON, "definite", besides=noun_of(clause.subject)
            )
            return replace(clause, adjunct=PrepositionalPhrase(prep.FOR, receiver))
        # A verb with a preposition of its own has no room for another, and an indefinite object
        # would rather follow the place in German (im Hotel Milch trinken).
        plain = not isinstance(clause.verb.government, Preposition) and is_definite(clause.object)
        if base in _PLACES_OF_ACTION and plain:
            return replace(clause, adjunct=self._place(_PLACES_OF_ACTION[base]))
        return clause

    def _place(self, kinds: Kind) -> PrepositionalPhrase:
        phrase = self._phrases.phrase(kinds, "definite", adjective=0.35)
        assert phrase.noun.location is not None
        return PrepositionalPhrase(phrase.noun.location, phrase)

    def _location(self, subject: Nominal) -> PrepositionalPhrase:
        noun = noun_of(subject)
        if noun is not None and not noun.kinds & Kind.PERSON:
            phrase = self._phrases.phrase(Kind.FURNITURE, "definite", adjective=0.35)
            return PrepositionalPhrase(self._dice.pick(prep.AROUND_AT_REST), phrase)
        if self._dice.chance(0.5):
            return PrepositionalPhrase(prep.ON, self._phrases.phrase(Kind.SEAT, "definite"))
        return self._place(Kind.PLACE)

    def _direction(self, verb: Verb) -> PrepositionalPhrase:
        if verb is verbs.CLIMB:
            phrase = self._phrases.phrase(Kind.SUMMIT | Kind.FURNITURE, "definite", adjective=0.35)
            return PrepositionalPhrase(prep.ONTO, phrase)
        kinds = Kind.FAR if verb is verbs.DRIVE else Kind.PLACE
        goals = [noun for noun in nouns_of(kinds) if not noun.kinds & Kind.SUMMIT]
        phrase = self._phrases.phrase_of(self._dice.pick(goals), "definite", adjective=0.35)
        assert phrase.noun.direction is not None
        return PrepositionalPhrase(phrase.noun.direction, phrase)

    def negated(self, clause: Clause) -> Clause:
        """The denial, where its scope leaves no doubt; otherwise the clause as it is."""
        if clause.manner is not None or not is_definite(clause.subject):
            return clause
        if clause.mode in (Mode.MUST, Mode.ALLOWED) or clause.verb.english.base == "forget":
            return clause
        if clause.adjunct is not None and not is_definite(clause.adjunct.phrase):
            return clause
        if clause.adjunct is not None and clause.adjunct.preposition is prep.FOR:
            return clause
        what = clause.object
        if clause.verb is verbs.HAVE:
            return clause
        if not is_definite(what):
            assert isinstance(what, NounPhrase)
            bare = what.determiner is Determiner.A
            if not bare or isinstance(clause.verb.government, Preposition):
                return clause
        return replace(clause, negated=True)

    def timed(self, clause: Clause, *, first: float) -> Clause:
        """Add a time that suits the tense."""
        if clause.verb.only_present:
            return clause
        times: tuple[TimeExpression, ...]
        match clause.mode:
            case Mode.PRESENT:
                times = adverbials.HABITUAL_TIMES
                if not clause.negated:
                    # `Every day he does not sleep` is no way to say that he never does.
                    times = (*times, *adverbials.RECURRENT_TIMES)
            case Mode.PERFECT:
                times = adverbials.PAST_TIMES
            case Mode.FUTURE:
                times = adverbials.FUTURE_TIMES
            case _:
                times = adverbials.MODAL_TIMES
        if clause.verb in verbs.EVENTS and clause.mode is not Mode.PRESENT:
            # Nobody wakes up next year.
            times = times[:1]
        front = Front.TIME if self._dice.chance(first) else Front.SUBJECT
        return replace(clause, time=self._dice.pick(times), front=front)

    def with_adverb(self, clause: Clause) -> Clause:
        """Add how often, or `already` to the perfect."""
        if clause.mode is Mode.PRESENT and not clause.verb.only_present:
            return replace(clause, adverb=self._dice.pick(adverbials.FREQUENCIES))
        # After an indefinite object `schon` would have to move.
        alone = clause.adjunct is None and clause.manner is None
        simple = alone and not isinstance(clause.verb.government, Preposition)
        if clause.mode is Mode.PERFECT and simple and is_definite(clause.object):
            return replace(clause, adverb=adverbials.ALREADY)
        return clause

    def short_action(self, subject: Nominal | None = None) -> Clause:
        """An action for a longer sentence to hold, at times denied or with an adverb."""
        clause = self.action(subject, role="definite")
        if self._dice.chance(0.2):
            return self.negated(clause)
        if self._dice.chance(0.2):
            return self.with_adverb(clause)
        return self.dated(clause) if self._dice.chance(0.5) else clause

    def dated(self, clause: Clause) -> Clause:
        """Add a time that cannot belong to the present of a clause around this one."""
        times: tuple[TimeExpression, ...]
        match clause.mode:
            case Mode.PRESENT:
                return clause
            case Mode.PERFECT:
                times = adverbials.PAST_TIMES[1:]
            case Mode.FUTURE:
                times = adverbials.FUTURE_TIMES
            case _:
                times = adverbials.MODAL_TIMES[1:]
        return replace(clause, time=self._dice.pick(times))

    def state(self, person: Nominal) -> Clause:
        """A passing state of a person."""
        noun = noun_of(person)
        kinds = Kind.PERSON if noun is None else noun.kinds
        states = [adjective for adjective in adjectives_for(kinds) if adjective.state]
        return Clause(
            subject=person,
            verb=verbs.BE,
            negated=self._dice.chance(0.15),
            predicate=Quality(self._dice.pick(states), self._dice.pick((None, None, VERY))),
        )

    def described(self, subject: NounPhrase) -> Clause:
        """The subject is (not) (very, too) so."""
        adjective = self._dice.pick(adjectives_for(subject.noun.kinds))
        degree = None
        if adjective.gradable:
            living = subject.noun.kinds & (Kind.PERSON | Kind.ANIMAL)
            too = adjective.fault and not living
            degree = self._dice.pick((None, VERY, TOO) if too else (None, VERY))
        return Clause(
            subject=subject,
            verb=verbs.BE,
            negated=self._dice.chance(0.25),
            predicate=Quality(adjective, degree),
        )

    def weather(self) -> Clause:
        if self._dice.chance(0.3):
            sun = NounPhrase(Determiner.THE, nouns.SUN)
            return Clause(subject=sun, verb=verbs.SHINE)
        return Clause(subject=Pronoun.IT, verb=self._dice.pick((verbs.RAIN, verbs.SNOW)))

    def done(self, person: Nominal) -> Clause:
        """What a person has done."""
        clause = self.action(person, role="definite")
        return clause if clause.verb.only_present else replace(clause, mode=Mode.PERFECT)

    def plan(self, person: Nominal) -> Clause:
        """What a person wants to do, must or should."""
        groups = (*verbs.ALONE, *verbs.OBJECT, *verbs.DATIVE)
        verb = self._dice.pick([one for one in groups if one.english.base not in UNWILLED])
        mode = self._dice.pick((Mode.WANT, Mode.WANT, Mode.MUST, Mode.SHOULD))
        return self.complete(Clause(subject=person, verb=verb, mode=mode))

    def deed(self, person: Nominal) -> Clause:
        """Something that a person does on purpose to something or somebody."""
        groups = (*verbs.OBJECT, *verbs.OBJECT, *verbs.DATIVE, *verbs.TWO_OBJECTS)
        excluded = UNWILLED | {"wear", "trust"}
        verb = self._dice.pick([one for one in groups if one.english.base not in excluded])
        return self.complete(Clause(subject=person, verb=verb))

    def pastime(self, person: Nominal) -> Clause:
        """Something that a person does for its own sake, in any weather."""
        verb = self._dice.pick(verbs.ALONE)
        return self.complete(Clause(subject=person, verb=verb, mode=self.mode(verb, person)))

    def whereabouts(self) -> Clause:
        """A clause that only lacks its place."""
        candidates = [
            verb
            for verb in (*verbs.ALONE, verbs.LIE, verbs.STAND, verbs.SIT)
            if verb.english.base in _ASKED_WHERE
        ]
        verb = self._dice.pick(candidates)
        subject = self._phrases.subject_of(verb, "definite")
        return Clause(subject=subject, verb=verb, mode=self.mode(verb, subject))

    def arrival(self) -> Clause:
        """A clause that only lacks its time."""
        verb = self._dice.pick((*verbs.EVENTS, *verbs.OBJECT))
        subject = self._phrases.subject_of(verb, "definite")
        mode = self._dice.pick((Mode.PRESENT, Mode.FUTURE))
        clause = Clause(subject=subject, verb=verb, mode=mode)
        if verb.frame is Frame.OBJECT:
            clause = replace(clause, object=self._phrases.object_of(verb, subject, "definite"))
        return clause
