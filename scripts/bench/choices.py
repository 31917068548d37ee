"""What a command line chooses among."""

from collections.abc import Collection

from tformer_cli.errors import UsageError


def chosen(option: str, text: str, names: Collection[str], noun: str) -> list[str]:
    """Return the names in a text with commas between, each once.

    Args:
        option: that the text is given by.
        text: of the command line.
        names: all there are.
        noun: what they are names of.

    Raises:
        UsageError: there is none of such a name.
    """
    found = list(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in names:
            raise UsageError(
                option, f"no such {noun}", got=name, remedy=f"choose from: {', '.join(names)}"
            )
    return found
