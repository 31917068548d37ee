"""What is prepared: the switches of a model that its config throws."""

import torch
from safetensors.torch import load_file
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.model.recompute import kept, recomputed
from tformer_cli.rehearsal.rehearsal import rehearsal
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training.run import train

CPU = torch.device("cpu")
RECOMPUTING = "training.gradient_checkpointing=true"


def test_layers_are_recomputed_where_the_config_says_so(tmp_path):
    file = write_toy(tmp_path / "data")
    for overrides, call in (((), kept), ((RECOMPUTING,), recomputed)):
        config = load_config(file, overrides)
        with rehearsal(config, RunDirectory(tmp_path / "run"), device=CPU) as found:
            assert found.prepared.model.encoder.call is call
            assert found.prepared.model.decoder.call is call


def test_a_training_may_go_on_recomputing_without_changing_a_bit(tmp_path, capsys):
    file = write_toy(tmp_path / "data", config=CONFIG.replace("dropout: 0.1", "dropout: 0.3"))
    run, pieces = RunDirectory(tmp_path / "run"), "training.accumulate=2"

    def trained(*overrides: str) -> dict[str, torch.Tensor]:
        train(load_config(file, (pieces, *overrides)), run, device=CPU)
        return {
            f"{part.name}/{key}": value
            for part in sorted(run.checkpoint(24).glob("*.safetensors"))
            for key, value in load_file(part).items()
        }

    plain = trained()
    run.point("last", run.checkpoint(12))
    recomputing = trained(RECOMPUTING)
    change = "accepted a changed setting: training.gradient_checkpointing: False -> True"
    told = capsys.readouterr().err
    assert f"{run.path}: {change}\n" in told
    assert f"{run.path}: going on after step 12\n" in told
    assert plain.keys() == recomputing.keys()
    for name, tensor in plain.items():
        assert torch.equal(tensor, recomputing[name]), name
