"""The configuration: a tree of frozen dataclasses, and the only one there is.

A YAML file is parsed into `config.Config`; every key has a default but the data paths. A choice
between ways of doing one thing is a union of dataclasses told apart by their `kind`.
The text under each field is its documentation: the README's option table is made from it.

A field's own limits stand in its type (`Annotated[int, Bounds(...)]`); rules that tie several
fields together are yielded by `conflicts()`. `check` walks the tree and collects both.
Only the standard library is imported here, so the command line can read it without delay.
"""
