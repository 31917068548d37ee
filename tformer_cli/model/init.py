"""The weights a model starts from."""

from torch import nn

from tformer_cli.model.embeddings import Embeddings


def initialise(model: nn.Module) -> None:
    """Give every parameter its first value, from torch's global random generator.

    Matrices are Xavier uniform (Glorot and Bengio 2010), biases zero, embeddings normal with
    standard deviation D ** -0.5, so that the scaled ones have variance 1; the row of `<pad>` is
    zero. Norms keep their ones and zeros.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    for module in model.modules():
        if isinstance(module, Embeddings):
            nn.init.zeros_(module.tokens.weight[0])
