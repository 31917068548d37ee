"""Shards of a token store that is built: lines, encoded and filtered, each shard an atomic file."""

import contextlib
import hashlib
import io
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tformer_cli.corpus.duplicates import fingerprints
from tformer_cli.corpus.filters import KEPT, FilterReport, PairFilter, Row, length_reasons
from tformer_cli.corpus.store import id_dtype
from tformer_cli.storage.atomic import atomic_write
from tformer_cli.text.tokenizer import Tokenizers

Rows = Sequence[Row]


def encode_shard(
    path: Path, rows: Rows, tokenizers: Tokenizers, filters: PairFilter
) -> FilterReport:
    """Encode and filter lines into a shard file, unless it exists; return the filter counts."""
    with contextlib.suppress(OSError, ValueError):
        report = FilterReport(*read_shard(path)["report"].tolist())
        if report.seen == len(rows):
            return report
    num_sides = len(rows[0])
    by_text = filters.reasons(rows)
    rows = [row for row, reason in zip(rows, by_text, strict=True) if reason == KEPT]
    sides = encode_sides(rows, tokenizers) if rows else [[] for _ in range(num_sides)]
    by_length = length_reasons(filters.config, *map(_lengths, sides))
    dropped = (reason for reason in by_text if reason != KEPT)
    report = FilterReport.of(chain(dropped, by_length.tolist()))
    kept = np.flatnonzero(by_length == KEPT).tolist()
    kept_rows = [rows[i] for i in kept]
    digests, signatures = fingerprints(kept_rows, filters.config, filters.direction)
    arrays: dict[str, Any] = {
        "report": np.array(list(asdict(report).values())),
        "digests": digests,
        "signatures": signatures,
    }
    for side, dtype in enumerate(id_dtypes(tokenizers, len(sides))):
        kept_ids = [sides[side][i] for i in kept]
        arrays[f"ids {side}"] = np.fromiter(chain.from_iterable(kept_ids), dtype=dtype)
        arrays[f"lengths {side}"] = _lengths(kept_ids)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with atomic_write(path) as temporary:
        temporary.write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    return report


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a shard file; raise ValueError if it is damaged."""
    content = path.read_bytes()
    checksum, arrays = content[:32], content[32:]
    if hashlib.sha256(arrays).digest() != checksum:
        raise ValueError(f"{path} is damaged")
    with np.load(io.BytesIO(arrays)) as shard:
        return dict(shard)


def encode_sides(rows: Rows, tokenizers: Tokenizers) -> list[list[list[int]]]:
    """Return the ids of each line, side by side."""
    sides: list[tuple[str, ...]] = list(zip(*rows, strict=True))
    both = tokenizers.source, tokenizers.target
    return [tokenizer.encode_batch(lines) for tokenizer, lines in zip(both, sides, strict=False)]


def id_dtypes(tokenizers: Tokenizers, num_sides: int) -> list[str]:
    """Return the number format of the ids of each side."""
    return [id_dtype(side.size) for side in (tokenizers.source, tokenizers.target)[:num_sides]]


def _lengths(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([len(row) for row in rows], dtype=np.int64)
