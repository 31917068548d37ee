"""`tformer serve`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.options import (
    BackendOption,
    CheckpointOption,
    DeviceOption,
    FromOption,
    PrecisionOption,
    QuantizationOption,
    ToOption,
    chosen_run,
)
from tformer_cli.cli.printing import tell_stderr


def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Run folders with different names. Default: the newest below runs/.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")
    ] = 8000,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Host name, beside localhost and --host, that requests may name; repeatable.",
        ),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="URL",
            help="Site whose pages may ask, such as https://example.org; repeatable.",
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="File of keys, one a line, of which a request must have one."),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Maximum bytes of a body.")] = 2**20,
    max_characters: Annotated[
        int, typer.Option(min=1, help="Maximum characters of a text.")
    ] = 5000,
    max_texts: Annotated[int, typer.Option(min=1, help="Maximum texts of a request.")] = 128,
    max_candidates: Annotated[
        int, typer.Option(min=1, help="Maximum beam size and translations of a text.")
    ] = 32,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Maximum requests that wait for a model.")
    ] = 256,
    timeout: Annotated[
        int, typer.Option(min=1, help="Seconds after which a request is given up.")
    ] = 60,
    to: ToOption = None,
    source_language: FromOption = None,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    backend: BackendOption = "auto",
    quantization: QuantizationOption = None,
) -> None:
    """Serve runs over HTTP: translations by an API of its own, and by that of LibreTranslate.

    Requests of many clients are translated together. A newer checkpoint is loaded while the old one
    translates. Ctrl-C and SIGTERM stop the server when all that waits is answered.

    Example: tformer serve runs/demo

    Example: tformer serve runs/en-de runs/de-en --host 0.0.0.0 --allow-host mt.example.org
    """
    refuse_torchrun("serve")
    paths = runs or [chosen_run(None, checkpoint).path]
    directories = [chosen_run(path, checkpoint).path for path in paths]

    from tformer_cli.extras import package

    package("starlette", "serve")
    package("uvicorn", "serve")
    package("httptools", "serve")

    from tformer_cli.serve.server import serve as serve_runs
    from tformer_cli.serve.service import Limits
    from tformer_cli.translate.translator import Translator

    load = partial(
        Translator.load,
        to=to,
        source_language=source_language,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        backend=backend,
        quantization=quantization,
        log=tell_stderr,
    )
    serve_runs(
        directories,
        load,
        checkpoint,
        host=host,
        port=port,
        hosts=hosts or (),
        origins=origins or (),
        api_keys=api_keys,
        limits=Limits(max_body, max_characters, max_texts, max_candidates, max_waiting, timeout),
        log=tell_stderr,
    )
