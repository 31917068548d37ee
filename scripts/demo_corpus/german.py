"""German: inflection and word order."""

import re
from dataclasses import replace
from enum import IntEnum

from demo_corpus.lexicon import Adjective, Case, Gender, GermanVerb, Noun, Number, Preposition
from demo_corpus.meaning import (
    NUMERALS,
    Agreement,
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
)

# Each string lists masculine, feminine, neuter, plural.
_ARTICLE = {
    Case.NOMINATIVE: "der die das die",
    Case.ACCUSATIVE: "den die das die",
    Case.DATIVE: "dem der dem den",
    Case.GENITIVE: "des der des der",
}
_STRONG = {
    Case.NOMINATIVE: "er e es e",
    Case.ACCUSATIVE: "en e es e",
    Case.DATIVE: "em er em en",
    # Of determiners; adjectives would have `en` twice, but owners are never without a determiner.
    Case.GENITIVE: "es er es er",
}
_WEAK = {
    Case.NOMINATIVE: "e e e en",
    Case.ACCUSATIVE: "en e e en",
    Case.DATIVE: "en en en en",
    Case.GENITIVE: "en en en en",
}
_MIXED = {
    Case.NOMINATIVE: "er e es en",
    Case.ACCUSATIVE: "en e es en",
    Case.DATIVE: "en en en en",
    Case.GENITIVE: "en en en en",
}
_RELATIVE = _ARTICLE | {Case.DATIVE: "dem der dem denen"}

_DER_WORDS = {
    Determiner.THIS: "dies",
    Determiner.EVERY: "jed",
    Determiner.ALL: "all",
    Determiner.WHICH: "welch",
}
_EIN_WORDS = {
    Determiner.A: "ein",
    Determiner.NO: "kein",
    Determiner.MY: "mein",
    Determiner.HIS: "sein",
    Determiner.HER: "ihr",
    Determiner.OUR: "unser",
}
_QUANTIFIERS = {Determiner.MANY: "viel", Determiner.HOW_MANY: "wie viel"}
_NUMERALS = dict(zip(NUMERALS, ("zwei", "drei", "vier", "fünf", "zehn"), strict=True))

_PRONOUNS = {
    Pronoun.I: "ich mich mir",
    Pronoun.HE: "er ihn ihm",
    Pronoun.SHE: "sie sie ihr",
    Pronoun.WE: "wir uns uns",
    Pronoun.THEY: "sie sie ihnen",
    Pronoun.IT: "es es ihm",
    Pronoun.WHO: "wer wen wem",
    Pronoun.WHAT: "was was was",
}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
}

_IRREGULAR_FIRST = {"sein": "bin", "haben": "habe", "wissen": "weiß"}
_IRREGULAR_PLURAL = {"sein": "sind"}
_AUXILIARIES = {
    "haben": ("habe", "hat", "haben"),
    "sein": ("bin", "ist", "sind"),
}
_MODALS = {
    Mode.FUTURE: ("werde", "wird", "werden"),
    Mode.CAN: ("kann", "kann", "können"),
    Mode.MUST: ("muss", "muss", "müssen"),
    Mode.SHOULD: ("sollte", "sollte", "sollten"),
    Mode.WANT: ("will", "will", "wollen"),
    Mode.ALLOWED: ("darf", "darf", "dürfen"),
}
_ASKS = {Ask.WHERE: "wo", Ask.WHEN: "wann", Ask.WHY: "warum", Ask.HOW_OFTEN: "wie oft"}
_CONJUNCTIONS = {
    Conjunction.BECAUSE: "weil",
    Conjunction.ALTHOUGH: "obwohl",
    Conjunction.IF: "wenn",
    Conjunction.THAT: "dass",
    Conjunction.WHETHER: "ob",
    Conjunction.WHY: "warum",
    Conjunction.WHEN: "wann",
    Conjunction.WHERE: "wo",
}
# A comma stands before `aber`, none before `und`.
_LINKS = {Link.AND: " und ", Link.BUT: ", aber "}


