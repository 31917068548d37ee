"""What another program needs to make tokens of text, and text of tokens: files, and Python."""

import re

from tformer_cli.text.subword import MarianTokenizer
from tformer_cli.text.tokenizer import Tokenizers

# What the Python needs, by the kind of tokenizer.
TOKEN_PACKAGES = {
    "subword": ["sentencepiece"],
    "marian": ["sentencepiece"],
    "word": ["torchtext==0.6.0"],
    "char": [],
}


def sentencepiece_models(tokenizers: Tokenizers) -> dict[str, bytes]:
    """Return the sentencepiece models of both sides, by the names of their files without suffix."""
    source, target = tokenizers.source, tokenizers.target
    if isinstance(source, MarianTokenizer) and isinstance(target, MarianTokenizer):
        return {"source": source.model, "target": target.model}
    if source.kind != "subword":
        return {}
    if tokenizers.shared:
        return {"shared": source.content}
    return {"source": source.content, "target": target.content}


def imports(tokenizers: Tokenizers) -> list[str]:
    """Return the modules that the Python below is to find imported."""
    modules = ["sentencepiece"] if sentencepiece_models(tokenizers) else []
    return [*modules, "unicodedata"] if tokenizers.source.normalizer.nfkc else modules


def makers_of_tokens(tokenizers: Tokenizers) -> list[str]:
    """Return lines of Python that make what the others use."""
    if tokenizers.source.kind == "word":
        return ["from torchtext.data.utils import get_tokenizer"]
    return [
        f'{name} = sentencepiece.SentencePieceProcessor(model_file="{name}.model")'
        for name in sentencepiece_models(tokenizers)
    ]


def tokens_of(tokenizers: Tokenizers, line: str) -> str:
    """Return Python that makes tokens of a line."""
    source = tokenizers.source
    # Marian's code of a target language is one token, and sentencepiece does not know it.
    code = re.match(">>.*?<<", line) if source.kind == "marian" else None
    text = repr(line[code.end() :] if code else line)
    if source.normalizer.nfkc:
        text = f'unicodedata.normalize("NFKC", {text})'
    if source.normalizer.lowercase:
        text = f"{text}.lower()"
    if source.kind == "char":
        return f"list({text})"
    if source.kind == "word":
        return f'get_tokenizer("basic_english")({text})'
    name = next(iter(sentencepiece_models(tokenizers)))
    pieces = f"{name}.encode({text}, out_type=str)"
    return f"[{code[0]!r}, *{pieces}]" if code else pieces


def text_of(tokenizers: Tokenizers, tokens: str) -> str:
    """Return Python that makes text of the tokens of a translation."""
    match tokenizers.target.kind:
        case "char":
            return f'"".join({tokens})'
        case "word":
            return f'" ".join({tokens})'
    *_, name = sentencepiece_models(tokenizers)
    return f"{name}.decode({tokens})"
