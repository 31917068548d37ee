"""English: inflection and word order."""

from demo_corpus.lexicon import EnglishVerb, Noun, Number, Preposition
from demo_corpus.meaning import (
    Agreement,
    Clause,
    Comparison,
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
    Predicate,
    PrepositionalPhrase,
    Pronoun,
    Purpose,
    Quality,
    Relative,
    Sentence,
    Subordinate,
    agreement,
    is_interrogative,
    is_personal,
)

_OBJECT_PRONOUNS = {
    Pronoun.I: "me",
    Pronoun.HE: "him",
    Pronoun.SHE: "her",
    Pronoun.WE: "us",
    Pronoun.THEY: "them",
    Pronoun.WHO: "whom",
}
_BE = {
    Agreement.FIRST_SINGULAR: "am",
    Agreement.THIRD_SINGULAR: "is",
    Agreement.PLURAL: "are",
}
_MODALS = {
    Mode.FUTURE: "will",
    Mode.CAN: "can",
    Mode.MUST: "must",
    Mode.SHOULD: "should",
}


def plural(noun: Noun) -> str:
    """The plural, by the spelling rules unless the lexicon knows better."""
    word = noun.english
    if noun.english_plural is not None:
        return noun.english_plural
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def noun_phrase(phrase: NounPhrase, *, negated: bool = False) -> str:
    """Determiner, adjectives, noun, relative clause; the bare noun takes `any` after `not`."""
    counted = phrase.noun.german_plural is not None
    is_plural = phrase.number is Number.PLURAL
    words = [adjective.english for adjective in phrase.adjectives]
    words.append(plural(phrase.noun) if is_plural else phrase.noun.english)
    match phrase.determiner:
        case Determiner.A if is_plural or not counted:
            words = ["any", *words] if negated else words
        case Determiner.THE if phrase.owner is not None:
            words.insert(0, noun_phrase(phrase.owner) + "'s")
        case Determiner.A:
            words.insert(0, "an" if words[0][0] in "aeiou" else "a")
        case Determiner.THIS if is_plural:
            words.insert(0, "these")
        case word:
            words.insert(0, word.value)
    if phrase.relative is not None:
        words.append(_clause(phrase.relative))
    return " ".join(words)


def nominal(what: Nominal, *, subject: bool, negated: bool = False) -> str:
    """Any noun phrase or pronoun as subject or object."""
    match what:
        case NounPhrase():
            return noun_phrase(what, negated=negated)
        case Pronoun():
            return what.value if subject else _OBJECT_PRONOUNS.get(what, what.value)
        case Relative(noun):
            if not is_personal(noun):
                return "which"
            return "who" if subject else "whom"
        case Echo(_, number):
            return "it" if number is Number.SINGULAR else "they"


def _third(verb: EnglishVerb, who: Agreement) -> str:
    return verb.third if who is Agreement.THIRD_SINGULAR else verb.base


def _verb_group(clause: Clause) -> tuple[str | None, list[str]]:
    """The auxiliary, if there is one, and the rest of the verb."""
    verb = clause.verb.english
    who = agreement(clause.subject)
    third = who is Agreement.THIRD_SINGULAR
    match clause.mode:
        case Mode.PRESENT if verb.base == "be":
            return _BE[who], []
        case Mode.PRESENT:
            return None, [_third(verb, who)]
        case Mode.PERFECT:
            return ("has" if third else "have"), [verb.participle]
        case Mode.WANT:
            return None, ["wants" if third else "want", "to", verb.base]
        case Mode.ALLOWED:
            return _BE[who], ["allowed", "to", verb.base]
        case mode:
            return _MODALS[mode], [verb.base]


def _with_do(clause: Clause) -> tuple[str, list[str]]:
    """The verb group with an auxiliary in any case, for negation and inversion."""
    auxiliary, words = _verb_group(clause)
    if auxiliary is not None:
        return auxiliary, words
    do = "does" if agreement(clause.subject) is Agreement.THIRD_SINGULAR else "do"
    base = "want" if clause.mode is Mode.WANT else clause.verb.english.base
    return do, [base, *words[1:]]


