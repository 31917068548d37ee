"""Language of a text, by its file name or by its script."""

import collections
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

# ISO 639-1.
_CODES = frozenset(
    re.findall(
        r"\w\w",
        """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da
    de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz
    ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln
    lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi
    pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th
    ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """,
    )
)
# A script or a region may follow: zh-Hans, pt_BR.
_CODE = re.compile(r"([A-Za-z]{2,3})([-_][A-Za-z0-9]{2,8})*")
# In a file name `en-de` is a language pair, so a region must be in capitals.
_ENDING = re.compile(r"([A-Za-z]{2})([-_]([A-Z][a-z]{3}|[A-Z]{2}|[0-9]{3}))*")
_THREE_LETTER_ENDING = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")

# Endings that describe preprocessing, not the language.
_NEUTRAL_ENDINGS = frozenset(
    [
        "gz",
        "bz2",
        "xz",
        "zst",
        "txt",
        "text",
        "tok",
        "norm",
        "tc",
        "lc",
        "true",
        "clean",
        "raw",
        "bpe",
        "sp",
        "snt",
    ]
)

# First word of the Unicode names of a script's letters -> the only language in that script.
_LANGUAGE_OF_SCRIPT = {
    "CJK": "zh",
    "HANGUL": "ko",
    "GREEK": "el",
    "ARMENIAN": "hy",
    "GEORGIAN": "ka",
    "THAI": "th",
    "LAO": "lo",
    "KHMER": "km",
    "MYANMAR": "my",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "ORIYA": "or",
}
# The same for scripts of several languages; Latin has those of `_CODES` that no other script has.
_LANGUAGES_OF_SCRIPT = {
    "CYRILLIC": "ab av ba be bg ce cu cv kk kv ky mk mn os ru tg tt uk",
    "ARABIC": "ar fa ps sd ug ur",
    "HEBREW": "he yi",
    "DEVANAGARI": "hi mr ne sa",
    "BENGALI": "as bn",
    "ETHIOPIC": "am ti",
    "TIBETAN": "bo dz",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "ja",
    "THAANA": "dv",
}
# Languages that are written in several scripts, one of them Latin.
_IN_SEVERAL_SCRIPTS = frozenset(
    re.findall(r"\w\w", "az bm bs cr ff ha ii ik iu jv kr ks ku ms oj pi sh sr tk uz")
)
_KANA = ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")
_SAMPLE_LINES = 1000


def is_language_code(text: str) -> bool:
    """Return whether a text is an ISO 639 code, optionally with a script and a region.

    Any three letters pass, since ISO 639-3 has seven thousand codes.
    """
    code = _CODE.fullmatch(text)
    return code is not None and (len(code[1]) == 3 or code[1].lower() in _CODES)


# Codes of ISO 639-3, as NLLB has them, and of ISO 639-1 for the same language or its macrolanguage.
_TWO_LETTERS: dict[str, str] = dict(
    re.findall(
        r"(\w+):(\w+)",
        """
    aar:aa abk:ab afr:af aka:ak als:sq amh:am ara:ar arb:ar arg:an asm:as ava:av ave:ae aym:ay
    aze:az azj:az bak:ba bam:bm bel:be ben:bn bis:bi bod:bo bos:bs bre:br bul:bg cat:ca ces:cs
    cha:ch che:ce chu:cu chv:cv cmn:zh cor:kw cos:co cre:cr cym:cy dan:da deu:de div:dv dzo:dz
    ekk:et ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fry:fy
    ful:ff gaz:om gla:gd gle:ga glg:gl glv:gv grn:gn guj:gu hat:ht hau:ha hbs:sh heb:he her:hz
    hin:hi hmo:ho hrv:hr hun:hu hye:hy ibo:ig ido:io iii:ii iku:iu ile:ie ina:ia ind:id ipk:ik
    isl:is ita:it jav:jv jpn:ja kal:kl kan:kn kas:ks kat:ka kau:kr kaz:kk khk:mn khm:km kik:ki
    kin:rw kir:ky kom:kv kon:kg kor:ko kua:kj kur:ku lao:lo lat:la lav:lv lim:li lin:ln lit:lt
    ltz:lb lub:lu lug:lg lvs:lv mah:mh mal:ml mar:mr mkd:mk mlg:mg mlt:mt mon:mn mri:mi msa:ms
    mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne nld:nl nno:nn nob:nb nor:no npi:ne nya:ny
    oci:oc oji:oj ori:or orm:om ory:or oss:os pan:pa pbt:ps pes:fa pli:pi plt:mg pol:pl por:pt
    pus:ps que:qu roh:rm ron:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slv:sl sme:se smo:sm
    sna:sn snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv swh:sw
    tah:ty tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr
    twi:tw uig:ug ukr:uk urd:ur uzb:uz uzn:uz ven:ve vie:vi vol:vo wln:wa wol:wo xho:xh ydd:yi
    yid:yi yor:yo zha:za zho:zh zsm:ms zul:zu
    """,
    )
)


