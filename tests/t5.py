"""Small T5 models as transformers saves them, with weights drawn at random."""

from pathlib import Path
from typing import Any

import torch
from opus import SOURCES, TARGETS, sentencepiece, write_json
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

TAGS = ["<2de>", "<2fr>"]
# Rows that no text has: `<extra_id_0>` and so on, and padding of the table.
NUM_EXTRA, NUM_PADDING = 5, 7
V1_0 = {"feed_forward_proj": "relu", "tie_word_embeddings": True, "d_kv": 4}
# Its targets begin with `<unk>`, and its padding is `<s>`.
MADLAD = {"decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
PREFIX = "translate English to German: "
TASKS = {"translation_en_to_de": {"prefix": PREFIX}, "summarization": {"prefix": "summarize: "}}
CASES: dict[str, dict[str, Any]] = {
    "1.0": V1_0 | {"task_specific_params": TASKS},
    "1.1": {},
    "1.1-tied": {"d_model": 16, "d_kv": 3, "num_heads": 2, "tied": True},
    "mt5": {"is_mt5": True, "num_layers": 1, "num_decoder_layers": 3},
    "madlad": {"is_madlad": True, "feed_forward_proj": "gated-silu"},
}


def save_t5(
    folder: Path,
    *,
    is_madlad: bool = False,
    is_mt5: bool = False,
    tied: bool = False,
    **changes: Any,
) -> T5ForConditionalGeneration:
    """Write a folder of T5 1.1, or with changes, and return its model."""
    folder.mkdir()
    pieces = _pieces(is_madlad=is_madlad)
    (folder / "spiece.model").write_bytes(pieces)
    size = SentencePieceProcessor(model_proto=pieces).get_piece_size()
    extra = 0 if is_madlad else NUM_EXTRA
    tokenizer = {"tokenizer_class": "T5Tokenizer", "extra_ids": extra}
    tokenizer |= {"pad_token": "<s>"} if is_madlad else {}
    write_json(folder / "tokenizer_config.json", tokenizer)
    settings = {
        "vocab_size": size if is_madlad else size + extra + NUM_PADDING,
        "d_model": 12,
        "d_kv": 5,
        "d_ff": 17,
        "num_layers": 2,
        "num_decoder_layers": 1,
        "num_heads": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
    }
    settings |= (MADLAD if is_madlad else {}) | changes
    model = (
        MT5ForConditionalGeneration(MT5Config(**settings))
        if is_mt5
        else T5ForConditionalGeneration(T5Config(**settings))
    )
    if not (tied or settings["tie_word_embeddings"]):
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        model.all_tied_weights_keys.pop("lm_head.weight")
    for name, weight in model.named_parameters():
        # Sources matter most, so that translations differ.
        std = 1.0 if "EncDecAttention" in name else 0.4 if "block" in name else 1.0
        weight.data = torch.randn_like(weight) * std
    model.save_pretrained(folder)
    return model.eval()


def _pieces(*, is_madlad: bool) -> bytes:
    if not is_madlad:
        ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        return sentencepiece([*SOURCES, *TARGETS], model_type="unigram", **ids)
    lines = [*SOURCES, *TARGETS]
    proto = ModelProto.FromString(
        sentencepiece(lines, model_type="unigram", user_defined_symbols=TAGS)
    )
    for piece in proto.pieces:
        # An ordinary piece, by which T5Tokenizer segments text as sentencepiece does.
        piece.type = 1 if piece.piece in TAGS else piece.type
    return proto.SerializeToString()


def tokenizer_of(folder: Path) -> T5Tokenizer:
    return T5Tokenizer.from_pretrained(folder)
