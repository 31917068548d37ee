"""What it takes to translate by CTranslate2 alone: what makes tokens, and Python that uses it."""

import re

from tformer_cli.export.check import BEAM_SIZE
from tformer_cli.text.marian import MarianTokenizer
from tformer_cli.text.tokenizer import Tokenizers

PACKAGES = {
    "subword": ["ctranslate2", "sentencepiece"],
    "marian": ["ctranslate2", "sentencepiece"],
    "word": ["ctranslate2", "torchtext==0.6.0"],
    "char": ["ctranslate2"],
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


def example(tokenizers: Tokenizers, line: str, max_length: int) -> str:
    """Return lines of Python that translate a line of text inside an exported folder.

    Args:
        tokenizers: of the model.
        line: the text.
        max_length: longest translation in tokens.
    """
    imports = ["ctranslate2"]
    if sentencepiece_models(tokenizers):
        imports.append("sentencepiece")
    if tokenizers.source.normalizer.nfkc:
        imports.append("unicodedata")
    return "\n".join(
        [
            f"import {', '.join(imports)}",
            *_makers_of_tokens(tokenizers),
            f"tokens = {_tokens_of(tokenizers, line)}",
            'found = ctranslate2.Translator(".").translate_batch(',
            f"    [tokens], beam_size={BEAM_SIZE}, max_decoding_length={max_length}, "
            "max_input_length=0",
            ")",
            f"print({_text_of(tokenizers, 'found[0].hypotheses[0]')})",
        ]
    )


def _makers_of_tokens(tokenizers: Tokenizers) -> list[str]:
    if tokenizers.source.kind == "word":
        return ["from torchtext.data.utils import get_tokenizer"]
    return [
        f'{name} = sentencepiece.SentencePieceProcessor(model_file="{name}.model")'
        for name in sentencepiece_models(tokenizers)
    ]


def _tokens_of(tokenizers: Tokenizers, line: str) -> str:
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


def _text_of(tokenizers: Tokenizers, tokens: str) -> str:
    """Return Python that makes text of the tokens of a translation."""
    match tokenizers.target.kind:
        case "char":
            return f'"".join({tokens})'
        case "word":
            return f'" ".join({tokens})'
    *_, name = sentencepiece_models(tokenizers)
    return f"{name}.decode({tokens})"