class Slot(IntEnum):
    """The order between the two verb brackets."""

    SUBJECT = 0
    PRONOUN = 1
    TIME = 2
    EARLY_ADVERB = 3
    INDIRECT = 4
    OBJECT = 5
    LATE_ADVERB = 6
    NOT = 7
    MANNER = 8
    PREPOSITIONAL_OBJECT = 9
    ADJUNCT = 10
    PREDICATE = 11
    ASK = 12


_FRONTS = {Front.SUBJECT: Slot.SUBJECT, Front.TIME: Slot.TIME, Front.PLACE: Slot.ADJUNCT}


def _cell(row: str, gender: Gender, number: Number) -> str:
    column = 3 if number is Number.PLURAL else list(Gender).index(gender)
    return row.split()[column]


def adjective_form(adjective: Adjective, ending: str) -> str:
    """The adjective with an ending: müde + e is müde, teuer + en is teuren."""
    stem = adjective.stem or adjective.german
    return stem + (ending[1:] if stem.endswith("e") else ending)


def noun_form(noun: Noun, number: Number, case: Case) -> str:
    """The noun in number and case, with genitive -s, dative -n and the n-declension."""
    if number is Number.SINGULAR:
        if noun.weak and case is not Case.NOMINATIVE:
            assert noun.german_plural is not None
            return noun.german_plural
        if case is Case.GENITIVE and noun.gender is not Gender.FEMININE:
            num_syllables = len(re.findall("[aeiouäöü]+", noun.german.lower()))
            return noun.german + ("es" if num_syllables == 1 else "s")
        return noun.german
    assert noun.german_plural is not None, f"{noun.german} has no plural"
    if case is Case.DATIVE and not noun.german_plural.endswith(("n", "s")):
        return noun.german_plural + "n"
    return noun.german_plural


def noun_phrase(phrase: NounPhrase, case: Case) -> str:
    """Determiner, adjectives and noun in agreement, with the relative clause between commas."""
    gender, number = phrase.noun.gender, phrase.number
    strong = _cell(_STRONG[case], gender, number)
    opening: str | None
    match phrase.determiner:
        case Determiner.THE:
            opening, endings = _cell(_ARTICLE[case], gender, number), _WEAK
        case word if word in _DER_WORDS:
            opening, endings = _DER_WORDS[word] + strong, _WEAK
        case word if word in _QUANTIFIERS:
            opening, endings = _QUANTIFIERS[word] + strong, _STRONG
        case word if word in _NUMERALS:
            opening, endings = _NUMERALS[word], _STRONG
        case Determiner.A if number is Number.PLURAL or phrase.noun.german_plural is None:
            opening, endings = None, _STRONG
        case word:
            bare = _cell(_MIXED[case], gender, number) != _cell(_WEAK[case], gender, number)
            opening, endings = _EIN_WORDS[word] + ("" if bare else strong), _MIXED
    words = [opening] if opening else []
    ending = _cell(endings[case], gender, number)
    words += [adjective_form(adjective, ending) for adjective in phrase.adjectives]
    words.append(noun_form(phrase.noun, number, case))
    text = " ".join(words)
    if phrase.owner is not None:
        text += " " + noun_phrase(phrase.owner, Case.GENITIVE)
    if phrase.relative is not None:
        text += f", {_verb_last(phrase.relative)},"
    return text


def nominal(what: Nominal, case: Case) -> str:
    """Any noun phrase or pronoun in a case."""
    match what:
        case NounPhrase():
            return noun_phrase(what, case)
        case Pronoun():
            return _PRONOUNS[what].split()[list(Case).index(case)]
        case Relative(noun, number):
            return _cell(_RELATIVE[case], noun.gender, number)
        case Echo(noun, number):
            if number is Number.PLURAL:
                return nominal(Pronoun.THEY, case)
            pronouns = {
                Gender.MASCULINE: Pronoun.HE,
                Gender.FEMININE: Pronoun.SHE,
                Gender.NEUTER: Pronoun.IT,
            }
            return nominal(pronouns[noun.gender], case)


