"""Every kind of network translates on a GPU, and stands by what it says."""

from dataclasses import replace

import pytest
import torch
from accelerator import DEVICE, on_gpu
from test_gpu_model import VARIANTS, V, network

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig, SampleConfig
from tformer_cli.config.schema.model import LatentConfig
from tformer_cli.search.engine import Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine

pytestmark = on_gpu

START, END = 2, 3
LONGEST = 12
STREAM = VARIANTS["one stream"]
NETWORKS = VARIANTS | {
    "normed stream": replace(STREAM, qk_norm=True),
    "latent stream": replace(STREAM, latent=LatentConfig(kv_lora_rank=16, rope_head_dim=8)),
}
SEARCHES = {
    "greedy": GreedyConfig(max_length=LONGEST),
    "beam": BeamConfig(beam_size=4, max_length=LONGEST),
    "sample": SampleConfig(max_length=LONGEST),
}
# How far a token's log probability may be off: the digits of logits of about 4.
ERRORS = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


def requests(count: int) -> list[Request]:
    random = torch.Generator().manual_seed(6)
    lengths = torch.randint(1, 30, (count,), generator=random).tolist()
    return [
        Request([*torch.randint(6, V, (length,), generator=random).tolist(), END], number=number)
        for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("precision", ERRORS, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_translation_is_as_probable_as_the_search_says(name, precision):
    """Searches go by the cache, a token after the other; scoring sees all at once."""
    roles = SpecialTokens(START, END, (0, 1, 2, 4, 5))
    engine = NativeEngine(
        network(NETWORKS[name], DEVICE), roles, device=DEVICE, precision=precision
    )
    asked = requests(23)
    for search in SEARCHES.values():
        best = [hypotheses[0] for hypotheses in engine.translate(asked, search)]
        pairs = [
            (request.source, found.token_ids) for request, found in zip(asked, best, strict=True)
        ]
        for found, log_probs in zip(best, engine.scorer.score(pairs), strict=True):
            known = log_probs if found.finished else log_probs[:-1]
            off = abs(found.log_prob - sum(known))
            assert off < ERRORS[precision] * len(known)
