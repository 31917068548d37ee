"""The measurement of large corpora, on a text of a moment."""

import itertools
import subprocess
import sys

import corpus_size
import pytest
from harness import children_cpu_seconds

from tformer_cli.errors import TrainingError


def test_a_text_has_a_repeated_pair_in_fifty_and_sentences_of_real_lengths(tmp_path):
    corpus_size.write_text(tmp_path, 5000)
    sources = (tmp_path / "train.src").read_text().splitlines()
    targets = (tmp_path / "train.tgt").read_text().splitlines()
    pairs = list(zip(sources, targets, strict=True))
    assert len(pairs) == 5000
    # Short sentences repeat by chance too.
    repeats = sum(pair == before for before, pair in itertools.pairwise(pairs))
    assert repeats >= 5000 // corpus_size.REPEAT_EVERY - 1
    lengths = sorted(len(line.split()) for line in sources)
    assert abs(lengths[2500] - corpus_size.MEDIAN_WORDS) <= 1
    assert lengths[0] >= 1
    assert lengths[-1] <= corpus_size.MAX_WORDS


@pytest.mark.slow
def test_a_corpus_goes_through_vocabulary_training_and_resumption():
    result = corpus_size.measure(1500, steps=4, vocab_size=500)
    assert 0 < result["pairs kept"] <= 1500
    assert 0 < result["train to step 1, s"] < result["train to step 4, s"]
    assert result["batches of an epoch"] > 4
    assert all(value > 0 for name, value in result.items() if name.endswith("MiB"))
    for command in ("vocab", "train"):
        assert result[f"{command}, processor s"] > 0


def test_processor_time_includes_that_of_processes_within_a_process():
    before = children_cpu_seconds()
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    subprocess.run([sys.executable, "-c", nested], check=True)
    assert children_cpu_seconds() - before >= 0.2


def test_size_is_of_files_and_of_what_is_in_folders(tmp_path):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "one").write_bytes(bytes(2**20))
    (tmp_path / "two").write_bytes(bytes(2**19))
    assert corpus_size.mib_of(tmp_path / "folder", tmp_path / "two") == 1.5


def test_a_command_that_fails_is_named_with_what_it_said(tmp_path):
    with pytest.raises(TrainingError, match=r"tformer_cli train .*missing\.yaml: has failed"):
        corpus_size.tformer("train", str(tmp_path / "missing.yaml"))
