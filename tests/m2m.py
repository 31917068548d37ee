"""Small M2M-100, NLLB and mBART-50 models as transformers saves them, with random weights."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from opus import SOURCES, TARGETS, pieces, sentencepiece, write_json
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    NllbTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tformer_cli.storage.trained_model import TrainedModel

LONGEST = 24
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
NLLB_LANGUAGES = ["eng_Latn", "deu_Latn", "zho_Hans"]
# Two rows of the table have no token, as in NLLB.
NUM_UNUSED = 2


class Family(NamedTuple):
    """A family of transformers, and a pair of its languages."""

    model: type[PreTrainedModel]
    config: type[M2M100Config] | type[MBartConfig]
    tokenizer: type[PreTrainedTokenizerBase]
    algorithm: str
    languages: tuple[str, str]
    settings: dict[str, Any]  # of tokenizer_config.json


FAMILIES = {
    "m2m": Family(
        M2M100ForConditionalGeneration,
        M2M100Config,
        M2M100Tokenizer,
        "bpe",
        ("en", "de"),
        {"language_codes": "wmt21", "src_lang": "en", "tgt_lang": "de"},
    ),
    "nllb": Family(
        M2M100ForConditionalGeneration,
        M2M100Config,
        NllbTokenizer,
        "bpe",
        ("eng_Latn", "deu_Latn"),
        {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"},
    ),
    "mbart": Family(
        MBartForConditionalGeneration,
        MBartConfig,
        MBart50Tokenizer,
        "unigram",
        ("en_XX", "de_DE"),
        {"src_lang": "en_XX", "tgt_lang": "de_DE"},
    ),
}


def lines(count: int = 200) -> list[str]:
    words = " ".join([*SOURCES, *TARGETS]).split()
    generator = random.Random(5)
    return [" ".join(generator.choices(words, k=generator.randint(1, 9))) for _ in range(count)]


def save_m2m(folder: Path, name: str, **changes: Any) -> PreTrainedModel:
    """Write a folder of a family, with all files that transformers saves, and return its model."""
    folder.mkdir()
    family = FAMILIES[name]
    model = sentencepiece([*SOURCES, *TARGETS], model_type=family.algorithm)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    subwords = [*SPECIAL, *pieces(model)]
    settings = family.settings | {"tokenizer_class": family.tokenizer.__name__}
    if name == "m2m":
        write_json(folder / "vocab.json", {token: i for i, token in enumerate(subwords)})
    if name == "nllb":
        added = enumerate([*NLLB_LANGUAGES, "<mask>"], start=len(subwords))
        decoder = {str(i): {"content": token, "special": True} for i, token in added}
        settings |= {"additional_special_tokens": NLLB_LANGUAGES, "added_tokens_decoder": decoder}
    write_json(folder / "tokenizer_config.json", settings)
    tokenizer = tokenizer_of(folder, name)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    size = 1 + NUM_UNUSED + max(language_id(tokenizer, x) for x in languages_of(tokenizer))
    network = family.model(config(family, size, **changes))
    randomise(network)
    network.save_pretrained(folder)
    return network.eval()


def config(family: Family, size: int, **changes: Any) -> M2M100Config | MBartConfig:
    settings = {
        "vocab_size": size,
        "d_model": 12,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 17,
        "decoder_ffn_dim": 17,
        "max_position_embeddings": 64,
        "decoder_start_token_id": 2,
        "scale_embedding": True,
        "forced_eos_token_id": None,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    }
    return family.config(**settings | changes)


def randomise(model: PreTrainedModel) -> None:
    """Let every part matter, and some translations end of themselves."""
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += 0.2 * torch.randn_like(weight)
        else:
            torch.nn.init.normal_(weight, std=0.45)
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data *= 3
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    model.lm_head.weight.data[2] *= 2


def tokenizer_of(folder: Path, name: str) -> PreTrainedTokenizerBase:
    source, target = FAMILIES[name].languages
    return FAMILIES[name].tokenizer.from_pretrained(folder, src_lang=source, tgt_lang=target)


def languages_of(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the languages of a tokenizer, and `<mask>` where it is one of its tokens."""
    if isinstance(tokenizer, M2M100Tokenizer):
        return list(tokenizer.lang_code_to_id)
    return [x for x in tokenizer.all_special_tokens if x not in SPECIAL]


def language_id(tokenizer: PreTrainedTokenizerBase, language: str) -> int:
    """Return the id of the token of a language."""
    if isinstance(tokenizer, M2M100Tokenizer):
        language = tokenizer.get_lang_token(language)
    number: int = tokenizer.convert_tokens_to_ids(language)
    return number


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    target: str,
    **search: Any,
) -> list[list[int]]:
    """Translate as `generate` does, without tokens that no translation of ours contains."""
    batch = tokenizer(list(sources), return_tensors="pt", padding=True)
    suppressed = [tokenizer.convert_tokens_to_ids(x) for x in ("<s>", "<pad>", "<unk>", "<mask>")]
    ids = model.generate(
        **batch,
        forced_bos_token_id=language_id(tokenizer, target),
        max_new_tokens=LONGEST,
        suppress_tokens=sorted(set(suppressed)),
        renormalize_logits=True,
        **search,
    )
    return [[i for i in row if i not in (1, 2)] for row in ids.tolist()]


def token_ids(model: TrainedModel) -> torch.Tensor:
    """Return our id of each of their tokens, by what these are called."""
    tokenizer = model.tokenizers.target
    ours = {token: i for i, token in enumerate(tokenizer.tokens(range(tokenizer.size)))}
    return torch.tensor([ours[token] for token in tokenizer.vocabulary])
