"""What commands say to people."""

from tformer_cli.cli.entry import refusal
from tformer_cli.cli.messages import tell


def test_names_with_escapes_move_no_cursor(capfd):
    tell("runs/\x1b[31mred: é\nnext: tformer translate 'a\tb'")
    assert capfd.readouterr().out == ("runs/\\x1b[31mred: é\nnext: tformer translate 'a\\tb'\n")


def test_lack_of_memory_is_one_clear_line():
    assert str(refusal(MemoryError())).startswith("tformer: memory ran out; ")
