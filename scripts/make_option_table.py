"""Refresh the table of configuration keys in README.md from the schema.

Example: python scripts/make_option_table.py
"""

from pathlib import Path

from tformer_cli.config.reference import with_option_table
from tformer_cli.storage.atomic import write_text

if __name__ == "__main__":
    readme = Path(__file__).parent.parent / "README.md"
    write_text(readme, with_option_table(readme.read_text(encoding="utf-8")))
