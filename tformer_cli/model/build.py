"""Build a network from a config, and initialize its weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
    TransformerConfig,
)
from tformer_cli.device import seed_device
from tformer_cli.model.blocks.embeddings import Embeddings
from tformer_cli.model.causal_lm import CausalLM
from tformer_cli.model.encoder import MaskedEncoder
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.network import Network, Seq2Seq

# Of the scheme `normal` (Radford et al. 2018, section 4.1).
STD = 0.02


def build_network(config: ModelConfig, *, source_size: int, target_size: int, seed: int) -> Network:
    """Return a network on the CPU whose initial weights are a function of `seed`.

    Args:
        config: its shape.
        source_size: source vocabulary size.
        target_size: target vocabulary size; the same for a shared vocabulary.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        seed_device(torch.device("cpu"), seed)
        network = _network(config, source_size, target_size)
        initialize(network, config)
    network.tie_weights(config.tie_embeddings)
    return network


def _network(config: ModelConfig, source_size: int, target_size: int) -> Network:
    if isinstance(config, EncoderDecoderConfig):
        return EncoderDecoder(config, source_size=source_size, target_size=target_size)
    if isinstance(config, DecoderOnlyConfig):
        return CausalLM(config, vocab_size=target_size)
    return MaskedEncoder(config, vocab_size=source_size)


class SkipRandomInit(TorchFunctionMode):
    """Leave parameters uninitialized that a checkpoint overwrites anyway.

    The meta device would do so too, but buffers are computed, not loaded.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.uniform_, Tensor.normal_) or func in vars(nn.init).values():
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_model(config: ModelConfig, *, source_size: int, target_size: int, seed: int) -> Seq2Seq:
    """Return a network that translates."""
    network = build_network(config, source_size=source_size, target_size=target_size, seed=seed)
    assert isinstance(network, Seq2Seq), f"{config.kind} does not translate"
    return network


def build_with_weights(
    config: ModelConfig, weights: Mapping[str, Tensor], *, source_size: int, target_size: int
) -> Seq2Seq:
    """Return a network that translates, in evaluation mode, with a copy of weights by name."""
    with SkipRandomInit():
        model = build_model(config, source_size=source_size, target_size=target_size, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval()


def initialize(network: Network, config: TransformerConfig) -> None:
    """Initialize all weights from torch's global random generator, before any are tied.

    Biases are zero, norms keep their ones and zeros. Embeddings and tables of positions are
    N(0, 1/D), so scaled embeddings have variance 1; the row of `<pad>`, id 0, is zero. Matrices:

    xavier: uniform (Glorot and Bengio 2010).
    normal: N(0, 0.02^2); the last matrix of a block is divided by the root of the number of blocks
        (Radford et al. 2019, section 2.3).
    t5: N(0, 1 / fan-in) (Raffel et al. 2020); T5 initializes queries smaller by sqrt(Dh), since it
        does not divide logits by it.

    DeepNorm multiplies values, outputs and feed-forward matrices by its beta.
    """
    draw = SCHEMES[config.initialization]
    for module in network.modules():
        if isinstance(module, nn.Linear):
            draw(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.dim**-0.5)
    for stack in network.stacks():
        blocks = [block for layer in stack.each_layer() for block in layer.blocks()]
        for block in blocks:
            if config.initialization == "normal":
                block.output_projections()[-1].weight.data.mul_(len(blocks) ** -0.5)
            if config.norm_position == "deep":
                for linear in block.output_projections():
                    linear.weight.data.mul_(stack.deep_norm.beta)
    for module in network.modules():
        if isinstance(module, Embeddings):
            nn.init.zeros_(module.tokens.weight[0])


def _xavier(weight: Tensor) -> None:
    nn.init.xavier_uniform_(weight)


def _normal(weight: Tensor) -> None:
    nn.init.normal_(weight, std=STD)


def _t5(weight: Tensor) -> None:
    nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


SCHEMES: dict[str, Callable[[Tensor], None]] = {"xavier": _xavier, "normal": _normal, "t5": _t5}
