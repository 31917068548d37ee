"""The encoder of a masked encoder's run, for a translation model to begin with."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    MaskedEncoderConfig,
    TransformerConfig,
)
from tformer_cli.errors import ConfigError, Problem
from tformer_cli.model.build import build_network
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.masked_encoder import MaskedEncoder
from tformer_cli.storage.checkpoint import load_weights

DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout", "feedforward_dropout")
# Two encoders that differ in nothing else are the same function of the same weights.
FREE_KEYS = ("kind", "initialization", *DROPOUTS)


@dataclass(frozen=True, slots=True)
class PretrainedEncoder:
    """An encoder that has learnt from text alone.

    Attributes:
        run: the folder of its run.
        config: of the network that it is the encoder of.
        wanted: the config of the model that is to begin with it.
    """

    run: Path
    config: MaskedEncoderConfig
    wanted: EncoderDecoderConfig

    def load_into(self, model: EncoderDecoder, checkpoint: Path, file_name: str) -> str:
        """Give a model the encoder of a checkpoint, embeddings included.

        Args:
            model: that is wanted, with the vocabulary of the run.
            checkpoint: of the run.
            file_name: of the weights in it.

        Returns:
            How much of the model that is, in words.

        Raises:
            ConfigError: what is wanted has another encoder; names each key that makes it so.
            CheckpointError: the file is missing or cut short, or holds another model.
        """
        problems = list(self._misfits())
        if problems:
            raise ConfigError(problems)
        size = model.encoder.embeddings.tokens.num_embeddings
        network = build_network(self.config, source_size=size, target_size=size, seed=0)
        assert isinstance(network, MaskedEncoder), "so its config says"
        load_weights(checkpoint, network, file_name)
        model.encoder.load_state_dict(network.encoder.state_dict())
        taken = {id(weight): weight.numel() for weight in model.encoder.parameters()}
        others = [name for name, weight in model.named_parameters() if id(weight) not in taken]
        anew = dict.fromkeys(".".join(name.split(".")[:-1][:2]) for name in others)
        return (
            f"{sum(taken.values()):,} of {model.num_parameters():,} weights; "
            f"{', '.join(anew)} begin anew"
        )

    def _misfits(self) -> Iterator[Problem]:
        keys = [part.name for part in fields(TransformerConfig) if part.name not in FREE_KEYS]
        shapes = {key: (getattr(self.config, key), getattr(self.wanted, key)) for key in keys}
        shapes["num_encoder_layers"] = self.config.num_layers, self.wanted.num_encoder_layers
        for key, (theirs, ours) in shapes.items():
            if theirs != ours:
                what = f"must be {shown(theirs)}, as in the encoder of {self.run}"
                yield Problem(f"model.{key}", what, shown(ours))
        if self.config.norm_position == self.wanted.norm_position == "deep":
            yield Problem(
                "model.norm_position",
                f"must not be deep with the encoder of {self.run}, whose residuals weigh otherwise",
                "deep",
            )


def shown(value: object) -> str:
    """Return the value of a key as a config has it."""
    return value if isinstance(value, str) else json.dumps(as_plain(value))
