"""Which warnings end a test: all but those that other packages have about one another."""

import warnings

import pytest


def warn(category: type[Warning], module: str) -> None:
    warnings.warn_explicit("old", category, filename=f"{module}.py", lineno=1, module=module)


@pytest.mark.parametrize("category", [DeprecationWarning, PendingDeprecationWarning, FutureWarning])
def test_deprecations_are_errors_in_our_own_modules_alone(category):
    with pytest.raises(category):
        warn(category, "tformer_cli.training.step")
    with warnings.catch_warnings(record=True) as shown:
        warn(category, "click.core")
    assert [warning.category for warning in shown] == [category]


@pytest.mark.parametrize("module", ["tformer_cli.device", "torch.nn.functional"])
@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning, ResourceWarning])
def test_all_other_warnings_are_errors(category, module):
    with pytest.raises(category):
        warn(category, module)
