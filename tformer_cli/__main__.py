"""The `tformer` command, also as `python -m tformer_cli`."""

import signal
import sys


def main() -> None:
    """Run `tformer`; Ctrl-C while it is imported is answered by a line too."""
    try:
        from tformer_cli.cli import app
    except KeyboardInterrupt:
        from tformer_cli.errors import Interrupted
        from tformer_cli.terminal import is_terminal

        error = Interrupted(
            "tformer", "interrupted", signal=signal.SIGINT, remedy="re-run the command"
        )
        # A terminal has shown ^C.
        print(f"\n{error}" if is_terminal(sys.stderr) else error, file=sys.stderr)
        sys.exit(error.exit_code)
    app.main()


if __name__ == "__main__":
    main()
