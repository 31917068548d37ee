"""Python that translates by CTranslate2 alone."""

from tformer_cli.export.check import BEAM_SIZE
from tformer_cli.export.token_example import imports, makers_of_tokens, text_of, tokens_of
from tformer_cli.text.tokenizer import Tokenizers


def example(tokenizers: Tokenizers, line: str, max_length: int) -> str:
    """Return lines of Python that translate a line of text inside an exported folder.

    Args:
        tokenizers: of the model.
        line: the text.
        max_length: longest translation in tokens.
    """
    return "\n".join(
        [
            f"import {', '.join(['ctranslate2', *imports(tokenizers)])}",
            *makers_of_tokens(tokenizers),
            f"tokens = {tokens_of(tokenizers, line)}",
            'found = ctranslate2.Translator(".").translate_batch(',
            f"    [tokens], beam_size={BEAM_SIZE}, max_decoding_length={max_length}, "
            "max_input_length=0",
            ")",
            f"print({text_of(tokenizers, 'found[0].hypotheses[0]')})",
        ]
    )
