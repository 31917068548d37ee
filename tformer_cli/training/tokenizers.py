"""The tokenizers of a run: those that its folder has, or new ones."""

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.pipeline import training_pairs
from tformer_cli.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.training.predecessor import Predecessor
from tformer_cli.training.reporting import Reporter


def run_tokenizers(
    config: Config, run: RunDirectory, reporter: Reporter, *, has_begun: bool, fresh: bool
) -> Tokenizers:
    """Load the tokenizers of a run or of its predecessor, or build them from its training text.

    Args:
        config: of the run.
        run: its folder.
        reporter: hears what takes long.
        has_begun: whether there is a checkpoint, which goes with the tokenizers of the folder.
        fresh: build them whatever the folder has.

    Raises:
        TformerError: they cannot be loaded or built.
    """
    if not fresh and (has_begun or _has_them(run, config)):
        return load_tokenizers(run.tokenizer)
    predecessor = Predecessor.of(config, run)
    if predecessor is not None:
        return predecessor.tokenizers(config, reporter.say)
    reporter.say("building the vocabulary")
    return build_tokenizers(config.tokenizer, lambda: training_pairs(config.data), config.seed)


def _has_them(run: RunDirectory, config: Config) -> bool:
    """Whether a folder has tokenizers, and they are those that the config builds."""
    if not (run.tokenizer.is_dir() and run.config_file.is_file()):
        return False
    saved = load_config(run.config_file)
    return (saved.tokenizer, saved.data.train, saved.seed, saved.training.initialize_from) == (
        config.tokenizer,
        config.data.train,
        config.seed,
        config.training.initialize_from,
    )
