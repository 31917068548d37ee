"""What lines become: pieces with their language code, phrases in all their spellings, limits."""

from collections.abc import Sequence

import pytest

from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.errors import DataError, UsageError
from tformer_cli.search.engine import Request
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.segments import Terminology, unit_indices
from tformer_cli.text.subword import MarianTokenizer, marian_file, sentencepiece_processor
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.translate.preprocess import InputLine, Preprocessor, input_lines

JAPANESE = ["東京都に住む。", "私は東京に行く。", "京都は東京ではない。"]
CODE = ">>fr<<"


def preprocessor(tokenizers: Tokenizers, **options: object) -> Preprocessor:
    settings = {
        "max_source_length": 9,
        "max_source_sentences": None,
        "max_positions": None,
        "long_lines": "split",
        "uses_whitespace": True,
    }
    return Preprocessor(tokenizers=tokenizers, **settings | options)


def encoded(
    tokenizers: Tokenizers,
    line: InputLine,
    *,
    where: str = "x",
    banned: Sequence[str] = (),
    terminology: Terminology | None = None,
    **options: object,
) -> list[Request]:
    own = preprocessor(tokenizers, **options)
    ids = own.encode_banned(banned)
    return own.encode(line, number=1, where=where, banned=ids, terminology=terminology)


def learned(lines: Sequence[str]) -> Tokenizers:
    pairs = [(line, line) for line in lines] * 9
    return build_tokenizers(SubwordConfig(vocab_size=300), lambda: pairs, seed=1)


@pytest.fixture(scope="module")
def japanese() -> Tokenizers:
    return learned(JAPANESE)


@pytest.fixture(scope="module")
def marian() -> Tokenizers:
    """The pieces of a model of ours, with a language code."""
    model = learned(["an old dog sleeps.", "a cat sat, and so on."]).source.content
    processor = sentencepiece_processor(model, "x", "")
    pieces = [processor.id_to_piece(i) for i in range(16, processor.get_piece_size())]
    content = marian_file(model, [*pieces, CODE])
    both = [MarianTokenizer(content, Normalizer(), name="x.json") for _ in range(2)]
    return Tokenizers(*both, shared=True)


def said(tokenizers: Tokenizers, line: str) -> list[str]:
    """The text of each piece of a line; none is longer than it may be."""
    sources = [one.source[:-1] for one in encoded(tokenizers, InputLine(line))]
    assert all(len(ids) <= 9 for ids in sources)
    return ["".join(tokenizers.source.tokens(ids)).replace("▁", " ") for ids in sources]


def test_each_piece_of_a_long_line_has_its_language_code(marian):
    text = "an old dog sleeps. a cat sat, and so on. a dog sat."
    pieces = said(marian, f"{CODE} {text}")
    assert len(pieces) > 2
    assert all(piece.startswith(CODE) for piece in pieces)
    assert "".join(piece.removeprefix(CODE) for piece in pieces) == f" {text}"


def test_a_language_code_that_is_repeated_is_no_further_word_of_the_line(marian):
    line = f"{CODE} an old dog sleeps. a cat sat, and so on. a dog sat."
    found = encoded(marian, InputLine(line))
    sources = [one.source[:-1] for one in found]
    numbers = unit_indices(marian.source, sources, [one.first_word for one in found], " ")
    tokens = [token for ids in sources for token in marian.source.tokens(ids)]
    of_words = [
        number
        for number, token in zip(numbers, tokens, strict=True)
        if token != CODE and number is not None
    ]
    assert list(dict.fromkeys(of_words)) == [*range(1, len(line.split()))]
    assert tokens.count(CODE) > 2


def test_what_is_no_language_code_of_the_model_stands_in_the_first_piece_alone(marian):
    pieces = said(marian, ">>an old dog<< sleeps. a cat sat, and so on. a dog sat.")
    assert [piece.startswith("<unk>") for piece in pieces] == [True, *[False] * (len(pieces) - 1)]
    assert len(pieces) > 1


