"""`tformer config`."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.cli.entry import new_app
from tformer_cli.cli.input import refuse_pipes
from tformer_cli.cli.options import SetOption
from tformer_cli.config import load, starter
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.errors import UsageError

app = new_app(name="config", help="Check, show or begin a configuration.", no_args_is_help=True)

FileArgument = Annotated[
    Path,
    typer.Argument(help="A YAML file, such as configs/demo.yaml."),
]


@app.command()
def check(file: FileArgument, settings: SetOption = None) -> None:
    """Say what is wrong with a configuration, all at once, and whether its texts are there.

    Example: tformer config check configs/demo.yaml
    """
    load.check_data_files(load.load_config(file, settings or []).data)
    typer.echo(f"{file}: ok")


@app.command()
def show(
    file: FileArgument,
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Print a configuration with every default and absolute paths.

    Example: tformer config show configs/demo.yaml --set training.max_steps=100
    """
    config = load.load_config(file, settings or [])
    if as_json:
        typer.echo(json.dumps(load.as_plain(config), indent=2, ensure_ascii=False))
    else:
        typer.echo(load.dump_config(config), nl=False)


@app.command()
def new(
    source: Annotated[Path, typer.Argument(help="Source text, one sentence a line.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    valid_source: Annotated[
        Path | None, typer.Option(help="Source of the validation text.", show_default=False)
    ] = None,
    valid_target: Annotated[
        Path | None, typer.Option(help="Target of the validation text.", show_default=False)
    ] = None,
    source_language: Annotated[str, typer.Option(help="ISO code, such as en.")] = "source",
    target_language: Annotated[str, typer.Option(help="ISO code, such as de.")] = "target",
    output: Annotated[Path, typer.Option(help="The YAML file to write.")] = Path("config.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a commented configuration for two text files.

    Without a validation text, 5 % of the pairs (at most 1,000) are set apart for validation and
    as many for a test; the parts are written beside the configuration, and your files stay as
    they are.

    Example: tformer config new corpus.en corpus.de --output my.yaml
    """
    refuse_pipes(
        {
            "SOURCE": source,
            "TARGET": target,
            "--valid-source": valid_source,
            "--valid-target": valid_target,
        }
    )
    # The reader belongs to a room that `check` and `show` need not wait for.
    from tformer_cli.corpus.reader import read_pairs

    written = starter.write_starter(
        output,
        ParallelText(source=source, target=target),
        read_pairs,
        valid=_valid_text(valid_source, valid_target),
        source_language=source_language,
        target_language=target_language,
        overwrite=force,
    )
    typer.echo(f"{output}: written")
    for name, text in written.texts.items():
        typer.echo(f"{name}: {written.num_pairs[name]} pairs in {text.source} and {text.target}")
    typer.echo(f"next: tformer train {shlex.quote(str(output))}")


def _valid_text(source: Path | None, target: Path | None) -> ParallelText | None:
    """Return the validation text, if one is given.

    Raises:
        UsageError: only one side is given.
    """
    if source is not None and target is not None:
        return ParallelText(source=source, target=target)
    if source is None and target is None:
        return None
    missing = "--valid-target" if target is None else "--valid-source"
    raise UsageError(
        missing, "--valid-source and --valid-target go together", remedy=f"add {missing}"
    )