def prepositional(preposition: Preposition, what: Nominal) -> str:
    """Preposition and nominal, contracted before a plain article (im, zum, ins)."""
    text = nominal(what, preposition.case)
    # A relative clause makes the article point, which keeps it whole: von dem Kleid, das ...
    if isinstance(what, NounPhrase) and what.determiner is Determiner.THE and what.relative is None:
        article, _, rest = text.partition(" ")
        contraction = _CONTRACTIONS.get((preposition.german, article))
        if contraction is not None and what.number is Number.SINGULAR:
            return f"{contraction} {rest}"
    return f"{preposition.german} {text}"


def present(verb: GermanVerb, who: Agreement) -> str:
    """The finite present without the separable prefix."""
    match who:
        case Agreement.THIRD_SINGULAR:
            return verb.third
        case Agreement.PLURAL:
            return _IRREGULAR_PLURAL.get(verb.infinitive, verb.infinitive)
        case Agreement.FIRST_SINGULAR:
            regular = verb.infinitive.removesuffix("n").removesuffix("e") + "e"
            return _IRREGULAR_FIRST.get(verb.infinitive, regular)


def infinitive(verb: GermanVerb) -> str:
    """The infinitive, prefix attached: aufmachen."""
    return (verb.prefix or "") + verb.infinitive


def zu_infinitive(verb: GermanVerb) -> str:
    """The infinitive with zu, inside a separable verb: aufzumachen."""
    return f"{verb.prefix}zu{verb.infinitive}" if verb.prefix else f"zu {verb.infinitive}"


def _brackets(clause: Clause) -> tuple[str, list[str]]:
    """The finite verb and what closes the clause (prefix, participle or infinitive)."""
    verb = clause.verb.german
    who = agreement(clause.subject)
    if clause.mode is Mode.PRESENT:
        return present(verb, who), [verb.prefix] if verb.prefix else []
    person = list(Agreement).index(who)
    if clause.mode is Mode.PERFECT:
        return _AUXILIARIES[verb.auxiliary][person], [verb.participle]
    return _MODALS[clause.mode][person], [infinitive(verb)]


def _predicate(predicate: Predicate) -> str:
    match predicate:
        case Quality(adjective, degree):
            return f"{degree.german} {adjective.german}" if degree else adjective.german
        case Comparison(adjective, standard):
            assert adjective.comparative is not None
            return f"{adjective.comparative[1]} als {noun_phrase(standard, Case.NOMINATIVE)}"
        case Identity(phrase):
            return noun_phrase(phrase, Case.NOMINATIVE)


def _negates_by_article(clause: Clause) -> bool:
    """Whether `nicht ein` becomes `kein`."""
    return (
        clause.negated
        and isinstance(clause.object, NounPhrase)
        and clause.object.determiner is Determiner.A
    )


def _object(clause: Clause) -> dict[Slot, str]:
    what = clause.object
    if what is None:
        return {}
    government = clause.verb.government
    if isinstance(government, Preposition):
        return {Slot.PREPOSITIONAL_OBJECT: prepositional(government, what)}
    if _negates_by_article(clause):
        assert isinstance(what, NounPhrase)
        what = replace(what, determiner=Determiner.NO)
    unstressed = isinstance(what, Pronoun) and not is_interrogative(what)
    return {Slot.PRONOUN if unstressed else Slot.OBJECT: nominal(what, government)}


