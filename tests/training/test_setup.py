"""What a training is set up from: what its config says of the model."""

import pytest
import torch
from safetensors.torch import load_file
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    RotaryPositions,
    TransformerConfig,
)
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.dry_run import sampled_trainer
from tformer_cli.training.setup import slow_attention
from tformer_cli.training.trainer import train

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
RECOMPUTING = "training.gradient_checkpointing=true"


def test_layers_are_recomputed_where_the_config_says_so(tmp_path):
    file = write_toy(tmp_path / "data")
    for overrides, expected in (((), False), ((RECOMPUTING,), True)):
        config = load_config(file, overrides)
        with sampled_trainer(config, RunDirectory(tmp_path / "run"), device=CPU) as (trainer, _):
            assert trainer.state.model.encoder.gradient_checkpointing is expected
            assert trainer.state.model.decoder.gradient_checkpointing is expected


def test_a_validation_text_that_bleu_would_tokenize_twice_is_named_once(tmp_path, capsys):
    file = write_toy(tmp_path / "data")
    valid = file.parent / "valid.tgt"
    valid.write_text("".join(f"{line} .\n" for line in valid.read_text().splitlines()))
    said = "evaluation.bleu.tokenize: tokenizes tokenized text"
    for tokenize, count in (("auto", 1), ("none", 0)):
        config = load_config(file, [f"evaluation.bleu.tokenize={tokenize}"])
        with sampled_trainer(config, RunDirectory(tmp_path / "run"), device=CPU):
            pass
        assert capsys.readouterr().err.count(said) == count


def test_a_validation_text_in_subwords_is_named_once(tmp_path, capsys):
    file = write_toy(tmp_path / "data")
    valid = file.parent / "valid.tgt"
    valid.write_text(
        "".join(f"{line[0]}@@ {line[1:]}\n" for line in valid.read_text().split("\n")[:-1])
    )
    with sampled_trainer(load_config(file), RunDirectory(tmp_path / "run"), device=CPU):
        pass
    assert capsys.readouterr().err.count(f"{valid}: is cut into subwords") == 1


def test_a_training_may_go_on_recomputing_without_changing_a_bit(tmp_path, capsys):
    file = write_toy(tmp_path / "data", config=CONFIG.replace("dropout: 0.1", "dropout: 0.3"))
    run, pieces = RunDirectory(tmp_path / "run"), "training.gradient_accumulation_steps=2"

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
    assert f"{run.path}: resuming after step 12\n" in told
    assert plain.keys() == recomputing.keys()
    for name, tensor in plain.items():
        assert torch.equal(tensor, recomputing[name]), name


def latent(kind: type[TransformerConfig], dim: int, rotary_dim: int) -> TransformerConfig:
    """A model of 4 heads, 10 wide."""
    return kind(
        dim=40,
        num_heads=4,
        positions=RotaryPositions(),
        latent=LatentConfig(kv_lora_rank=dim, rope_head_dim=rotary_dim),
    )


@pytest.mark.parametrize(
    ("model", "precision", "slow"),
    [
        (EncoderDecoderConfig(dim=64, num_heads=8), torch.bfloat16, {}),
        (EncoderDecoderConfig(dim=48, num_heads=4), torch.float32, {}),
        (EncoderDecoderConfig(dim=48, num_heads=4), torch.bfloat16, {"num_heads": (12, 8)}),
        (DecoderOnlyConfig(dim=48, num_heads=8), torch.float32, {"num_heads": (6, 4)}),
        # All heads look at latents; those of cross-attention at heads of their own.
        (latent(DecoderOnlyConfig, 16, 8), torch.float16, {}),
        (latent(EncoderDecoderConfig, 16, 8), torch.float16, {"num_heads": (10, 8)}),
        (
            latent(DecoderOnlyConfig, 12, 6),
            torch.bfloat16,
            {"latent.kv_lora_rank": (12, 8), "latent.rope_head_dim": (6, 8)},
        ),
    ],
)
def test_widths_that_are_slow_on_a_gpu_are_named(model, precision, slow):
    """Kernels that never hold all weights load 16 bytes at once."""
    told = {
        problem.where.removeprefix("model."): (problem.got, problem.remedy)
        for problem in slow_attention(model, CUDA, precision)
    }
    assert told == {
        key: (str(width), f"choose a multiple of {multiple}")
        for key, (width, multiple) in slow.items()
    }
    assert not list(slow_attention(model, CPU, precision))


def test_a_slow_width_is_one_line():
    (problem,) = slow_attention(EncoderDecoderConfig(dim=48, num_heads=4), CUDA, torch.bfloat16)
    assert str(problem) == (
        "model.num_heads: the width of a head, dim / num_heads, makes attention slow on CUDA in "
        "bfloat16 (12); choose a multiple of 8"
    )
