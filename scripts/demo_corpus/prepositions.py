"""The prepositions, each in one sense; a two-way preposition is two of them."""

from demo_corpus.lexicon import Case, Preposition

IN = Preposition("in", "in", Case.DATIVE)
INTO = Preposition("into", "in", Case.ACCUSATIVE)
AT = Preposition("at", "auf", Case.DATIVE)
AT_EDGE = Preposition("at", "an", Case.DATIVE)
BY = Preposition("by", "an", Case.DATIVE)
TO = Preposition("to", "zu", Case.DATIVE)
ON = Preposition("on", "auf", Case.DATIVE)
ONTO = Preposition("onto", "auf", Case.ACCUSATIVE)
FOR = Preposition("for", "für", Case.ACCUSATIVE)

# English does not tell rest from motion here; German does, by the case.
AROUND_AT_REST = (
    ON,
    Preposition("under", "unter", Case.DATIVE),
    Preposition("behind", "hinter", Case.DATIVE),
    Preposition("next to", "neben", Case.DATIVE),
    Preposition("in front of", "vor", Case.DATIVE),
)
AROUND_IN_MOTION = (
    Preposition("on", "auf", Case.ACCUSATIVE),
    Preposition("under", "unter", Case.ACCUSATIVE),
    Preposition("behind", "hinter", Case.ACCUSATIVE),
    Preposition("next to", "neben", Case.ACCUSATIVE),
    Preposition("in front of", "vor", Case.ACCUSATIVE),
)
