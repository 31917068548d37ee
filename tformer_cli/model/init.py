"""The weights a model starts from."""

from collections.abc import Callable

from torch import Tensor, nn

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.model.blocks.embeddings import Embeddings
from tformer_cli.model.network import Network

# Of weights by the scheme `normal` (Radford et al. 2018, section 4.1).
STD = 0.02


def initialize(network: Network, config: TransformerConfig) -> None:
    """Give every parameter its first value, from torch's global random generator.

    Matrices are Xavier uniform (Glorot and Bengio 2010); normal with 0.02, and those at the end of
    a block divided by the root of how many blocks its stack has (Radford et al. 2019, section 2.3);
    or normal with the root of 1 / fan-in (T5, whose queries, with their logits not divided by
    sqrt(Dh), begin as much smaller). Biases are zero. Embeddings, like tables of positions and of
    distances, are normal with standard deviation D ** -0.5, so that scaled ones have variance 1;
    the row of `<pad>` is zero. Norms keep their ones and zeros.

    Args:
        network: whose weights are to be set, none of which are shared yet.
        config: names the scheme; with DeepNorm, values and what follows them begin smaller by the
            beta of their stack.
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
                scale_(block.output_projections()[-1].weight, len(blocks) ** -0.5)
            if config.norm_position == "deep":
                for linear in block.output_projections():
                    scale_(linear.weight, stack.depth.deep_norm.beta)
    for module in network.modules():
        if isinstance(module, Embeddings):
            nn.init.zeros_(module.tokens.weight[0])


def scale_(weight: Tensor, factor: float) -> None:
    """Multiply a weight in place, outside of what gradients see."""
    weight.data.mul_(factor)


def _xavier(weight: Tensor) -> None:
    nn.init.xavier_uniform_(weight)


def _normal(weight: Tensor) -> None:
    nn.init.normal_(weight, std=STD)


def _t5(weight: Tensor) -> None:
    nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


SCHEMES: dict[str, Callable[[Tensor], None]] = {"xavier": _xavier, "normal": _normal, "t5": _t5}
