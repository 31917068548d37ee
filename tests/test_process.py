import multiprocessing
import os
import subprocess
import sys

import pytest

from tformer_cli import process
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.errors import DeviceError
from tformer_cli.process import num_processes, num_threads
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.subword import SubwordTokenizer, learn_subwords

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds to cores")


def test_processes_that_share_the_cores_keep_one_thread_each_busy(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(process, "num_cores", lambda: 12)
    assert num_threads() == 12
    for processes, threads in ((4, 3), (12, 1), (16, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", f"{processes}")
        assert num_threads() == threads
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(DeviceError) as caught:
        num_threads()
    assert str(caught.value) == (
        "LOCAL_WORLD_SIZE: must be a number of processes (many); "
        "start the processes by torchrun, or unset it"
    )
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    assert num_threads() == 1
    content = learn_subwords(["a b c d e f g"] * 9, SubwordConfig(vocab_size=285))
    assert SubwordTokenizer(content, Normalizer(), name="model")._processor._num_threads == 1


def test_cores_are_those_that_a_process_is_bound_to():
    code = "from tformer_cli.process import num_cores; print(num_cores())"
    core = min(os.sched_getaffinity(0))
    bind = f"import os; os.sched_setaffinity(0, {{{core}}}); {code}"
    found = [
        int(subprocess.run([sys.executable, "-c", words], capture_output=True, check=True).stdout)
        for words in (code, bind)
    ]
    assert found == [len(os.sched_getaffinity(0)), 1]


def test_a_number_of_processes_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "many")
    monkeypatch.delenv("RANK", raising=False)
    assert num_processes() == 1
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(DeviceError, match=r"WORLD_SIZE: must be a number of processes \(many\)"):
        num_processes()
