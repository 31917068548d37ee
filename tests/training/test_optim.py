import pytest
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.optimizer import AdamConfig, AdamWConfig, MuonConfig
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.training.optim import build_optimizer, set_learning_rate


def model(tie: str = "all") -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=12,
        num_heads=3,
        feedforward_dim=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        tie_embeddings=tie,
    )
    return build_model(config, source_size=20, target_size=20, seed=1)


def test_only_matrices_of_linear_layers_are_decayed():
    network = model()
    optimizer = build_optimizer(AdamWConfig(weight_decay=0.25), network)
    decays = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in network.named_parameters():
        is_matrix = name.endswith(".weight") and "norm" not in name and "embeddings" not in name
        assert decays.pop(id(parameter)) == (0.25 if is_matrix else 0.0), name
    assert not decays


def test_an_untied_output_is_decayed_as_a_matrix():
    network = model(tie_embeddings="none")
    optimizer = build_optimizer(AdamWConfig(weight_decay=0.25), network)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert id(network.output.weight) in decayed


def test_first_adam_step_moves_each_weight_by_the_learning_rate():
    network = model()
    optimizer = build_optimizer(AdamConfig(epsilon=1e-12), network)
    set_learning_rate(optimizer, 0.125)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.where(torch.rand_like(parameter) < 0.5, 1.0, -1.0) * 0.7
    optimizer.step()
    for parameter, old in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.125 * parameter.grad.sign())


@pytest.mark.parametrize("tie", ["all", "none"])
def test_muon_moves_the_matrices_of_layers_and_adamw_the_rest(tie):
    network, other = model(tie), model(tie)
    muon = build_optimizer(MuonConfig(weight_decay=0.25), network)
    adamw = build_optimizer(AdamWConfig(weight_decay=0.25), other)
    for (name, weight), twin in zip(network.named_parameters(), other.parameters(), strict=True):
        weight.grad = torch.randn_like(weight)
        twin.grad = weight.grad.clone()
        has_momentum = ".layers." in name and weight.dim() == 2
        groups = [g for g in muon.param_groups if any(p is weight for p in g["params"])]
        assert [("momentum" in group) for group in groups] == [has_momentum], name
    for _ in range(2):
        gradients = [twin.grad for twin in other.parameters()]
        for weight, gradient in zip(network.parameters(), gradients, strict=True):
            weight.grad = gradient.clone()
        muon.step()
        adamw.step()
    for (name, weight), twin in zip(network.named_parameters(), other.parameters(), strict=True):
        is_turned = ".layers." in name and weight.dim() == 2
        assert torch.equal(weight, twin) != is_turned, name
