"""`python -m tformer_cli` is `tformer`."""

from tformer_cli.cli.app import main

if __name__ == "__main__":
    main()
