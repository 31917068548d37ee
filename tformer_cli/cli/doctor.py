"""`tformer doctor`."""

from datetime import timedelta

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.options import JsonOption
from tformer_cli.cli.printing import table, tell, tell_json, tell_stderr
from tformer_cli.doctor import Diagnosis, diagnose
from tformer_cli.terminal import progress_bar

MACHINE_ROWS = {
    "system": "{0.system}",
    "processor": "{0.processor}",
    "instructions": "{0.instructions}",
    "cores": "{0.num_cores}, load {0.load:.1f}",
    "threads of torch": "{0.num_threads}",
    "precision: auto": "{0.precision}",
    "device: auto": "{0.device}",
    "free memory": "{0.free_memory}",
    "free disk space": "{0.free_disk}",
    "encoded text": "{0.stores}",
    "freed memory": "{0.allocator}",
}


def doctor(as_json: JsonOption = False) -> None:
    """Show versions, missing extras, the machine, and how fast it trains.

    For some 15 seconds, models of two example configs are trained on random tokens. Nothing is
    written. Problems are the last lines; the exit code is 0 all the same.

    Example: tformer doctor
    """
    refuse_torchrun("doctor")
    with progress_bar("step") as bar:
        diagnosis = diagnose(log=tell_stderr, on_step=bar.update)
    if as_json:
        tell_json(diagnosis.as_json())
        return
    tell(_sections(diagnosis))
    tell("\n".join(map(str, diagnosis.problems)) or "no problems found")


def _sections(diagnosis: Diagnosis) -> str:
    """Return versions, extras, machine and speed as tables."""
    versions = [(name, version or "missing") for name, version in diagnosis.versions.items()]
    extras = [
        (
            f"tformer[{name}]",
            ", ".join(f"{each} {version or 'missing'}" for each, version in packages.items()),
        )
        for name, packages in diagnosis.extras.items()
    ]
    sections = [table(versions, align="<<"), table(extras, align="<<")]
    if (machine := diagnosis.machine) is not None:
        rows = [(name, row.format(machine)) for name, row in MACHINE_ROWS.items()]
        rows += [(f"GPU {index}", str(gpu)) for index, gpu in enumerate(machine.gpus)]
        rows += [(name, value or "not set") for name, value in machine.environment.items()]
        sections.append(table(rows, align="<<"))
    if diagnosis.speed:
        head = ("training", "tokens/s", "s/step", "steps", "time")
        rows_of_speed = [
            (
                name,
                f"{each.tokens_per_second:,.0f}",
                f"{each.seconds_per_step:.2f}",
                f"{each.max_steps:,}",
                str(timedelta(seconds=round(each.seconds))),
            )
            for name, each in diagnosis.speed.items()
        ]
        sections.append(table([head, *rows_of_speed], align="<>>>>"))
    return "\n\n".join(sections) + "\n"
