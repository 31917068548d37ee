"""Which lines count as equal: by NFKC normalization, case folding and collapsing whitespace."""

import hashlib
import unicodedata

# Key of a line without text.
EMPTY_KEY = 0


def normalized(line: str) -> str:
    """Return the normal form that equal lines share; empty for a line of whitespace."""
    if not line.isascii():
        line = unicodedata.normalize("NFKC", line)
    return " ".join(line.casefold().split())


def line_key(line: str) -> int:
    """Return a 64-bit hash of a normalized line; `EMPTY_KEY` for a line of whitespace."""
    text = normalized(line)
    if not text:
        return EMPTY_KEY
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
