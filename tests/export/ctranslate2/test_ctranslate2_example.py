"""The Python of a model card, run as it stands."""

import ast
import contextlib
import io
from dataclasses import replace

import pytest
import torch
from exportable import BASE, trained

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig, WordConfig
from tformer_cli.export.ctranslate2.format import CTranslate2Format
from tformer_cli.model.build import build_model
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.subword import MarianTokenizer, marian_file
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.text.vocabulary import NUM_SPECIAL
from tformer_cli.translate.translator import Translator

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

PAIRS = [(f"the Dog {i} sleeps, ok", f"der Hund {i} schläft, gut") for i in range(30)]
BEAM = BeamConfig(beam_size=5, max_length=15)
LINE = "Ｔhe Dog 'sleeps' ok: 漢\\"


def learnt(config) -> Tokenizers:
    return build_tokenizers(config, lambda: PAIRS, seed=1)


def marian() -> Tokenizers:
    """Two sentencepiece models, the vocabulary of both, and a language code in it."""
    apart = learnt(SubwordConfig(vocab_size=310, shared=False))
    sides = (apart.source, apart.target)
    pieces = [side.tokens(range(NUM_SPECIAL, side.size)) for side in sides]
    whole = list(dict.fromkeys([">>de<<", *pieces[0], *pieces[1]]))
    source, target = (
        MarianTokenizer(marian_file(side.content, whole), Normalizer(), name="x") for side in sides
    )
    return Tokenizers(source, target, shared=True)


TOKENIZERS = {
    "shared": lambda: learnt(SubwordConfig(vocab_size=320)),
    "apart": lambda: learnt(
        SubwordConfig(vocab_size=310, shared=False, lowercase="source", nfkc="source")
    ),
    "char": lambda: learnt(CharConfig(lowercase="source")),
    "word": lambda: learnt(WordConfig()),
    "marian": marian,
}
NUM_STATEMENTS = {"shared": 5, "apart": 6, "char": 4, "word": 5, "marian": 6}


def known(tokenizers: Tokenizers):
    """A model of these tokens; characters that no piece has go through bytes."""
    config = replace(BASE, tie_embeddings="all" if tokenizers.shared else "output")
    model = build_model(
        config, source_size=tokenizers.source.size, target_size=tokenizers.target.size, seed=5
    )
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return trained(model.eval(), tokenizers, config)


@pytest.mark.parametrize("line", [LINE, f">>de<<{LINE}"], ids=["plain", "code"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_example_in_python_prints_the_translation(kind, line, tmp_path, monkeypatch):
    model, form = known(TOKENIZERS[kind]()), CTranslate2Format()
    form.write(model, tmp_path)
    python = form.example(model, line)
    assert len(ast.parse(python).body) == NUM_STATEMENTS[kind]
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(python, {})
    translator = Translator.from_model(
        model.model, model.tokenizers, model.config, torch.device("cpu")
    )
    assert printed.getvalue() == f"{translator.translate([line], decoding=BEAM)[0]}\n"
    imported = {package.partition("=")[0] for package in form.packages(model)}
    assert all(package in python for package in imported)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("shared", ["shared.model"]),
        ("apart", ["source.model", "target.model"]),
        ("marian", ["source.model", "target.model"]),
        ("char", []),
    ],
)
def test_files_that_make_tokens_are_those_of_the_run(kind, names, tmp_path):
    tokenizers = TOKENIZERS[kind]()
    CTranslate2Format("int8").write(known(tokenizers), tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.model")) == names
    contents = [
        getattr(side, "model", side.content) for side in (tokenizers.source, tokenizers.target)
    ]
    for name, content in zip(names, contents, strict=False):
        assert (tmp_path / name).read_bytes() == content
