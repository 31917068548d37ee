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
