"""Refresh the table of configuration keys in docs/reference/options.md from the schema.

Example: python scripts/make_option_table.py
"""

from pathlib import Path

from tformer_cli.config.reference import with_option_table
from tformer_cli.storage.atomic import write_text

if __name__ == "__main__":
    page = Path(__file__).parent.parent / "docs" / "reference" / "options.md"
    write_text(page, with_option_table(page.read_text(encoding="utf-8")))
