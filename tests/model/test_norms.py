import torch

from tformer_cli.model.norms import build_norm


def test_rms_norm_divides_by_the_root_mean_square():
    states = torch.randn(3, 7, dtype=torch.float64)
    norm = build_norm("rms", 7, 0.25).double()
    norm.weight.data.normal_()
    expected = states / (states.pow(2).mean(-1, keepdim=True) + 0.25).sqrt() * norm.weight
    torch.testing.assert_close(norm(states), expected)


def test_layer_norm_removes_mean_and_variance():
    states = torch.randn(3, 7, dtype=torch.float64)
    centred = states - states.mean(-1, keepdim=True)
    expected = centred / (centred.pow(2).mean(-1, keepdim=True) + 0.25).sqrt()
    torch.testing.assert_close(build_norm("layer", 7, 0.25).double()(states), expected)
