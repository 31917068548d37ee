"""JSON Lines: the text under one key."""

import json

import pytest

from tformer_cli.documents.document import read_document
from tformer_cli.documents.segment import Segment
from tformer_cli.errors import DataError


def test_only_the_text_under_the_field_changes(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"id": i, "body": f"s {i}", "more": {"body": "no"}} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    texts = ["a", 'b"\n', ""]
    path.write_bytes(read_document(path, field="body").translated([*map(Segment, texts)]))
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert written == [{**row, "body": text} for row, text in zip(rows, texts, strict=True)]


@pytest.mark.parametrize(
    "line", ["no", "[]", "{}", '{"text": 1}', '{"text": "a", "text": "b"}', '{"text": "a"} x']
)
def test_a_line_without_the_text_is_refused(tmp_path, line):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a"}\n' + line, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_document(path)
    what = "must be a JSON object with text under the field (text); name its key by `field`"
    assert str(caught.value) == f"{path}:2: {what}"


def test_half_of_a_surrogate_pair_is_refused(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00"}\n{"text": "a\\ud83d"}', encoding="utf-8")
    with pytest.raises(DataError, match="jsonl:2: has half of a surrogate pair"):
        read_document(path)
