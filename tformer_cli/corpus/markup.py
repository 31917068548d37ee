"""Records of translation memories: TMX and XLIFF, read as a stream."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from xml.parsers import expat

from tformer_cli.config.schema.text import PairsFile
from tformer_cli.corpus.lines import open_decompressed
from tformer_cli.corpus.tables import Record
from tformer_cli.errors import DataError
from tformer_cli.text.language import base_language, choose_languages, language_tag

# Elements of TMX and XLIFF whose content is markup of another format.
_CODES = {"bpt", "ept", "ph", "it", "ut"}
# As Python's ElementTree declares UTF-8; expat knows it by its other name alone.
_UTF8 = re.compile(
    rb"""\A((?:\xef\xbb\xbf)?<\?xml\b[^>]*\bencoding\s*=\s*["'])utf8\b""", re.IGNORECASE
)
_CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class _Unit:
    """The texts of a unit by language, or by side, and the line where it begins."""

    line: int
    languages: tuple[str, str] = ("", "")
    texts: dict[str, str] = field(default_factory=dict)


def read_tmx(text: PairsFile) -> Iterator[Record]:
    """Yield the records of a translation memory (TMX 1.4b): a `tu` each."""
    languages = text.languages or ("source", "target")
    for unit in _units(text, _TmxParser(str(text.pairs))):
        chosen = choose_languages(unit.texts, languages)
        missing = [code for code, own in zip(languages, chosen, strict=True) if own is None]
        if missing:
            got = ", ".join(unit.texts) or "no text"
            what = f"has no text in {' or '.join(missing)}"
            remedy = None if text.languages else "name the languages of both sides"
            yield DataError(f"{text.pairs}:{unit.line}", what, got=got, remedy=remedy)
        else:
            source, target = (unit.texts[str(own)] for own in chosen)
            yield source, target


def read_xliff(text: PairsFile) -> Iterator[Record]:
    """Yield the records of an XLIFF file (1.2 or 2): a `trans-unit` or `segment` each."""
    wanted = text.languages or ("", "")
    for unit in _units(text, _XliffParser(str(text.pairs))):
        where = f"{text.pairs}:{unit.line}"
        missing = [side for side in ("source", "target") if side not in unit.texts]
        if missing:
            yield DataError(where, f"has no {' and no '.join(missing)}")
        elif order := _order(unit.languages, wanted):
            source, target = (unit.texts[side] for side in order)
            yield source, target
        else:
            what = f"is not from {' to '.join(wanted)}"
            yield DataError(where, what, got=" to ".join(unit.languages))


def tmx_languages(text: PairsFile) -> list[str]:
    """Return the languages of the first unit of a translation memory, the source first."""
    parser = _TmxParser(str(text.pairs))
    texts = next(iter(_units(text, parser)), _Unit(0)).texts
    source, rules = parser.source_language, (language_tag, base_language)
    return sorted(texts, key=lambda tag: [rule(tag) != rule(source) for rule in rules])


def xliff_languages(text: PairsFile) -> list[str]:
    """Return source and target language of the first unit of an XLIFF file, if it names them."""
    unit = next(iter(_units(text, _XliffParser(str(text.pairs)))), _Unit(0))
    return [language for language in unit.languages if language]


class _UnitParser:
    """Collects the units of an XML file from the events of expat."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.units: list[_Unit] = []
        self.unit: _Unit | None = None
        self.key: str | None = None  # of the text that is being read
        self.num_codes = 0  # open elements whose content is markup
        self.expat = expat.ParserCreate()
        self.expat.buffer_text = True
        self.expat.StartElementHandler = self._start
        self.expat.EndElementHandler = self._end
        self.expat.CharacterDataHandler = self._text
        # Entities could grow without limit, or name other files.
        self.expat.EntityDeclHandler = self._refuse_entity
        self.expat.SkippedEntityHandler = self._refuse_entity

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Take the start of an element."""
        raise NotImplementedError

    def end(self, name: str) -> None:
        """Take the end of an element."""
        raise NotImplementedError

    def begin_unit(self, languages: tuple[str, str] = ("", "")) -> None:
        """Begin a unit, which ends what was before."""
        self.unit = _Unit(self.expat.CurrentLineNumber, languages)
        self.key = None

    def begin_text(self, key: str) -> None:
        """Collect what follows, unless the unit has such a text."""
        if self.unit is not None and key not in self.unit.texts:
            self.key = key
            self.unit.texts[key] = ""

    def end_unit(self) -> None:
        """Add the unit to those that are complete."""
        if self.unit is not None:
            self.units.append(self.unit)
        self.unit = None

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        name = name.rpartition(":")[2]
        self.num_codes += name in _CODES
        self.start(name, attributes)

    def _end(self, name: str) -> None:
        name = name.rpartition(":")[2]
        self.num_codes -= name in _CODES
        self.end(name)

    def _text(self, data: str) -> None:
        if self.unit is not None and self.key is not None and not self.num_codes:
            self.unit.texts[self.key] += data

    def _refuse_entity(self, entity: str, *_: object) -> None:
        where = f"{self.name}:{self.expat.CurrentLineNumber}"
        what = "has an entity that XML itself does not define"
        raise DataError(where, what, got=entity, remedy="replace it by its text")


class _TmxParser(_UnitParser):
    source_language = ""
    language = ""

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "header":
            self.source_language = attributes.get("srclang") or ""
        elif name == "tu":
            self.begin_unit()
        elif name == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self.begin_text(self.language)

    def end(self, name: str) -> None:
        if name == "seg":
            self.key = None
        elif name == "tu":
            self.end_unit()


class _XliffParser(_UnitParser):
    languages = ("", "")
    num_alternatives = 0  # open `alt-trans`, which hold other translations

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name in ("xliff", "file"):
            source = attributes.get("source-language") or attributes.get("srcLang") or ""
            target = attributes.get("target-language") or attributes.get("trgLang") or ""
            # A file of XLIFF 2 has those of the root.
            if source or target:
                self.languages = source, target
        elif name in ("trans-unit", "segment"):
            self.begin_unit(self.languages)
        elif name == "alt-trans":
            self.num_alternatives += 1
        elif name in ("source", "target") and not self.num_alternatives:
            self.begin_text(name)

    def end(self, name: str) -> None:
        if name == "alt-trans":
            self.num_alternatives -= 1
        elif name in ("source", "target"):
            self.key = None
        elif name in ("trans-unit", "segment"):
            self.end_unit()


def _units(text: PairsFile, parser: _UnitParser) -> Iterator[_Unit]:
    """Yield the units of an XML file as they are read.

    Raises:
        DataError: it is not well-formed, in an encoding that is not read, or has own entities.
    """
    with open_decompressed(text.pairs) as stream:
        first = _UTF8.sub(rb"\1utf-8", stream.read(_CHUNK_BYTES))
        others = iter(partial(stream.read, _CHUNK_BYTES), b"")
        for chunk in itertools.chain([first], others, [b""]):
            try:
                parser.expat.Parse(chunk, not chunk)
            except expat.ExpatError as error:
                got = expat.ErrorString(error.code).removeprefix("not well-formed ").strip("()")
                where = f"{text.pairs}:{error.lineno}"
                raise DataError(where, "is not well-formed XML", got=got) from None
            except (ValueError, LookupError) as error:
                # Of encodings, expat reads UTF-8, UTF-16 and those of one byte a character.
                remedy = "convert it, and its XML declaration with it"
                raise DataError(
                    str(text.pairs), "must be UTF-8", got=str(error), remedy=remedy
                ) from None
            yield from parser.units
            parser.units.clear()


def _order(languages: tuple[str, str], wanted: tuple[str, str]) -> tuple[str, str] | None:
    """Return which sides of a unit are of two wanted languages; None if they are of others.

    The same tags come before the same languages: `pt-BR` to `pt` is not `pt` to `pt-BR`.
    """
    orders = {wanted[::-1]: ("target", "source"), wanted: ("source", "target")}
    for key in (language_tag, base_language):
        for tags in (wanted, wanted[::-1]):
            if _match(languages, tags, key):
                return orders[tags]
    return None


def _match(languages: tuple[str, str], wanted: tuple[str, str], key: Callable[[str], str]) -> bool:
    """Return whether two language tags are the wanted ones by a key; a missing one matches."""
    pairs = zip(languages, wanted, strict=True)
    return all(not tag or not code or key(tag) == key(code) for tag, code in pairs)
