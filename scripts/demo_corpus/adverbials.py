"""Adverbs and times."""

from demo_corpus.lexicon import Adverb, TimeExpression

FREQUENCIES = (
    Adverb("always", "immer"),
    Adverb("often", "oft"),
    Adverb("sometimes", "manchmal"),
    Adverb("rarely", "selten"),
    Adverb("never", "nie"),
)
ALREADY = Adverb("already", "schon", late=True)

MANNERS = {
    adverb.english: adverb
    for adverb in (
        Adverb("slowly", "langsam"),
        Adverb("quickly", "schnell"),
        Adverb("loudly", "laut"),
        Adverb("carefully", "vorsichtig"),
    )
}

HABITUAL_TIMES = (
    TimeExpression("in the morning", "am Morgen"),
    TimeExpression("in the evening", "am Abend"),
    TimeExpression("in summer", "im Sommer"),
    TimeExpression("in winter", "im Winter"),
    TimeExpression("on Mondays", "montags"),
)
RECURRENT_TIMES = (
    TimeExpression("every day", "jeden Tag"),
    TimeExpression("every morning", "jeden Morgen"),
    TimeExpression("every evening", "jeden Abend"),
    TimeExpression("every week", "jede Woche"),
)
PAST_TIMES = (
    TimeExpression("today", "heute"),
    TimeExpression("this morning", "heute Morgen"),
    TimeExpression("this week", "diese Woche"),
)
FUTURE_TIMES = (
    TimeExpression("tomorrow", "morgen"),
    TimeExpression("next week", "nächste Woche"),
    TimeExpression("next year", "nächstes Jahr"),
)
MODAL_TIMES = (PAST_TIMES[0], FUTURE_TIMES[0])
