from toy import CONFIG, write_toy


def test_train_names_every_mistake_of_a_config_and_writes_nothing(tformer, tmp_path):
    config = CONFIG.replace("num_heads: 2", "num_heads: 5").replace("save_every", "safe_every")
    file = write_toy(tmp_path / "data", config=config)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{file}:12: model.num_heads: must divide dim (32); got 5",
        f"{file}:21: training.safe_every: no such key; did you mean save_every?",
    ]
    assert not (tmp_path / "run").exists()


def test_train_says_when_no_pair_is_left(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    (tmp_path / "data" / "train.tgt").write_text("\n" * 300)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "data.train: no pair is left after the filters; "
        "got 300 pairs: 0 kept; dropped 300 empty; loosen data.filters"
    )


def test_train_says_when_there_are_no_lines(tformer, tmp_path):
    file = write_toy(tmp_path / "data", pairs=0)
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "data.train: no lines with text to learn a vocabulary from; name files with text"
    )


def test_run_folder_is_named_after_the_config(tformer, tmp_path, monkeypatch):
    file = write_toy(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert tformer("train", file, "--set", "training.max_steps=12").exit_code == 0
    assert (tmp_path / "runs" / "toy" / "best").is_file()
    again = tformer("train", "runs/toy/config.yaml")
    assert "runs/toy: finished at step 12" in again.stderr


def test_train_names_missing_files_before_anything_else(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    for name in ("valid.src", "test.tgt"):
        (tmp_path / "data" / name).unlink()
    result = tformer("train", file, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"data.valid.source: no such file; got {tmp_path / 'data' / 'valid.src'}",
        f"data.test.toy.target: no such file; got {tmp_path / 'data' / 'test.tgt'}",
    ]
    assert not (tmp_path / "run").exists()


def test_a_fresh_start_that_fails_leaves_the_old_run_alone(tformer, tmp_path):
    file = write_toy(tmp_path / "data")
    run = tmp_path / "run"
    tformer("train", file, "--run", run, "--set", "training.max_steps=12")
    before = sorted(path.name for path in run.rglob("*"))
    (tmp_path / "data" / "valid.tgt").write_text("one line\n")
    assert tformer("train", file, "--run", run, "--fresh").exit_code == 2
    assert sorted(path.name for path in run.rglob("*")) == before


LEARNED = CONFIG.replace(
    "  dropout: 0.1", "  positions: {kind: learned, max_length: 20}\n  dropout: 0.1"
).replace("  test:", "  filters: {max_length: 19}\n  test:")


def test_sentences_beyond_learned_positions_are_named(tformer, tmp_path):
    config = LEARNED.replace(
        "max_steps: 24", "max_steps: 12\n  validation_decoding: {kind: greedy, max_length: 20}"
    )
    file = write_toy(tmp_path / "data", config=config)
    run = tmp_path / "run"
    assert tformer("train", file, "--run", run).exit_code == 0
    remedy = "split it, or train with model.positions: {kind: sinusoidal}"
    limit = "is longer than the positions that the model has learnt (20 tokens); got 21 tokens"
    result = tformer("translate", run, stdin=f"ab\n{'a' * 20}\n")
    assert (result.exit_code, result.stderr) == (2, f"line 2: {limit}; {remedy}\n")
    valid = tmp_path / "data" / "valid.tgt"
    lines = valid.read_text().splitlines()
    valid.write_text("\n".join([*lines[:-1], "A" * 20]) + "\n")
    result = tformer("train", file, "--run", tmp_path / "other")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2,
        f"{valid}:{len(lines)}: {limit}; {remedy}",
    )


def test_searches_beyond_learned_positions_are_refused(tformer, tmp_path):
    file = write_toy(tmp_path / "data", config=LEARNED)
    result = tformer("config", "check", file)
    assert result.stderr == (
        f"{file}:17: training.validation_decoding.max_length: "
        "must be at most model.positions.max_length (20); got 256\n"
    )