def _constituents(clause: Clause) -> dict[Slot, str]:
    """What may stand between the brackets, subject included."""
    slots = {Slot.SUBJECT: nominal(clause.subject, Case.NOMINATIVE)} | _object(clause)
    if clause.indirect is not None:
        slot = Slot.PRONOUN if isinstance(clause.indirect, Pronoun) else Slot.INDIRECT
        slots[slot] = nominal(clause.indirect, Case.DATIVE)
    if clause.negated and not _negates_by_article(clause):
        slots[Slot.NOT] = "nicht"
    if clause.time is not None:
        slots[Slot.TIME] = clause.time.german
    if clause.adverb is not None:
        slot = Slot.LATE_ADVERB if clause.adverb.late else Slot.EARLY_ADVERB
        slots[slot] = clause.adverb.german
    if clause.manner is not None:
        slots[Slot.MANNER] = clause.manner.german
    if clause.adjunct is not None:
        slots[Slot.ADJUNCT] = _adjunct(clause.adjunct)
    if clause.predicate is not None:
        slots[Slot.PREDICATE] = _predicate(clause.predicate)
    if clause.asks is not None:
        slots[Slot.ASK] = _ASKS[clause.asks]
    return slots


def _adjunct(adjunct: PrepositionalPhrase) -> str:
    return prepositional(adjunct.preposition, adjunct.phrase)


def _in_order(slots: dict[Slot, str]) -> list[str]:
    return [slots[slot] for slot in sorted(slots)]


def _complement(clause: Clause) -> str:
    match clause.complement:
        case None:
            return ""
        case Subordinate():
            return ", " + subordinate(clause.complement)
        case Infinitive(inner):
            return ", " + _infinitive_clause(inner)


def _infinitive_clause(clause: Clause) -> str:
    slots = _constituents(clause)
    del slots[Slot.SUBJECT]
    return " ".join([*_in_order(slots), zu_infinitive(clause.verb.german)])


def _verb_second(clause: Clause, front: Slot | None) -> str:
    """A main clause; without a front the verb comes first, as in questions and after clauses."""
    slots = _constituents(clause)
    finite, closing = _brackets(clause)
    opening = [slots.pop(front)] if front is not None else []
    return " ".join([*opening, finite, *_in_order(slots), *closing]) + _complement(clause)


def _verb_last(clause: Clause) -> str:
    """A subordinate clause, opened by its relative pronoun if it has one."""
    slots = _constituents(clause)
    opening = [slots.pop(Slot.OBJECT)] if isinstance(clause.object, Relative) else []
    finite, closing = _brackets(clause)
    # A separated prefix comes home: macht ... auf, but ... aufmacht.
    ending = ("" if clause.mode is Mode.PRESENT else " ").join([*closing, finite])
    return " ".join([*opening, *_in_order(slots), ending]) + _complement(clause)


def subordinate(part: Subordinate) -> str:
    """A subordinate clause with its conjunction."""
    return f"{_CONJUNCTIONS[part.conjunction]} {_verb_last(part.clause)}"


def _statement(clause: Clause) -> str:
    return _verb_second(clause, _FRONTS[clause.front])


def _question(clause: Clause) -> str:
    if clause.asks is not None:
        return _verb_second(clause, Slot.ASK)
    if is_interrogative(clause.subject):
        return _verb_second(clause, Slot.SUBJECT)
    if is_interrogative(clause.object):
        return _verb_second(clause, Slot.OBJECT)
    return _verb_second(clause, None)


def sentence(what: Sentence) -> str:
    """The German sentence, capitalised and punctuated."""
    if what.before is not None:
        text = f"{subordinate(what.before)}, {_verb_second(what.clause, None)}"
    elif what.form is Form.QUESTION:
        text = _question(what.clause)
    else:
        text = _statement(what.clause)
    match what.after:
        case Subordinate():
            text += ", " + subordinate(what.after)
        case Purpose(clause):
            text += ", um " + _infinitive_clause(clause)
        case None:
            pass
    if what.joined is not None:
        link, clause = what.joined
        text += _LINKS[link] + _statement(clause)
    # A relative clause brings its own comma; another, or the end, takes its place.
    text = text.replace(",,", ",").removesuffix(",")
    return text[0].upper() + text[1:] + what.form.value
