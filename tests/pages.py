"""Reading of HTML pages."""

import json
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Notes the elements of a page, their attributes, and the text in each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def content(self) -> dict:
        """The JSON that the page shows."""
        index = next(n for n, (_, each) in enumerate(self.elements) if each.get("id") == "content")
        return json.loads(self.texts[index])
