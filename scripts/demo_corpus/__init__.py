"""A generator of English-German sentence pairs: one meaning, spoken by two grammars.

`lexicon` holds the types of words; `nouns`, `adjectives`, `verbs`, `adverbials` and
`prepositions` the words; `meaning` is what a sentence says in no language; `english` and `german`
say it; `phrases`, `clauses` and `sentences` think of meanings, with `dice`; `holdout` and `corpus`
draw the splits; `baseline` is the score to beat.
"""
