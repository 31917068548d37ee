"""`tformer score`."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.entry import refuse_torchrun, warn
from tformer_cli.cli.options import (
    CheckpointOption,
    DeviceOption,
    EnsembleOption,
    PrecisionOption,
    RunArgument,
    chosen_run,
)
from tformer_cli.cli.streams import check_outputs, has_pipe, open_output
from tformer_cli.errors import Rule, check_usage

if TYPE_CHECKING:
    from tformer_cli.translate.score import ScoredPair


def score(
    run: RunArgument = None,
    *,
    source: Annotated[Path, typer.Option(help="Source text, plain or .gz.")],
    target: Annotated[Path, typer.Option(help="Translation, line by line.")],
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the scores. Default: stdout."),
    ] = None,
    per_token: Annotated[
        bool,
        typer.Option("--per-token", help="Add tokens and their log probabilities, between tabs."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, with texts and tokens.")
    ] = False,
    ensemble: EnsembleOption = None,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
) -> None:
    """Print the log probability of given translations: n pairs in, n lines out, in the same order.

    It is the natural logarithm, summed over the tokens of the translation, EOS included. It is -inf
    (null in JSON) if no search generates the translation: with an unknown token, an empty one, or
    any translation of an empty line but the empty one, which has 0. It is nan (null in JSON) for a
    pair with a side of more than 4,096 tokens.

    Example: tformer score runs/demo --source test.en --target test.de
    """
    what, remedy = "has no effect with --json", "leave it out: JSON has the tokens"
    check_usage(Rule("--per-token", what, per_token and as_json, remedy=remedy))
    check_outputs({"--output": output_file}, {"--source": source, "--target": target})
    run_directory = chosen_run(run, checkpoint)

    from tqdm import tqdm

    from tformer_cli.corpus.reader import read_pairs
    from tformer_cli.translate.score import score_pairs
    from tformer_cli.translate.translator import Translator

    refuse_torchrun("score")
    # Invalid text and files of unequal length are found before the first pair is scored. But a pipe
    # can be read only once.
    total = None if has_pipe(source, target) else sum(1 for _ in read_pairs(source, target))
    translator = Translator.load(
        run_directory.path,
        ensemble=ensemble or (),
        checkpoint=checkpoint,
        device=device,
        precision=precision,
    )
    with (
        open_output(output_file) as output,
        tqdm(total=total, unit="line", disable=total is None or not sys.stderr.isatty()) as bar,
    ):
        for pair in score_pairs(
            translator.engine.scorer,
            translator.tokenizers,
            read_pairs(source, target),
            names=(str(source), str(target)),
            on_done=bar.update,
            on_warning=warn,
        ):
            output.write(_json_line(pair) if as_json else _tabbed_line(pair, per_token))


def _tabbed_line(pair: "ScoredPair", per_token: bool) -> str:
    """Return the log probability of a pair, and if asked for those of its tokens."""
    fields = [f"{pair.log_prob:.6f}"]
    if per_token:
        for token, log_prob in zip(pair.tokens, pair.token_log_probs, strict=True):
            # A tab would end the field.
            escaped = token.replace("\\", "\\\\").replace("\t", "\\t")
            fields += [escaped, f"{log_prob:.6f}"]
    return "\t".join(fields) + "\n"


def _json_line(pair: "ScoredPair") -> str:
    content = {
        "source": pair.source,
        "target": pair.target,
        "log_prob": _finite(pair.log_prob),
        "num_tokens": len(pair.tokens),
        "tokens": pair.tokens,
        "token_log_probs": [_finite(log_prob) for log_prob in pair.token_log_probs],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def _finite(log_prob: float) -> float | None:
    """Return a number, or None for infinity and NaN, which JSON lacks."""
    return log_prob if math.isfinite(log_prob) else None
