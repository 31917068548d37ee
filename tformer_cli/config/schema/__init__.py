"""The configuration: a tree of frozen dataclasses, and the only one there is.

A YAML file is parsed into `config.Config`; every key has a default except the data paths. A choice
between alternatives is a union of dataclasses with a `kind`. The text under a field documents it:
the option table in docs/reference/options.md is made from these texts.

Limits of a number stand in its annotation (`Annotated[int, Bounds(...)]`), as does the former name
of a renamed key (`Former`). Rules between fields are yielded by `conflicts()`. `fields.check` walks
the tree and collects both. Only the standard library is imported, so the command line starts fast.
"""
