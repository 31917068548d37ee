"""A generator of English-German sentence pairs: one meaning, spoken by two grammars.

`lexicon` holds the types of words, `nouns`, `adjectives`, `verbs` and `adverbials` the words;
`meaning` is what a sentence says in no language; `english` and `german` say it; `sentences`
thinks of meanings; `holdout` and `corpus` draw the splits; `baseline` is the score to beat.
"""
