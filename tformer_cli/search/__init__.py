"""Search: from source token ids to target token ids and their scores.

The search knows ids and scores only. What comes next after a row of ids is a `Stepper`'s answer,
whether a model gives it, several models, or a table in a test.
"""
