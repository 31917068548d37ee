"""`tformer import`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.cli.messages import tell
from tformer_cli.storage.run_directory import RunDirectory


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A Marian (OPUS-MT) model that transformers saved with safetensors, or a folder "
            "that `tformer export --format safetensors` wrote.",
            show_default=False,
        ),
    ],
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder to write.", show_default=False)
    ],
    source_language: Annotated[
        str | None, typer.Option(help="ISO code, such as en. Default: from the folder.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="ISO code, such as de. Default: from the folder.")
    ] = None,
) -> None:
    """Make a run folder of a model, to translate, evaluate, export and fine-tune.

    Translations and probabilities are those of the model. Lines of several sentences are translated
    as they are; `tformer translate --max-source-sentences 1` splits them at sentence ends.

    Example: tformer import opus-mt-en-de runs/opus

    Example: tformer import demo-plain runs/again
    """
    from tformer_cli.export.run import import_run

    trained = import_run(
        folder,
        RunDirectory(run),
        source_language=source_language,
        target_language=target_language,
    )
    data, tokenizers = trained.config.data, trained.tokenizers
    sizes = {tokenizers.source.size, tokenizers.target.size}
    tell(
        f"{run}: {data.source_language} -> {data.target_language}, "
        f"{trained.model.num_parameters():,} parameters, "
        f"vocabulary {' and '.join(f'{size:,}' for size in sorted(sizes))}"
    )
    tell(f"next: tformer translate {shlex.quote(str(run))}")