@pytest.mark.parametrize("gap", [" ", "    "])
def test_a_line_that_is_cut_short_has_the_terms_of_what_is_left(gap):
    tokenizers = learned(["an old dog sleeps.", "a cat sat, and so on."])
    line = gap + gap.join(["an", "old", "dog", "sat.", "a", "cat", "and", "a", "dog", "sleeps."])
    most = len(tokenizers.source.encode("an old dog sat. a cat"))
    (request,) = encoded(
        tokenizers,
        InputLine(line),
        max_source_length=most,
        long_lines="truncate",
        terminology=Terminology(["cat\tdog", "sleeps\tsat"], "terms", source_language="en"),
    )
    assert [tokenizers.target.decode(ids) for ids in request.required] == ["dog"]


def test_without_whitespace_a_word_is_banned_at_the_beginning_and_within(japanese):
    options = {"uses_whitespace": False, "banned": ["東京", "東京"]}
    (request,) = encoded(japanese, InputLine("私"), **options)
    spelled = ["".join(japanese.target.tokens(ids)) for ids in request.banned]
    assert spelled == ["▁東京", "東京"]
    with pytest.raises(DataError) as caught:
        encoded(japanese, InputLine("私", phrases=["東京"]), where="x.ja:1", **options)
    assert str(caught.value) == ("a required phrase of x.ja:1: contains a banned word ('東京')")


def test_a_prefix_that_contains_a_banned_word_is_refused(marian):
    encoded(marian, InputLine("a", "an old cat"), banned=["old dog"])
    for prefix in ("old dog", "an old dog sat"):
        with pytest.raises(DataError) as caught:
            encoded(marian, InputLine("a", prefix), where="x.en:1", banned=["old dog"])
        assert str(caught.value) == (f"the prefix of x.en:1: contains a banned word ({prefix!r})")


def test_between_spaces_a_word_has_one_spelling(marian):
    (request,) = encoded(marian, InputLine("a"), banned=["dog"])
    assert request.banned == (tuple(marian.target.encode("dog")),)


@pytest.mark.parametrize("uses_whitespace", [True, False])
@pytest.mark.parametrize("phrase", ["", " "])
def test_a_banned_phrase_without_tokens_is_refused(japanese, uses_whitespace, phrase):
    with pytest.raises(DataError) as caught:
        preprocessor(japanese, uses_whitespace=uses_whitespace).encode_banned([phrase])
    assert str(caught.value) == f"`banned`: has no token ({phrase!r})"


def test_prefix_and_phrases_together_stay_within_what_the_model_can_write(marian):
    needed = len(marian.target.encode("dog cat sat")) + 1
    options = {"where": "x.en:1", "max_positions": needed, "max_source_length": needed - 1}
    encoded(marian, InputLine("a", "dog", ["cat", "sat"]), **options)
    with pytest.raises(DataError) as caught:
        encoded(marian, InputLine("a", "dog", ["cat", "sat sat"]), **options)
    assert str(caught.value).startswith(
        f"x.en:1: requires more tokens than the {needed} positions that the model has learned ("
    )
    assert str(caught.value).endswith(" tokens); shorten its prefix or its required phrases")


@pytest.mark.parametrize("argument", ["prefixes", "required"])
@pytest.mark.parametrize(("count", "got"), [(1, "none for line 2"), (3, "more than 2")])
def test_each_line_has_an_item_of_what_goes_with_lines(argument, count, got):
    items = {"prefixes": "ab", "required": [["a"]]}[argument]
    given = {"prefixes": None, "required": None} | {argument: [items] * count}
    with pytest.raises(UsageError) as caught:
        list(input_lines(["a", "b"], **given))
    assert str(caught.value) == f"`{argument}`: must have an item for each line ({got})"
    assert len(list(input_lines(["a"] * count, **given))) == count


@pytest.mark.parametrize(
    ("line", "banned", "where"),
    [
        (InputLine("Stra\udcdfe"), (), "x"),
        (InputLine("a", prefix="Stra\udcdfe"), (), "x"),
        (InputLine("a", phrases=["b", "Stra\udcdfe"]), (), "x"),
        (InputLine("a"), ["b", "Stra\udcdfe"], "`banned`"),
    ],
)
def test_bytes_of_a_command_line_that_are_no_utf_8_are_refused(japanese, line, banned, where):
    with pytest.raises(UsageError) as caught:
        encoded(japanese, line, banned=banned)
    assert str(caught.value) == f"{where}: is not UTF-8 ('Stra\\udcdfe')"
