import torch

from tformer_cli.kernels.dropout import Dropout, dropout

SIZE, SHARE = 100_003, 0.3


def test_dropout_zeroes_its_share_and_keeps_the_expected_value():
    dropped = dropout(torch.ones(SIZE), SHARE)
    share = (dropped == 0).double().mean().item()
    # Five standard deviations of a binomial of this size.
    assert abs(share - SHARE) < 5 * (SHARE * (1 - SHARE) / SIZE) ** 0.5
    torch.testing.assert_close(dropped.max().item(), 1 / (1 - SHARE), rtol=1e-4, atol=0)
    assert set(dropped.unique().tolist()) == {0.0, dropped.max().item()}


def test_the_highest_share_keeps_finite_values():
    dropped = dropout(torch.ones(SIZE), 1 - 1e-9)
    assert dropped.isfinite().all()
    assert (dropped != 0).sum() < SIZE / 1000


def test_neighbouring_decisions_are_independent():
    kept = (dropout(torch.ones(SIZE), SHARE) != 0).double()
    for distance in (1, 2, 3, 4, 5):
        both = (kept[:-distance] * kept[distance:]).mean().item()
        assert abs(both - (1 - SHARE) ** 2) < 0.01, f"at distance {distance}"


def test_gradient_flows_where_the_state_was_kept():
    states = torch.randn(7, 11, requires_grad=True)
    dropped = dropout(states, SHARE)
    (gradient,) = torch.autograd.grad(dropped.sum(), states)
    torch.testing.assert_close(gradient * states, dropped)


def test_masks_are_a_function_of_the_seed_and_new_each_time():
    states = torch.ones(50)
    torch.manual_seed(3)
    first, second = dropout(states, SHARE), dropout(states, SHARE)
    torch.manual_seed(3)
    assert torch.equal(dropout(states, SHARE), first)
    assert not torch.equal(first, second)


def test_module_drops_in_training_only():
    module, states = Dropout(0.5), torch.ones(1000)
    assert (module(states) == 0).any()
    assert torch.equal(module.eval()(states), states)
    assert torch.equal(Dropout(0.0)(states), states)
