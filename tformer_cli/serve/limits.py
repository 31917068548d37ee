"""Limits of what a client may ask for."""

from dataclasses import dataclass, fields

from tformer_cli.errors import check_positive


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request, and of the requests that wait.

    Attributes:
        max_body: bytes of a body.
        max_characters: characters of a text.
        max_texts: texts of a request.
        max_candidates: beam size, translations and candidates of a text.
        max_waiting: requests that wait for one model.
        timeout: seconds from the first byte of a body to the answer.
    """

    max_body: int = 2**20
    max_characters: int = 5000
    max_texts: int = 128
    max_candidates: int = 32
    max_waiting: int = 256
    timeout: int = 60

    def __post_init__(self) -> None:
        for field in fields(self):
            check_positive(f"`{field.name}`", getattr(self, field.name))
