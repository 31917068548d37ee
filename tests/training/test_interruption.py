import signal
from types import SimpleNamespace

import pytest

from tformer_cli.errors import Interrupted
from tformer_cli.training.interruption import Interruption


@pytest.mark.parametrize("number", Interruption.SIGNALS)
def test_the_first_signal_is_a_request(number):
    # Whoever runs the tests may have it ignored.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with Interruption("runs/x") as interruption:
            assert interruption.signal is None
            signal.raise_signal(number)
            interruption.look()
            assert interruption.signal == number
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_closed_terminal_is_a_request():
    assert signal.SIGHUP in Interruption.SIGNALS


@pytest.mark.parametrize(
    ("number", "heard"),
    [
        # `nohup` ignores it, so that a training outlives its terminal.
        (signal.SIGHUP, None),
        # A shell ignores it for what it begins with `&`; `kill -INT` is to reach that too.
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
    ],
)
def test_of_ignored_signals_sighup_alone_stays_so(number, heard):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interruption("runs/x") as interruption:
            signal.raise_signal(number)
            interruption.look()
            assert interruption.signal == heard
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_ctrl_c_after_it_leaves_at_once(first):
    with pytest.raises(Interrupted) as caught, Interruption("runs/x"):  # noqa: PT012
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGINT)
    assert caught.value.exit_code == 130
    assert str(caught.value) == (
        "runs/x: interrupted again; left at once, without saving; "
        "the same command goes on from the last checkpoint"
    )


def test_a_sigterm_that_comes_twice_is_one_request():
    with Interruption("runs/x") as interruption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        interruption.look()
        assert interruption.signal == signal.SIGTERM


def test_the_first_ctrl_c_is_acknowledged_at_once(capfd):
    with Interruption("runs/x"):
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err == (
            "\nstopping after this step; Ctrl-C again leaves without saving\n"
        )


def test_of_several_processes_the_first_alone_acknowledges_it(capfd):
    with Interruption("runs/x", SimpleNamespace(is_first=False)):
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""
