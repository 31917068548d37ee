import json

import pytest
from saving import message

from tformer_cli.checkpoint.layout import (
    STATE_FILE,
)
from tformer_cli.checkpoint.state import load_state


@pytest.mark.parametrize("content", ["", "[]", "{", '{"step": 3}'])
def test_a_damaged_state_is_refused(saved, content):
    (saved / STATE_FILE).write_text(content)
    found = message(load_state, saved)
    assert found.startswith(f"{saved / STATE_FILE}: is damaged; got ")
    assert found.endswith("; use an earlier checkpoint")


def test_a_newer_format_is_refused(saved):
    file = saved / STATE_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    assert message(load_state, saved) == (
        f"{file}: was written by a newer tformer; this one reads format 2; got format 99; "
        "upgrade tformer"
    )
