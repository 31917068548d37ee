"""Writers of the formats that hold both sides of a text, by other code than what reads them."""

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.sax import saxutils

Pairs = Sequence[tuple[str, str]]


def escape(text: str) -> str:
    # XML would read a carriage return as a line feed.
    return saxutils.escape(text, {"\r": "&#13;"})


def tsv(pairs: Pairs) -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()


def table(pairs: Pairs) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(["id", "de", "en"])
    writer.writerows((number, target, source) for number, (source, target) in enumerate(pairs))
    return stream.getvalue().encode()


def json_lines(pairs: Pairs) -> bytes:
    return "".join(
        json.dumps({"id": number, "translation": {"en": source, "de": target}}) + "\n"
        for number, (source, target) in enumerate(pairs)
    ).encode()


def tmx(pairs: Pairs) -> bytes:
    units = "".join(
        f'<tu>\n<tuv xml:lang="de-AT"><seg>{escape(target)}</seg></tuv>\n'
        f'<tuv xml:lang="en"><seg>{escape(source)}</seg></tuv></tu>\n'
        for source, target in pairs
    )
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><body>\n{units}</body></tmx>\n'.encode()


def xliff(pairs: Pairs) -> bytes:
    units = "".join(
        f"<trans-unit>\n<source>{escape(source)}</source><target>{escape(target)}</target>\n"
        "<alt-trans><source>old</source><target>alt</target></alt-trans></trans-unit>\n"
        for source, target in pairs
    )
    return (
        '<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">\n'
        f'<file source-language="en-GB" target-language="de"><body>\n{units}</body></file></xliff>'
    ).encode()


def xliff_2(pairs: Pairs) -> bytes:
    units = "".join(
        f"<unit>\n<segment><source>{escape(source)}</source>"
        f"<target>{escape(target)}</target></segment></unit>\n"
        for source, target in pairs
    )
    return (
        '<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de">'
        f"<x:file>{units.replace('<', '<x:').replace('<x:/', '</x:')}</x:file></x:xliff>"
    ).encode()


def opus(pairs: Pairs) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "text")
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            archive.writestr(f"News.de-en.{language}", lines)
    return stream.getvalue()


def parquet(pairs: Pairs) -> bytes:
    import pyarrow
    import pyarrow.parquet

    stream = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(_arrow_table(pairs), stream)
    return bytes(stream.getvalue())


def arrow(pairs: Pairs) -> bytes:
    import pyarrow

    table, stream = _arrow_table(pairs), pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(stream.getvalue())


def arrow_file(pairs: Pairs) -> bytes:
    import pyarrow

    table, stream = _arrow_table(pairs), pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(stream.getvalue())


def _arrow_table(pairs: Pairs):
    import pyarrow

    kind = pyarrow.struct([("en", pyarrow.string()), ("de", pyarrow.string())])
    rows = [{"en": source, "de": target} for source, target in pairs]
    return pyarrow.table({"translation": pyarrow.array(rows, kind)})


WRITERS: Mapping[str, Callable[[Pairs], bytes]] = {
    "a.tsv": tsv,
    "a.tsv.gz": lambda pairs: gzip.compress(tsv(pairs)),
    "a.csv": table,
    "a.jsonl": json_lines,
    "a.tmx": tmx,
    "a.xlf": xliff,
    "b.xliff": xliff_2,
    "a.zip": opus,
    "a.parquet": parquet,
    "a.arrow": arrow,
    "file.arrow": arrow_file,
}
NEEDS_PYARROW = ("a.parquet", "a.arrow", "file.arrow")


def write(folder: Path, name: str, pairs: Pairs) -> Path:
    """Write pairs into a file of the format that its name tells."""
    file = folder / name
    file.write_bytes(WRITERS[name](pairs))
    return file
