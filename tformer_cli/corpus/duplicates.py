"""Duplicates and near-duplicates among pairs, found on disk with a byte of memory a pair.

Near-duplicates share most of their character n-grams. The Jaccard similarity of two sets is the
share of hash functions whose minima over them are equal (MinHash, Broder 1997); 16 bits of a
minimum are enough (Li and König 2010). Pairs that agree on a band of minima are compared
(locality-sensitive hashing, Leskovec et al. 2020, section 3.4).
"""

import functools
import hashlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.corpus.line_keys import normalized
from tformer_cli.storage.atomic import storage_errors

# Pairs sorted together to find duplicates: some dozens of MiB, whatever the corpus size.
GROUP_PAIRS = 1 << 19
# Pairs compared together.
COMPARED_PAIRS = 1 << 16
# 16 bands of 4 hashes: of pairs with similarity 0.8 one in five thousand shares no band.
NUM_HASHES, BAND_HASHES = 64, 4
NGRAM = 5

# What each pair is.
UNIQUE, DUPLICATE, SIMILAR = range(3)
# Digests of the pairs (n, 2), and their MinHash signatures (n, NUM_HASHES); (0, ...) if not needed.
Fingerprints = tuple[np.ndarray, np.ndarray]


def fingerprints(
    pairs: Sequence[tuple[str, ...]], config: FilterConfig, direction: int = 0
) -> Fingerprints:
    """Return what `find_duplicates` needs of some pairs with text, of a direction by its number.

    Pairs of two directions are never alike: exchanged sides have nearly the same n-grams.
    """
    return (
        pair_digests(pairs if config.drop_duplicates else (), direction),
        minhash(pairs if config.max_similarity is not None else (), direction),
    )


def find_duplicates(
    parts: Iterable[Fingerprints], num_pairs: int, config: FilterConfig, directory: Path
) -> np.ndarray:
    """Return (n,) whether each pair is UNIQUE, or a DUPLICATE of or SIMILAR to an earlier one.

    `parts` has the fingerprints of all pairs in order. They lie in temporary files in `directory`.

    Raises:
        StorageError: the system refuses to write there.
    """
    kinds = np.full(num_pairs, UNIQUE, dtype=np.uint8)
    if num_pairs == 0:
        return kinds
    with (
        storage_errors(directory),
        tempfile.TemporaryFile(dir=directory) as digest_file,
        tempfile.TemporaryFile(dir=directory) as signature_file,
    ):
        for digests, signatures in parts:
            digest_file.write(digests.tobytes())
            signature_file.write(signatures.tobytes())
        if config.max_similarity is not None:
            signatures = _mapped(signature_file, "<u2").reshape(-1, NUM_HASHES)
            kinds[find_similar(signatures, config.max_similarity, directory)] = SIMILAR
        if config.drop_duplicates:
            kinds[find_repeats(_mapped(digest_file, "<u8").reshape(-1, 2), directory)] = DUPLICATE
    return kinds


