"""Signals that end a training gracefully."""

import signal
import threading
from types import SimpleNamespace

import pytest

from tformer_cli.errors import Interrupted
from tformer_cli.training.shutdown import GracefulShutdown, sigterm_raised


def test_a_closed_terminal_is_a_request():
    assert signal.SIGHUP in GracefulShutdown.SIGNALS


@pytest.mark.parametrize(
    ("handler", "number", "heard"),
    [
        *((signal.SIG_DFL, number, number) for number in GracefulShutdown.SIGNALS),
        # `nohup` ignores it, so that a training outlives its terminal.
        (signal.SIG_IGN, signal.SIGHUP, None),
        # A shell ignores it for what it begins with `&`; `kill -INT` is to reach that too.
        (signal.SIG_IGN, signal.SIGINT, signal.SIGINT),
        (signal.SIG_IGN, signal.SIGTERM, signal.SIGTERM),
    ],
)
def test_the_first_signal_is_a_request_but_sighup_where_it_is_ignored(handler, number, heard):
    before = signal.signal(number, handler)
    try:
        with GracefulShutdown("runs/x") as shutdown:
            assert shutdown.signal is None
            signal.raise_signal(number)
            shutdown.poll()
            assert shutdown.signal == heard
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_ctrl_c_after_it_leaves_at_once(first):
    with pytest.raises(Interrupted) as caught, GracefulShutdown("runs/x"):  # noqa: PT012
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGINT)
    assert caught.value.exit_code == 130
    assert str(caught.value) == (
        "runs/x: interrupted again; left at once, without saving; "
        "re-run the command to resume from the last checkpoint"
    )


def test_a_sigterm_that_comes_twice_is_one_request():
    with GracefulShutdown("runs/x") as shutdown:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        shutdown.poll()
        assert shutdown.signal == signal.SIGTERM


def test_the_first_ctrl_c_is_acknowledged_at_once(capfd):
    with GracefulShutdown("runs/x"):
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err == (
            "\nstopping after this step; Ctrl-C again leaves without saving\n"
        )


def test_of_several_processes_the_first_alone_acknowledges_it(capfd):
    with GracefulShutdown("runs/x", SimpleNamespace(is_main_process=False)):
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


def test_sigterm_is_an_error_that_clears_up_undisturbed():
    before, cleared = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(Interrupted) as caught, sigterm_raised("runs/x"):  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleared.append("all")
    assert cleared == ["all"]
    assert caught.value.exit_code == 143
    assert str(caught.value) == (
        "runs/x: was interrupted and left nothing behind; re-run the command to start over"
    )
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_clears_up_without_listening():
    heard = []

    def work() -> None:
        with sigterm_raised("runs/x"):
            heard.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [signal.getsignal(signal.SIGTERM)]