def base_language(code: str) -> str:
    """Return a code without script and region, in small letters: `pt` of `pt_BR` and `por_Latn`.

    It has two letters if ISO 639-1 has the language.
    """
    main = code.lower().replace("_", "-").split("-")[0]
    return _TWO_LETTERS.get(main, main)


# Each unit of a memory names the same two or three.
@functools.lru_cache(maxsize=256)
def language_tag(code: str) -> str:
    """Return the language tag (BCP 47) of a code: `pt-BR` of `pt_BR`, `de` of `deu_Latn`.

    A script is left out if it is the only one of its language: `zh-Hant`, but not `de-Latn`.
    """
    tags = [base_language(code)]
    is_plain = tags[0] != "zh" and scripts_of(tags[0])
    for part in code.replace("_", "-").split("-")[1:]:
        is_script = len(part) == 4 and part.isalpha()
        if not (is_script and is_plain):
            tags.append(part.title() if is_script else part.upper())
    return "-".join(tags)


def scripts_of(code: str) -> frozenset[str]:
    """Return the scripts of a language by the first words of their Unicode names.

    None for a language that is unknown, is written in several scripts, or whose code names a
    script other than simplified or traditional Chinese.
    """
    language = base_language(code)
    _, *parts = code.lower().replace("_", "-").split("-")
    scripts = {script for script, only in _LANGUAGE_OF_SCRIPT.items() if only == language}
    scripts |= {name for name, all_in in _LANGUAGES_OF_SCRIPT.items() if language in all_in.split()}
    has_script = any(len(part) == 4 and part not in ("hans", "hant") for part in parts)
    if has_script or language not in _CODES - _IN_SEVERAL_SCRIPTS:
        return frozenset()
    return frozenset(scripts or {"LATIN"})


def language_of_name(file: Path) -> str | None:
    """Return the ISO code at the end of a file name such as `train.en-de.de` or `a.zh-CN.gz`.

    A three-letter code needs a script (`eng_Latn`); without one it could be any ending.
    """
    for ending in reversed(file.name.split(".")):
        code = _ENDING.fullmatch(ending)
        if code is not None and code[1].lower() in _CODES:
            return code[1].lower() + ending[2:]
        if _THREE_LETTER_ENDING.fullmatch(ending):
            return ending
        if ending.lower() not in _NEUTRAL_ENDINGS:
            return None
    return None


def languages_of_name(file: Path) -> tuple[str, str] | None:
    """Return the ISO codes of a pair in a file name, such as `en-de.tmx` or `news.de-en.tsv`."""
    for part in file.name.lower().split("."):
        codes = part.split("-")
        if len(codes) == 2 and _CODES.issuperset(codes):
            return codes[0], codes[1]
    return None


def choose_languages(codes: Iterable[str], wanted: tuple[str, str]) -> list[str | None]:
    """Return the code of each side: the first of the same tag, else the first of the same language.

    Of `pt` and `pt-BR`, the text of one is not that of the other.
    """
    by_tag: dict[str, str] = {}
    for code in codes:
        by_tag.setdefault(language_tag(code), code)
    chosen = [by_tag.get(language_tag(language)) for language in wanted]
    for side, language in enumerate(wanted):
        if chosen[side] is None:
            base = base_language(language)
            same = (code for tag, code in by_tag.items() if base_language(tag) == base)
            chosen[side] = next((code for code in same if code not in chosen), None)
    return chosen


def side_names(languages: tuple[str, str]) -> tuple[str, str]:
    """Return what the names of both files of a parallel text end with: its languages."""
    source, target = languages
    return languages if source != target else (f"source.{source}", f"target.{target}")


def are_exchanged(given: Sequence[str | None], named: Sequence[str | None]) -> bool:
    """Return whether languages of source and target, as far as given, are those of the other side.

    `named` are the languages by file name; nothing is exchanged if one of them is unknown.
    """
    names = [code for code in named if code]
    if len(names) < len(named) or not any(given):
        return False
    # Of one language, regions or scripts count: `zh-CN` and `zh-TW`.
    is_one_language = len(set(map(base_language, names))) == 1
    rule = language_tag if is_one_language else base_language
    source, target = map(rule, names)
    wanted = [code and rule(code) for code in given]
    return source != target and wanted[0] in (None, target) and wanted[1] in (None, source)


def language_of_script(lines: Iterable[str]) -> str | None:
    """Return the ISO code of the only language in the script of a text, else None.

    Han without kana is Chinese. Scripts of several languages, such as Latin, give None. Only the
    first lines are read.
    """
    letters = collections.Counter(
        unicodedata.name(letter, "").split(" ")[0]
        for line in itertools.islice(lines, _SAMPLE_LINES)
        for letter in line
        if letter.isalpha()
    )
    kana = sum(letters[script] for script in _KANA)
    if kana > 0.1 * (kana + letters["CJK"]) and 2 * (kana + letters["CJK"]) > letters.total():
        return "ja"
    for script, language in _LANGUAGE_OF_SCRIPT.items():
        if 2 * letters[script] > letters.total():
            return language
    return None