def pair_digests(pairs: Iterable[tuple[str, ...]], direction: int = 0) -> np.ndarray:
    """Return (n, 2) 64-bit halves of a hash of each pair's text and of a direction.

    Among a billion pairs, a collision has probability 1.5e-21.
    """
    # LF separates the sides unambiguously, since no line contains it.
    salt = direction.to_bytes(16, "little")
    hashes = (hashlib.blake2b("\n".join(x).encode(), digest_size=16, salt=salt) for x in pairs)
    digests = (each.digest() for each in hashes)
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def minhash(pairs: Sequence[tuple[str, ...]], direction: int = 0) -> np.ndarray:
    """Return (n, NUM_HASHES) 16 bits of the minimum of each hash over the n-grams of each pair.

    The hashes are others for each direction.
    """
    if not pairs:
        return np.empty((0, NUM_HASHES), dtype="<u2")
    texts = [" ".join(map(normalized, pair)) for pair in pairs]
    lengths = np.array([len(text) for text in texts])
    # NULs behind each text, so that it has as many n-grams as characters.
    padding = "\0" * (NGRAM - 1)
    joined = "".join(f"{text}{padding}" for text in texts)
    codes = np.frombuffer(joined.encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    starts = np.cumsum(lengths) - lengths
    # Positions in `joined` of the first characters of all n-grams.
    first = np.arange(lengths.sum()) + np.repeat(np.arange(len(texts)) * len(padding), lengths)
    ngrams = _mixed(np.full(len(first), direction, dtype=np.uint64))
    for index in range(NGRAM):
        ngrams = _mixed(ngrams ^ codes[first + index])
    signatures = np.empty((len(texts), NUM_HASHES), dtype="<u2")
    for column, (factor, term) in enumerate(_hash_functions()):
        minima = np.minimum.reduceat(ngrams * factor + term, starts)
        signatures[:, column] = _mixed(minima) & np.uint64(0xFFFF)
    return signatures


def find_similar(signatures: np.ndarray, threshold: float, directory: Path) -> np.ndarray:
    """Return (n,) whether the similarity to an earlier pair is at least a threshold.

    Of the pairs that share a band, each is compared with the first one and with the one before it.
    """
    is_similar = np.zeros(len(signatures), dtype=np.bool_)
    bands = signatures.view("<u8")
    for band in range(bands.shape[1]):
        for pairs in _sorted_groups(bands[:, band : band + 1], directory):
            indices, keys = pairs["index"], pairs["digest"][:, 0]
            runs = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
            firsts = np.repeat(indices[runs], np.diff([*runs, len(keys)]))
            positions = np.flatnonzero(firsts != indices)
            for start in range(0, len(positions), COMPARED_PAIRS):
                later = positions[start : start + COMPARED_PAIRS]
                later = later[~is_similar[indices[later]]]
                for earlier in (firsts[later], indices[later - 1]):
                    equal = signatures[indices[later]] == signatures[earlier]
                    is_similar[indices[later][equal.mean(axis=1) >= threshold]] = True
    return is_similar


def find_repeats(digests: np.ndarray, directory: Path) -> np.ndarray:
    """Return (n,) whether an earlier pair has the same of (n, 2) digests."""
    is_repeated = np.zeros(len(digests), dtype=np.bool_)
    for pairs in _sorted_groups(digests, directory):
        equal = (pairs["digest"][1:] == pairs["digest"][:-1]).all(axis=1)
        is_repeated[pairs["index"][1:][equal]] = True
    return is_repeated


def _sorted_groups(digests: np.ndarray, directory: Path) -> Iterator[np.ndarray]:
    """Yield all digests with their indices, equal ones together and by index.

    They are distributed into groups in a temporary file in `directory`, and each group is sorted.
    Time is linear in (n, k) digests.
    """
    num_groups = math.ceil(len(digests) / GROUP_PAIRS)
    if num_groups == 0:
        return
    dtype = np.dtype([("digest", "<u8", digests.shape[1]), ("index", "<i8")])
    with tempfile.TemporaryFile(dir=directory) as file:
        bounds = [
            start
            + _append_groups(file, digests[start : start + GROUP_PAIRS], start, num_groups, dtype)
            for start in range(0, len(digests), GROUP_PAIRS)
        ]
        grouped = _mapped(file, dtype)
        for group in range(num_groups):
            pairs = np.concatenate([grouped[part[group] : part[group + 1]] for part in bounds])
            if len(pairs) > 0:
                # A stable sort keeps the first of equal pairs first.
                yield pairs[np.lexsort(pairs["digest"].T)]


def _append_groups(
    file: BinaryIO, digests: np.ndarray, start: int, num_groups: int, dtype: np.dtype
) -> np.ndarray:
    """Append digests and indices, from `start` on, by group; return (num_groups + 1,) bounds."""
    # Sorting 16-bit integers, nearly always enough, takes a tenth of the time.
    groups = (digests[:, 0] % np.uint64(num_groups)).astype(np.min_scalar_type(num_groups))
    order = np.argsort(groups, kind="stable")
    pairs = np.empty(len(digests), dtype=dtype)
    pairs["digest"] = digests[order]
    pairs["index"] = start + order
    file.write(pairs.tobytes())
    return np.searchsorted(groups[order], np.arange(num_groups + 1))


def _mapped(file: BinaryIO, dtype: str | np.dtype) -> np.ndarray:
    """Return the array in a file that was just written."""
    file.flush()
    array: np.ndarray = np.memmap(file, dtype=dtype, mode="r").view(np.ndarray)
    return array


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return 64-bit integers whose every bit depends on many bits (finalizer of MurmurHash3)."""
    product: np.ndarray = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    product ^= product >> np.uint64(33)
    return product


@functools.cache
def _hash_functions() -> np.ndarray:
    """Return (NUM_HASHES, 2) odd factors and terms, always the same."""
    generator = np.random.default_rng(0)
    odd: np.ndarray = 1 + 2 * generator.integers(2**63, size=(NUM_HASHES, 2), dtype=np.uint64)
    return odd