def _predicate(predicate: Predicate) -> str:
    match predicate:
        case Quality(adjective, degree):
            return f"{degree.english} {adjective.english}" if degree else adjective.english
        case Comparison(adjective, standard):
            assert adjective.comparative is not None
            return f"{adjective.comparative[0]} than {noun_phrase(standard)}"
        case Identity(phrase):
            return noun_phrase(phrase)


def _object(clause: Clause) -> list[str]:
    """The object with the particle or preposition of the verb around it."""
    verb = clause.verb.english
    particle = [verb.particle] if verb.particle else []
    what = clause.object
    if what is None or isinstance(what, Relative) or is_interrogative(what):
        return particle
    text = nominal(what, subject=False, negated=clause.negated)
    if isinstance(clause.verb.government, Preposition):
        return [clause.verb.government.english, text]
    if verb.preposition is not None:
        return [verb.preposition, text]
    return [text, *particle] if isinstance(what, Pronoun) else [*particle, text]


def _adjunct(adjunct: PrepositionalPhrase) -> str:
    return f"{adjunct.preposition.english} {noun_phrase(adjunct.phrase)}"


def _after_verb(clause: Clause) -> list[str]:
    words: list[str] = []
    if clause.indirect is not None:
        words.append(nominal(clause.indirect, subject=False))
    words += _object(clause)
    if clause.predicate is not None:
        words.append(_predicate(clause.predicate))
    if clause.manner is not None:
        words.append(clause.manner.english)
    if clause.adjunct is not None and clause.front is not Front.PLACE:
        words.append(_adjunct(clause.adjunct))
    if clause.time is not None and clause.front is not Front.TIME:
        words.append(clause.time.english)
    match clause.complement:
        case Subordinate():
            words.append(subordinate(clause.complement))
        case Infinitive(inner):
            words.append(_infinitive_clause(inner))
        case None:
            pass
    return words


def _infinitive_clause(clause: Clause) -> str:
    return " ".join(["to", clause.verb.english.base, *_after_verb(clause)])


def _clause(clause: Clause) -> str:
    """A clause in plain order."""
    opening: list[str] = []
    if clause.front is Front.TIME and clause.time is not None:
        opening = [clause.time.english]
    elif clause.front is Front.PLACE and clause.adjunct is not None:
        opening = [_adjunct(clause.adjunct)]
    if isinstance(clause.object, Relative):
        opening = [nominal(clause.object, subject=False)]
    subject = nominal(clause.subject, subject=True)
    auxiliary, verb = _with_do(clause) if clause.negated else _verb_group(clause)
    middle = [auxiliary] if auxiliary is not None else []
    if clause.negated:
        middle.append("not")
    if clause.adverb is not None:
        middle.append(clause.adverb.english)
    text = " ".join([*opening, subject, *middle, *verb, *_after_verb(clause)])
    return text.replace("can not", "cannot")


def _question(clause: Clause) -> str:
    """A question: what is asked for, the auxiliary, then the subject."""
    if is_interrogative(clause.subject):
        return _clause(clause)
    opening: list[str] = []
    if clause.asks is not None:
        opening = [clause.asks.value]
    elif clause.object is not None and is_interrogative(clause.object):
        opening = [nominal(clause.object, subject=False)]
    auxiliary, verb = _with_do(clause)
    middle = ["not"] if clause.negated else []
    if clause.adverb is not None:
        middle.append(clause.adverb.english)
    subject = nominal(clause.subject, subject=True)
    return " ".join([*opening, auxiliary, subject, *middle, *verb, *_after_verb(clause)])


def subordinate(part: Subordinate) -> str:
    """A subordinate clause with its conjunction."""
    return f"{part.conjunction.value} {_clause(part.clause)}"


def sentence(what: Sentence) -> str:
    """The English sentence, capitalised and punctuated."""
    text = _question(what.clause) if what.form is Form.QUESTION else _clause(what.clause)
    if what.before is not None:
        text = f"{subordinate(what.before)}, {text}"
    match what.after:
        case Subordinate():
            text += " " + subordinate(what.after)
        case Purpose(clause):
            text += " in order " + _infinitive_clause(clause)
        case None:
            pass
    if what.joined is not None:
        link, clause = what.joined
        comma = "," if link is Link.BUT else ""
        text += f"{comma} {link.value} {_clause(clause)}"
    return text[0].upper() + text[1:] + what.form.value
