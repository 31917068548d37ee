from pathlib import Path

from test_wheel import files

ROOT = Path(__file__).parents[2]


def test_init_copies_configs_and_demo_text_and_may_be_repeated(tformer, tmp_path):
    folder = tmp_path / "new"
    for _ in range(2):
        result = tformer("init", folder)
        assert result.exit_code == 0
        assert result.stdout.splitlines()[-1] == f"next: tformer train {folder}/configs/demo.yaml"
        assert files(folder) == files(ROOT)
    assert tformer("config", "check", folder / "configs" / "demo.yaml").exit_code == 0


def test_init_replaces_no_file_and_then_writes_none(tformer, tmp_path):
    own = tmp_path / "data" / "demo" / "valid.en"
    own.parent.mkdir(parents=True)
    own.write_text("mine\n", encoding="utf-8")
    result = tformer("init", tmp_path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{own}: already exists with other content; name another folder\n",
    )
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [own]
