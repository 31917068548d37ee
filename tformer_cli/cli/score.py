"""`tformer score`."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.input import has_pipe
from tformer_cli.cli.messages import warn
from tformer_cli.cli.options import (
    CheckpointOption,
    DeviceOption,
    EnsembleOption,
    PrecisionOption,
    RunArgument,
    chosen_run,
)
from tformer_cli.cli.output import opened, reject_gzip_names, reject_overwriting
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from tformer_cli.translate.score import ScoredPair


def score(
    run: RunArgument = None,
    *,
    source: Annotated[Path, typer.Option(help="A text, plain or .gz.")],
    target: Annotated[Path, typer.Option(help="Its translation, line by line.")],
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the log probabilities go. Default: stdout."),
    ] = None,
    per_token: Annotated[
        bool,
        typer.Option("--per-token", help="Add each token and its log probability, between tabs."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with texts and tokens.")
    ] = False,
    ensemble: EnsembleOption = None,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
) -> None:
    """Print the log probability of given translations: n pairs in, n lines out, in their order.

    It is a natural logarithm, summed over the tokens of the translation and </s>, by the
    probabilities that a search sees. What no search writes has -inf, in JSON null: a translation
    with an unknown token, an empty one, or any of an empty line but the empty one, which has 0.
    A pair with a side of more than 4,096 tokens is not scored, and has nan, in JSON null.

    Example: tformer score runs/demo --source test.en --target test.de
    """
    if per_token and as_json:
        raise UsageError(
            "--per-token", "has no effect with --json", remedy="leave it out: JSON has the tokens"
        )
    reject_gzip_names({"--output": output_file})
    reject_overwriting({"--output": output_file}, {"--source": source, "--target": target})
    run_directory = chosen_run(run, checkpoint)

    from tqdm import tqdm

    from tformer_cli.corpus.reader import read_pairs
    from tformer_cli.device import resolve_device, resolve_precision
    from tformer_cli.process import tune_allocator
    from tformer_cli.search.engine import NativeEngine
    from tformer_cli.storage.trained_model import load_ensemble
    from tformer_cli.translate.score import score_pairs
    from tformer_cli.translate.translator import special_tokens

    refuse_torchrun("score")
    # Bytes that are no text, and files of unequal length, are found before the first pair is
    # scored; but a pipe can be read only once.
    is_pipe = has_pipe(source, target)
    total = None if is_pipe else sum(1 for _ in read_pairs(source, target))
    trained, *others = load_ensemble(
        [run_directory, *map(RunDirectory, ensemble or [])], checkpoint
    )
    place = resolve_device(device)
    tune_allocator()
    engine = NativeEngine(
        trained.model,
        special_tokens(trained.tokenizers.target, trained.config.model),
        device=place,
        precision=resolve_precision(precision, place),
        others=[other.model for other in others],
    )
    with (
        opened(output_file) as output,
        tqdm(total=total, unit="line", disable=total is None or not sys.stderr.isatty()) as bar,
    ):
        for found in score_pairs(
            engine.scorer,
            trained.tokenizers,
            read_pairs(source, target),
            names=(str(source), str(target)),
            on_done=bar.update,
            on_warning=warn,
        ):
            output.write(_json_line(found) if as_json else _tabbed_line(found, per_token))


def _tabbed_line(found: "ScoredPair", per_token: bool) -> str:
    """Return the log probability, and where asked for each token with its own."""
    fields = [f"{found.log_prob:.6f}"]
    if per_token:
        for token, log_prob in zip(found.tokens, found.token_log_probs, strict=True):
            # A token may hold a tab, which ends a field.
            escaped = token.replace("\\", "\\\\").replace("\t", "\\t")
            fields += [escaped, f"{log_prob:.6f}"]
    return "\t".join(fields) + "\n"


def _json_line(found: "ScoredPair") -> str:
    content = {
        "source": found.source,
        "target": found.target,
        "log_prob": _number(found.log_prob),
        "num_tokens": len(found.tokens),
        "tokens": found.tokens,
        "token_log_probs": [_number(log_prob) for log_prob in found.token_log_probs],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def _number(log_prob: float) -> float | None:
    """Return what JSON has for it, which knows no infinity."""
    return log_prob if math.isfinite(log_prob) else None
