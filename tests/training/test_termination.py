import signal
import threading

import pytest

from tformer_cli.errors import Interrupted
from tformer_cli.training.termination import clearing_up


def test_sigterm_is_an_error_that_clears_up_undisturbed():
    before, cleared = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(Interrupted) as caught, clearing_up("runs/x"):  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleared.append("all")
    assert cleared == ["all"]
    assert caught.value.exit_code == 143
    assert str(caught.value) == (
        "runs/x: the rehearsal was interrupted; nothing is left of it; "
        "the same command begins it again"
    )
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_clears_up_without_listening():
    heard = []

    def work() -> None:
        with clearing_up("runs/x"):
            heard.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [signal.getsignal(signal.SIGTERM)]
