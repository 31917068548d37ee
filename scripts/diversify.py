#!/usr/bin/env python
"""Diversify a corpus and train on it: data diversification (Nguyen et al. 2020), in one round.

Teachers of both directions, which differ by their seed, are trained on the corpus of a config. The
forward ones translate its sources, the backward ones its targets, and the last model is trained on
the original and all synthetic pairs together. No other text is needed. Re-running an interrupted
command resumes it.

Example: python scripts/diversify.py configs/multi30k.yaml --teachers 3
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli import synthesize, train
from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import DeviceOption, FileArgument, SetOption
from tformer_cli.cli.printing import extend_bar, suggest, tell, tell_stderr, warn
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import ImportedTokenizerConfig
from tformer_cli.errors import DataError, TformerError, UsageError, quantity
from tformer_cli.storage.run_directory import RUNS
from tformer_cli.terminal import progress_bar
from tformer_cli.translate.synthesis import RealSide

OTHER_SIDE = {"source": "target", "target": "source"}
# The real side of what the teachers of each direction write.
DIRECTIONS: dict[str, RealSide] = {"forward": "source", "backward": "target"}


def diversify(
    config: Config, last: Config, folder: Path, num_teachers: int, device: str = "auto"
) -> Path:
    """Train teachers, let them translate, and train the last model on all pairs.

    Args:
        config: of the teachers: a model that translates.
        last: of the last model, with the corpus of the teachers.
        folder: for all runs and texts.
        num_teachers: of each direction; their seeds follow that of the config.
        device: as for `train`.

    Returns:
        The run folder of the last model.

    Raises:
        TformerError: the corpus has several directions, is not in two text files, or is another
            for the last model; the model is an imported one; the teachers translate a text into
            empty lines alone; or as for `train` and `synthesize`.
    """
    _check(config)
    if last.data.train != config.data.train:
        remedy = "change it for the teachers too, by --set"
        raise UsageError("data.train", "must be that of the teachers", remedy=remedy)
    originals = config.data.line_texts
    texts = list(config.data.train)
    for direction, real in DIRECTIONS.items():
        own = config if direction == "forward" else reversed_config(config)
        teachers = []
        for number in range(1, num_teachers + 1):
            teacher = folder / f"{direction}-{number}"
            tell(f"{teacher}: training")
            seeded = replace(own, seed=own.seed + number)
            teachers.append(trained(seeded, teacher, device, anew="another --folder"))
        for index, text in enumerate(originals):
            # What fewer teachers have written is another text. In the config of the last run,
            # which names it, a relative path would begin at that run.
            prefix = folder.absolute() / f"{direction}-text-{index}-by-{num_teachers}"
            synthetic = translated(text, teachers, prefix, real, device)
            texts.append(replace(text, source=synthetic.source, target=synthetic.target))
    final = folder / "final"
    tell(f"{final}: training on {len(texts)} texts")
    data = replace(last.data, train=tuple(texts))
    return trained(replace(last, data=data), final, device, anew=f"{final} removed")


def _check(config: Config) -> None:
    """Refuse what cannot be reversed, or has no side to translate."""
    data = config.data
    if config.model.kind == "masked_encoder":
        what = "must be a model that translates"
        raise UsageError("model.kind", what, got=config.model.kind)
    if len(data.directions) > 1:
        got = ", ".join(map(" -> ".join, data.directions))
        remedy = "write a config for each"
        raise UsageError("data.train", "must be of one direction", got=got, remedy=remedy)
    if isinstance(data.valid, tuple):
        raise UsageError("data.valid", "must be a text, not a list", remedy="name one")
    for key, text in data.texts().items():
        if not isinstance(text, ParallelText):
            got = str(text.source_file)
            remedy = "write each side into a file"
            raise UsageError(f"data.{key}", "must be two text files", got=got, remedy=remedy)
    if isinstance(config.tokenizer, ImportedTokenizerConfig):
        what = "must be learned from the corpus, for teachers of both directions"
        remedy = "write subword"
        raise UsageError("tokenizer.kind", what, got=config.tokenizer.kind, remedy=remedy)
    if data.prefixes is not None:
        what = "must be null, for teachers of both directions"
        got = ", ".join(data.prefixes)
        raise UsageError("data.prefixes", what, got=got, remedy="leave it out")


def reversed_config(config: Config) -> Config:
    """Return the config of a model that translates the other way.

    It begins with no other run, which translates the config's way, so all its weights are trained.
    Its BLEU is that of its own target language.
    """
    data, tokenizer, bleu = config.data, config.tokenizer, config.evaluation.bleu
    sides = {
        name: OTHER_SIDE.get(getattr(tokenizer, name), getattr(tokenizer, name))
        for name in ("lowercase", "nfkc")
        if hasattr(tokenizer, name)
    }
    ignores_case = bleu.lowercase or sides.get("lowercase") in ("target", "both")
    bleu = replace(bleu, tokenize="auto", lowercase=ignores_case)
    return replace(
        config,
        evaluation=replace(config.evaluation, bleu=bleu),
        data=replace(
            data,
            source_language=data.target_language,
            target_language=data.source_language,
            train=tuple(map(reversed_text, data.train)),
            valid=reversed_text(data.valid),
            test={name: reversed_text(text) for name, text in data.test.items()},
        ),
        tokenizer=replace(tokenizer, **sides),
        training=replace(config.training, init_from=None, freeze=(), tags_first=None),
    )


def reversed_text(text: ParallelText) -> ParallelText:
    """Return a text with its sides exchanged."""
    return replace(
        text,
        source=text.target,
        target=text.source,
        source_language=text.target_language,
        target_language=text.source_language,
    )


def trained(config: Config, run: Path, device: str, *, anew: str) -> Path:
    """Train a run, or resume it; `anew` says in an error how this script starts one over."""

    def own_option(name: str, value: str) -> str | None:
        return {
            "fresh": anew,
            "init_from": f"--set training.init_from={value}",
            "run": f"--folder {value}".rstrip(),
        }.get(name)

    try:
        return train(config, run, device=device)
    except TformerError as error:
        error.problems = tuple(problem.renamed(own_option) for problem in error.problems)
        raise


def translated(
    text: TrainingText, teachers: list[Path], prefix: Path, real: RealSide, device: str
) -> ParallelText:
    """Return the pairs that teachers make of one side of a text, unless they are there already.

    These stay, by whatever search.

    Raises:
        TformerError: there is none, since all translations are empty; or as for `synthesize`.
    """
    record = prefix.with_name(f"{prefix.name}.jsonl")
    if record.is_file():
        tell(f"{record}: is there already; to translate again, name another --folder")
        names = (prefix.with_name(f"{prefix.name}.{side}") for side in ("source", "target"))
        pairs = ParallelText(**dict(zip(("source", "target"), names, strict=True)))
    else:
        pairs = _synthesized(text, teachers, prefix, real, device)
    if record.stat().st_size == 0:
        what = f"has no pair, since all translations of {text.files[real]} are empty"
        got = ", ".join(map(str, teachers))
        remedy = "train these teachers longer, in another --folder"
        raise DataError(str(record), what, got=got, remedy=remedy)
    return pairs


def _synthesized(
    text: TrainingText, teachers: list[Path], prefix: Path, real: RealSide, device: str
) -> ParallelText:
    with progress_bar("line") as bar:
        synthesis = synthesize(
            teachers,
            text.files[real],
            prefix,
            real=real,
            tags=text.tags,
            device=device,
            log=tell_stderr,
            on_start=partial(extend_bar, bar),
            on_done=bar.update,
            on_warning=warn,
        )
    tell(f"{prefix}: {quantity(sum(synthesis.num_pairs.values()), 'pair')}")
    return synthesis.text


app = new_app(add_completion=False)


@app.command()
def main(
    file: FileArgument,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of all runs and texts. Default: runs/NAME-diversified for NAME.yaml.",
            show_default=False,
        ),
    ] = None,
    num_teachers: Annotated[
        int, typer.Option("--teachers", min=1, help="Teachers of each direction.")
    ] = 3,
    settings: SetOption = None,
    last_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set-last",
            metavar="KEY=VALUE",
            help="Change a key for the last model alone; repeatable.",
        ),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Train on a corpus, on its translations by other models, and on its translations back.

    This is data diversification (Nguyen et al. 2020), in one round. Re-running an interrupted
    command resumes it.

    Example: python scripts/diversify.py configs/multi30k.yaml --teachers 3
    --set-last training.max_steps=24000
    """
    config = load_config(file, settings or ())
    last = load_config(file, [*(settings or ()), *(last_settings or ())])
    folder = folder or RUNS / f"{file.stem}-diversified"
    final = diversify(config, last, folder, num_teachers, device)
    suggest("compare", folder / "forward-1", final)


if __name__ == "__main__":
    run(app)
