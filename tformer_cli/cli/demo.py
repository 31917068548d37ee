"""`tformer demo`."""

import contextlib
import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.printing import tell_stderr
from tformer_cli.config.starter import write_shipped

# Two of the test set, which a trained demo translates as its references do.
SENTENCES = ("The girl has danced with us.", "How many computers does he switch off?")
NEXT = (
    "tformer translate                   # type sentences; Ctrl-D ends",
    f'tformer heatmap "{SENTENCES[0]}" --output heatmap.html',
    "tformer config new SOURCE TARGET    # a config for two text files of yours",
)


def demo(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Option(help="Where to write the demo. It is created if absent.")
    ] = Path("tformer-demo"),
) -> None:
    """Train a small English-German translator, evaluate it and translate.

    It takes about five minutes on two cores and 30 MB of disk space, and needs no download. Config,
    text and model are written into one folder. Each command is shown before it is run. Press Ctrl-C
    at any time: `tformer demo` then resumes where it was, and a finished demo is only shown.

    Example: tformer demo
    """
    refuse_torchrun("demo")
    write_shipped(folder, ("configs/demo.yaml", "data/demo"))
    tell_stderr("A small English-German translator: about five minutes on two cores.")
    # Commands are run and shown as a user types them there.
    change = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    for line in change:
        tell_stderr(f"$ {line}")
    with contextlib.chdir(folder):
        _run(context, "train", "configs/demo.yaml")
        _run(context, "eval", "runs/demo")
        for sentence in SENTENCES:
            _run(context, "translate", "runs/demo", sentence)
    tell_stderr("The demo knows about 640 English words and no others. Try next:")
    for line in (*change, *NEXT):
        tell_stderr(f"  {line}")


def _run(context: typer.Context, name: str, *words: str) -> None:
    """Show a command, and run it as if it had been typed."""
    tell_stderr(f"$ {shlex.join(['tformer', name, *words])}")
    group = context.find_root()
    assert isinstance(group.command, TyperGroup)
    command = group.command.get_command(group, name)
    assert command is not None
    with command.make_context(name, list(words), parent=group) as own:
        command.invoke(own)
