"""The code speaks the field's language: standard terms are found by grep, private words are not."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tformer_cli

PACKAGE = Path(tformer_cli.__file__).parent
SOURCES = {file: file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
ALL = "\n".join(SOURCES.values())
ROOT = PACKAGE.parent
# What a user reads, beside messages.
PAGES = {
    file: file.read_text(encoding="utf-8")
    for pattern in (
        "*.md",
        "configs/*.yaml",
        "docs/*.md",
        "docs/explanation/*.md",
        "docs/how-to/*.md",
        "docs/reference/*.md",
        "docs/tutorial/*.md",
        "tformer_cli/*/templates/*",
    )
    for file in sorted(ROOT.glob(pattern))
}

# What a practitioner types to find the code of a thing.
TERMS = [
    "all_reduce",
    "all-reduce",
    "apply_rotary_emb",
    "atomic",
    "attention mask",
    "AttentionMask",
    "backpointer",
    "beam_indices",
    "BOS",
    "CausalLM",
    "causal_mask",
    "checksum",
    "continuous batching",
    "decode_step",
    "early stopping",
    "EOS",
    "fine-tun",
    "gradient accumulation",
    "gradient_checkpointing",
    "hidden state",
    "hidden_states",
    "init_cache",
    "KV cache",
    "KVCache",
    "logits processor",
    "LogitsProcessor",
    "masked language model",
    "MBR",
    "micro_batches",
    "minimum-Bayes-risk",
    "NonFiniteStep",
    "nucleus",
    "Postprocessor",
    "prefetch",
    "prefill",
    "prefix LM",
    "Preprocessor",
    "residual connection",
    "RotaryEmbedding",
    "sliding window",
    "SlotScheduler",
    "SpecialTokens",
    "teacher forcing",
    "throughput",
    "topk",
    "Trainer",
    "TrainState",
    "warmup",
]

# Words that only this code once used for those things.
PRIVATE = [
    r"\bConsensus\b",
    r"\bFault\b",
    r"\bLearner\b",
    r"\bLineRequests\b",
    r"\bOffer\b",
    r"\bPredecessor\b",
    r"\bSitting\b",
    r"\bTokenRoles\b",
    r"\bWording\b",
    r"\bWorld\.add\b",
    r"\bdealt\b",
    r"\beight_bits\b",
    r"\binitialise",
    r"\blikewise\b",
    r"\blook_(?:around|across|back)\b",
    r"\bMOST_|\bFEWEST_",
    r"\bnormaliser",
    r"\boptimiser",
    r"\bput_back\b",
    r"\brehearsal\b",
    r"\btold\b",
    r"\bwanted_states\b",
    r"\bwhole_file\b",
    r"\bwhole_directory\b",
    r"\bfound = ",
    r"\badmit",
    r"\bblanks?\b",
    r"\bforget",
    r"\blay_out\b",
    r"\bleave_gradient\b",
    r"\bnext_states\b",
    r"\bcolour",
    r"\blearnt",
    r"\btwins?\b",
    r"\bInterruption\b",
    r"\bPreparation\b",
    r"\bRemember\b",
    r"\bReporter\b",
    r"\bScreen\b",
    r"\bSignalCame\b",
    r"\bfirst_alone\b",
    r"\bView\b",
    r"\bStream\b",
    r"\b_Sitting\b",
    r"\bPast\b",
    r"\bAdvance\b",
    r"\bDepth\b",
    r"\bWidths\b",
    r"\barriving\b",
    r"\bby_phrases\b",
    r"\bcompany\b",
    r"\bjudgement\b",
    r"\bkeep_apart\b",
    r"\bobstacles\b",
    r"\boutward\b",
    r"\bput_off\b",
    r"\brecompute\b",
    r"\bsharpness\b",
    r"\bskeleton\b",
    r"\bstand_ins\b",
    r"\btwin_of\b",
]
# And words that the pages do without.
UNWANTED = [
    r"\blikewise\b",
    r"\bbut for\b",
    r"\bblanks?\b",
    r"\bcolour",
    r"\binitialis",
    r"\blearnt",
    r"\blive translation",
    r"\bmends?\b",
    r"\bnormalis",
    r"\boptimis",
    r"\bfirst weights\b",
    r"\bgo(?:es)? on from\b",
]

# And words that tests do without.
UNWANTED_IN_TESTS = [r"\blearnt", r"\btwins?\b", r"\bplaces\b"]


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_the_field_are_found(term):
    assert re.search(re.escape(term), ALL, re.IGNORECASE)


def uses(word: str, texts: dict[Path, str], flags: int = 0) -> list[str]:
    """FILE:LINE of each occurrence of a word."""
    return [
        f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        for file, text in texts.items()
        for match in re.finditer(word, text, flags)
    ]


@pytest.mark.parametrize("word", PRIVATE)
def test_private_words_are_gone(word):
    assert uses(word, SOURCES) == []


@pytest.mark.parametrize("word", UNWANTED)
def test_pages_speak_plain_english(word):
    assert "README.md" in {file.name for file in PAGES}
    assert uses(word, PAGES, re.IGNORECASE) == []


@pytest.mark.parametrize("word", UNWANTED_IN_TESTS)
def test_tests_have_the_words_of_the_field(word):
    tests = {file: file.read_text(encoding="utf-8") for file in Path(__file__).parent.rglob("*.py")}
    del tests[Path(__file__)]
    assert uses(word, tests, re.IGNORECASE) == []


def public_names(source: str) -> Iterator[str]:
    """Yield what a module defines at its top: functions, classes, constants and aliases."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = (part for target in targets for part in ast.walk(target))
            names = [part.id for part in parts if isinstance(part, ast.Name)]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_"))


def test_no_name_means_two_things():
    rooms: dict[str, set[str]] = {}
    for file, source in SOURCES.items():
        room, *_ = file.relative_to(PACKAGE).with_suffix("").parts
        # A command and a function of the Python interface are named as what they call, and each
        # format of `export` has its own table of the same things.
        if room not in ("cli", "api"):
            module = room if room == "export" else str(file)
            for name in public_names(source):
                rooms.setdefault(name, set()).add(module)
    assert {"Trainer", "DataError", "EOS_ID", "Languages"} <= rooms.keys()
    # The network knows no vocabulary, and both know what is padding.
    assert rooms.pop("PAD_ID") == {
        str(PACKAGE / "padding.py"),
        str(PACKAGE / "text/special_tokens.py"),
    }
    assert {name: where for name, where in rooms.items() if len(where) > 1} == {}
