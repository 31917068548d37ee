"""Special tokens: their ids, and the tags in front of a source."""

from collections.abc import Sequence

from tformer_cli.config.schema.data import MAX_TAGS
from tformer_cli.errors import UsageError

PAD_ID, UNK_ID, BOS_ID, EOS_ID, MASK_ID, SEP_ID = range(6)
# First decoder input by kind of network; a masked encoder ignores it.
DECODER_START_IDS = {
    "encoder_decoder": BOS_ID,
    "decoder_only": SEP_ID,
    "masked_encoder": BOS_ID,
}
FIRST_TAG_ID = 6
NUM_SPECIAL = FIRST_TAG_ID + MAX_TAGS
SPECIAL_TOKENS = (
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "<mask>",
    "<sep>",
    *(f"<tag_{i}>" for i in range(FIRST_TAG_ID, NUM_SPECIAL)),
)
# Special ids that no translation contains.
SUPPRESSED_IDS = tuple(i for i in range(NUM_SPECIAL) if i != EOS_ID)


def tag_ids(names: Sequence[str], known: Sequence[str]) -> tuple[int, ...]:
    """Return the reserved ids of tags; those that a model knows have them in order.

    Raises:
        UsageError: the model does not know a tag.
    """
    for name in names:
        if name not in known:
            what = "no training text has this tag"
            remedy = f"choose from: {', '.join(known)}" if known else "leave it out"
            raise UsageError("`tags`", what, got=name, remedy=remedy)
    return tuple(FIRST_TAG_ID + known.index(name) for name in names)
