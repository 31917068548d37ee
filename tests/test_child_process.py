import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds to cores")


def test_cores_are_those_that_a_process_is_bound_to():
    code = "from tformer_cli.child_process import num_cores; print(num_cores())"
    core = min(os.sched_getaffinity(0))
    bind = f"import os; os.sched_setaffinity(0, {{{core}}}); {code}"
    found = [
        int(subprocess.run([sys.executable, "-c", words], capture_output=True, check=True).stdout)
        for words in (code, bind)
    ]
    assert found == [len(os.sched_getaffinity(0)), 1]
