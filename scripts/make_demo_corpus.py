#!/usr/bin/env python
"""Make the demo corpus: write its six files, print what is in them and the score to beat."""

import argparse
import sys
from pathlib import Path

from demo_corpus import baseline
from demo_corpus.corpus import Corpus, Pair, forms, generate

DEFAULT_OUTPUT = Path(__file__).resolve().parents[1] / "data" / "demo"


def contents(corpus: Corpus) -> dict[str, str]:
    """File names and what is in them."""
    splits = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    files = {}
    for name, pairs in splits.items():
        files[f"{name}.en"] = "".join(f"{pair.english}\n" for pair in pairs)
        files[f"{name}.de"] = "".join(f"{pair.german}\n" for pair in pairs)
    return files


def statistics(corpus: Corpus) -> str:
    """A table of sentences, words and distinct forms, and how much of the test is new."""
    lines = [
        f"{'split':<6}{'pairs':>7}{'en words':>10}{'de words':>10}{'en forms':>10}{'de forms':>10}"
    ]
    for name in ("train", "valid", "test"):
        pairs: tuple[Pair, ...] = getattr(corpus, name)
        words_english = [form for pair in pairs for form in forms(pair.english)]
        words_german = [form for pair in pairs for form in forms(pair.german)]
        lines.append(
            f"{name:<6}{len(pairs):>7}{len(words_english):>10}{len(words_german):>10}"
            f"{len(set(words_english)):>10}{len(set(words_german)):>10}"
        )
    num_unseen = sum(pair.has_held_out for pair in corpus.test)
    share = num_unseen / len(corpus.test)
    lines.append(f"test pairs with a word combination unseen in training: {share:.0%}")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        metavar="DIR",
        help="folder to write to (default: data/demo)",
    )
    output: Path = parser.parse_args(arguments).output
    corpus = generate()
    output.mkdir(parents=True, exist_ok=True)
    for name, text in contents(corpus).items():
        (output / name).write_bytes(text.encode())
    print(statistics(corpus))
    table = baseline.PhraseTable(
        [pair.english for pair in corpus.train], [pair.german for pair in corpus.train]
    )
    hypotheses = [table.translate(pair.english) for pair in corpus.test]
    score, signature = baseline.bleu(hypotheses, [pair.german for pair in corpus.test])
    print(f"phrase-lookup baseline on the test: BLEU {score:.1f} ({signature})")


if __name__ == "__main__":
    main(sys.argv[1:])
