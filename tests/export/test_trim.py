"""A trimmed run: the same tokens, and the same logits for what is left of its vocabulary."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exportable import BASE
from hypothesis import given
from hypothesis import strategies as st
from opus import SOURCES, TARGETS, save_opus
from t5 import CASES, save_t5

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.errors import TformerError
from tformer_cli.export.run import import_run, write_run
from tformer_cli.export.trim import trim_run
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, trim
from tformer_cli.training.resume import last_checkpoint

DEMO = Path(__file__).parents[2] / "data" / "demo"
PAIRS = list(
    zip(
        *((DEMO / f"train.{code}").read_text().splitlines()[:300] for code in ("en", "de")),
        strict=True,
    )
)
KINDS = [
    SubwordConfig(algorithm=algorithm, vocab_size=500, shared=shared)
    for algorithm in ("bpe", "unigram")
    for shared in (True, False)
]


def written(folder: Path, pairs: list[tuple[str, str]]) -> ParallelText:
    text = ParallelText(source=folder / "text.en", target=folder / "text.de")
    for file, lines in zip(text.files.values(), zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    return text


def untrained(folder: Path, kind: SubwordConfig | CharConfig) -> RunDirectory:
    """A run of an untrained model, whose output has a bias, or is tied to all embeddings."""
    tokenizers = build_tokenizers(kind, lambda: PAIRS, seed=1)
    ties = {"tie_embeddings": "all"} if kind.shared else {"tie_embeddings": "none"}
    shape = replace(BASE, output_bias=not kind.shared, **ties)
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    text = written(folder, PAIRS)
    training_text = TrainingText(source=text.source, target=text.target)
    data = DataConfig(train=(training_text,), valid=text)
    config = Config(data=data, tokenizer=kind, model=shape)
    run = RunDirectory(folder / "run")
    model = build_model(shape, **sizes, seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.rand_like(weight)
    write_run(TrainedModel(config, tokenizers, model, step=3), run.path)
    return run


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.algorithm}-{kind.shared}")
def test_tokens_and_logits_of_covered_text_are_the_same(tmp_path, kind):
    run, output = untrained(tmp_path, kind), RunDirectory(tmp_path / "small")
    before, after = trim_run(run, output, written(tmp_path, PAIRS[:20]))
    original, small = load_trained_model(run), load_trained_model(output)
    # A training can begin with it.
    assert last_checkpoint(output, print) == output.checkpoint(small.step)
    assert after.num_parameters < before.num_parameters == original.model.num_parameters()
    assert after.target_vocabulary == small.tokenizers.target.size < before.target_vocabulary
    to_old = [
        [old.tokens(range(old.size)).index(token) for token in new.tokens(range(new.size))]
        for old, new in (
            (original.tokenizers.source, small.tokenizers.source),
            (original.tokenizers.target, small.tokenizers.target),
        )
    ]
    for source, target in PAIRS[:20]:
        ids = small.tokenizers.source.encode(source), small.tokenizers.target.encode(target)
        old_ids = [[rows[i] for i in side] for rows, side in zip(to_old, ids, strict=True)]
        assert old_ids[0] == original.tokenizers.source.encode(source)
        assert old_ids[1] == original.tokenizers.target.encode(target)
        logits = logits_of(small, *ids)
        expected = logits_of(original, *old_ids)[..., to_old[1]]
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def logits_of(trained: TrainedModel, source: list[int], target: list[int]) -> torch.Tensor:
    sources = torch.tensor([source])
    mask = torch.ones_like(sources, dtype=torch.bool)
    with torch.inference_mode():
        model = trained.model.eval()
        states = model.target_hidden_states(sources, mask, torch.tensor([target]))
        return model.output(states)


LEARNED = {
    algorithm: build_tokenizers(
        SubwordConfig(algorithm=algorithm, vocab_size=500), lambda: PAIRS, seed=1
    )
    for algorithm in ("bpe", "unigram")
}


def pieces(tokenizers: Tokenizers, line: str) -> list[str]:
    return tokenizers.source.tokens(tokenizers.source.encode(line))


@pytest.mark.parametrize("algorithm", LEARNED)
@given(indices=st.lists(st.integers(0, len(PAIRS) - 1), min_size=1, max_size=9), other=st.text())
def test_covered_text_is_split_alike_and_other_text_is_spelled(algorithm, indices, other):
    tokenizers = LEARNED[algorithm]
    covered = [PAIRS[index] for index in indices]
    small, _ = trim(tokenizers, covered)
    for pair in covered:
        for line in pair:
            assert pieces(small, line) == pieces(tokenizers, line)
    decoded = small.source.decode(small.source.encode(other))
    assert decoded == tokenizers.source.decode(tokenizers.source.encode(other))


def test_a_marian_model_is_trimmed(tmp_path):
    save_opus(tmp_path / "opus")
    run, output = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "small")
    original = import_run(tmp_path / "opus", run)
    covered = list(zip(SOURCES[:1], TARGETS[:1], strict=True))
    trim_run(run, output, written(tmp_path, covered))
    small = load_trained_model(output)
    assert small.tokenizers.target.size < original.tokenizers.target.size
    (pair,) = covered
    for name, line in zip(("source", "target"), pair, strict=True):
        old, new = (getattr(each.tokenizers, name) for each in (original, small))
        assert new.tokens(new.encode(line)) == old.tokens(old.encode(line))
        assert new.decode(new.encode(line)) == line
    assert small.tokenizers.source.encode(SOURCES[2]) != []


@pytest.mark.parametrize("name", ["1.0", "madlad"])
def test_what_a_t5_reads_before_a_source_stays(tmp_path, name):
    save_t5(tmp_path / "t5", **CASES[name])
    run, output = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "small")
    original = import_run(tmp_path / "t5", run)
    trim_run(run, output, written(tmp_path, [("a cat", "a cat")]))
    small = load_trained_model(output)
    assert small.tokenizers.source.size < original.tokenizers.source.size
    assert small.config.data.prefixes == original.config.data.prefixes
    for prefix in original.config.data.prefixes.values():
        old, new = original.tokenizers.source, small.tokenizers.source
        assert new.tokens(new.encode(prefix)) == old.tokens(old.encode(prefix))


def test_a_vocabulary_of_characters_is_refused(tmp_path):
    run = untrained(tmp_path, CharConfig(shared=True))
    with pytest.raises(TformerError) as caught:
        trim_run(run, RunDirectory(tmp_path / "small"), written(tmp_path, PAIRS[:1]))
    assert str(caught.value) == (
        "tokenizer.kind: must be subword or marian, to be trimmed (char); use the run as it is"
    )
    assert not (tmp_path / "small").exists()


def test_an_empty_text_is_refused(tmp_path):
    run, text = untrained(tmp_path, KINDS[0]), written(tmp_path, PAIRS[:1])
    for file in text.files.values():
        file.write_text("", encoding="utf-8")
    with pytest.raises(TformerError, match="no lines; name a file with text"):
        trim_run(run, RunDirectory(tmp_path / "small"), text)
    assert not (tmp_path / "small").exists()


def test_the_command_prints_the_sizes(tformer, tmp_path):
    run = untrained(tmp_path, KINDS[0])
    files = list(written(tmp_path, PAIRS[:5]).files.values())
    result = tformer("trim", run.path, tmp_path / "small", *files, "--json")
    content = json.loads(result.stdout)
    size = load_trained_model(RunDirectory(tmp_path / "small")).tokenizers.source.size
    assert content["after"]["source_vocabulary"] == content["after"]["target_vocabulary"] == size
    lines = tformer("trim", run.path, tmp_path / "again", *files).stdout.splitlines()
    assert lines[0] == f"source vocabulary: 500 -> {size}"
    result = tformer("trim", run.path, tmp_path / "again", *files)
    assert (result.exit_code, result.stderr.split(": ")[0]) == (2, str(tmp_path / "again"))
