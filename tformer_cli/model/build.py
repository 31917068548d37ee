"""From a config to a network with its first weights."""

import torch

from tformer_cli.config.schema.model import DecoderOnlyConfig, EncoderDecoderConfig, ModelConfig
from tformer_cli.device import seed_device
from tformer_cli.model.causal_lm import DecoderOnly
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.masked_encoder import MaskedEncoder
from tformer_cli.model.network import Network, Seq2Seq


def build_network(config: ModelConfig, *, source_size: int, target_size: int, seed: int) -> Network:
    """Return a network on the CPU whose weights are a function of `seed`.

    Args:
        config: its shape.
        source_size: size of the source vocabulary.
        target_size: size of the target vocabulary; the same where there is but one.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        seed_device(torch.device("cpu"), seed)
        if isinstance(config, EncoderDecoderConfig):
            return EncoderDecoder(config, source_size=source_size, target_size=target_size)
        if isinstance(config, DecoderOnlyConfig):
            return DecoderOnly(config, vocab_size=target_size)
        return MaskedEncoder(config, vocab_size=source_size)


def build_model(config: ModelConfig, *, source_size: int, target_size: int, seed: int) -> Seq2Seq:
    """Return a network that translates; arguments as `build_network` has them."""
    network = build_network(config, source_size=source_size, target_size=target_size, seed=seed)
    assert isinstance(network, Seq2Seq), f"{config.kind} does not translate"
    return network
