"""Self-contained HTML pages: a template with its style, its script and what the script draws."""

import html
import json
from pathlib import Path
from string import Template

PAGE_TEMPLATES = Path(__file__).with_name("templates")
# A page loads nothing from elsewhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
# Characters that end a script element or, in some readers, a line.
_JSON_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<\u2028\u2029"}


def filled_page(name: str, content: object, **texts: str) -> str:
    """Return the HTML of a page, which needs no other file.

    Args:
        name: that of its template, its style and its script, which page.js comes before.
        content: JSON values that the script draws.
        texts: what else the template names; plain text.
    """
    files = f"{name}.html", f"{name}.css", "page.js", f"{name}.js"
    template, style, shared, script = (
        (PAGE_TEMPLATES / file).read_text(encoding="utf-8") for file in files
    )
    return Template(template).substitute(
        {key: html.escape(text) for key, text in texts.items()},
        policy=POLICY,
        style=style,
        content=page_json(content),
        script=shared + script,
    )


def page_json(content: object) -> str:
    """Return JSON that may stand in a script element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_JSON_ESCAPES)
