"""Small Marian models as transformers saves them, with weights drawn at random."""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

SOURCES = ["The old dog sleeps.", "a cat sat on the mat", "dogs and cats", "green hats, too"]
TARGETS = ["Der alte Hund schläft.", "eine Katze saß da", "Hunde und Katzen", "auch grüne Hüte"]
CODE = ">>de<<"
LONGEST = 20


def sentencepiece(lines: Sequence[str], **options: Any) -> bytes:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def pieces(model: bytes) -> list[str]:
    """Return what a sentencepiece model has besides `<unk>`, `<s>` and `</s>`."""
    processor = SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def save_opus(
    folder: Path,
    *,
    targets: Sequence[str] = TARGETS,
    separate_vocabs: bool = False,
    **changes: Any,
) -> MarianMTModel:
    """Write a folder, whose target tokens are those of `targets`, and return its model."""
    folder.mkdir()
    source, target = sentencepiece(SOURCES), sentencepiece(targets)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    if separate_vocabs:
        # Of one size, so that <pad> has one id.
        both = list(zip(pieces(source), pieces(target), strict=False))
        source_pieces, target_pieces = ([pair[side] for pair in both] for side in (0, 1))
    else:
        source_pieces = target_pieces = sorted({*pieces(source), *pieces(target)})
    ids = [vocabulary(source_pieces), vocabulary(target_pieces)]
    write_json(folder / "vocab.json", ids[0])
    if separate_vocabs:
        write_json(folder / "target_vocab.json", ids[1])
    settings = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate_vocabs}
    write_json(folder / "tokenizer_config.json", settings)
    model = MarianMTModel(marian_config(len(ids[0]), **changes))
    randomise(model)
    model.save_pretrained(folder)
    return model.eval()


def randomise(model: MarianMTModel) -> None:
    """Let every part matter, and some translations end of themselves."""
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.data += 0.2 * torch.randn_like(weight)
        elif "embed_positions" not in name:
            torch.nn.init.normal_(weight, std=0.45)
    model.final_logits_bias.normal_()
    model.lm_head.weight.data[0] *= 2


def vocabulary(pieces: Sequence[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, CODE, "<pad>"])}


def marian_config(size: int, **changes: Any) -> MarianConfig:
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
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }
    return MarianConfig(**settings | changes)


def write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def change_json(file: Path, **changes: object) -> None:
    write_json(file, json.loads(file.read_text(encoding="utf-8")) | changes)


def unnamed(config: object) -> Iterator[None]:
    """Stand for the names of layers, where none may be asked for."""
    yield pytest.fail("layers have names")


def tokenizer_of(folder: Path) -> MarianTokenizer:
    return MarianTokenizer.from_pretrained(folder)


def greedy(model: MarianMTModel, tokenizer: MarianTokenizer, lines: Sequence[str]) -> list[str]:
    """Translate as `generate` does, without tokens that no translation of ours contains."""
    batch = tokenizer(list(lines), return_tensors="pt", padding=True)
    found = model.generate(
        **batch,
        num_beams=1,
        max_new_tokens=LONGEST,
        min_new_tokens=1,
        forced_eos_token_id=None,
        suppress_tokens=[tokenizer.pad_token_id, tokenizer.unk_token_id],
    )
    return tokenizer.batch_decode(found, skip_special_tokens=True)


@torch.no_grad()
def scores(
    model: MarianMTModel, tokenizer: MarianTokenizer, source: str, target: str
) -> tuple[float, ...]:
    """Return the log probability of each target token, `</s>` at the end, by the formula."""
    read = tokenizer([source], return_tensors="pt")
    written = tokenizer(text_target=target)["input_ids"]
    shown = torch.tensor([[tokenizer.pad_token_id, *written[:-1]]])
    logits = model(**read, decoder_input_ids=shown).logits[0]
    logits[:, [tokenizer.pad_token_id, tokenizer.unk_token_id]] = -torch.inf
    logits[0, tokenizer.eos_token_id] = -torch.inf
    return tuple(logits.log_softmax(-1)[range(len(written)), written].tolist())
