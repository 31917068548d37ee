"""Python that translates by onnxruntime alone: greedy search, in a loop of a few lines."""

import json

from tformer_cli.export.token_example import imports, makers_of_tokens, text_of, tokens_of
from tformer_cli.text.tokenizer import Tokenizers

LOOP = """\
mask = numpy.ones((1, len(ids)), bool)
seen = encoder.run(None, {"source": [ids], "source_mask": mask})
inputs = {"source_mask": mask, **dict(zip([node.name for node in encoder.get_outputs()], seen))}
past = {
    node.name: numpy.zeros((1, node.shape[1], 0, node.shape[3]), numpy.float32)
    for node in decoder.get_inputs()
    if node.name.startswith("past_")
}
written = [config["start_id"]]
while written[-1] != config["end_id"] and len(written) <= config["max_length"]:
    log_probs, *kept = decoder.run(None, {"token": [written[-1:]], **inputs, **past})
    past = dict(zip(past, kept))
    written.append(int(log_probs.argmax()))
tokens = [target[i] for i in written[1:] if i != config["end_id"]]"""


def example(tokenizers: Tokenizers, line: str) -> str:
    """Return lines of Python that translate a line of text inside an exported folder.

    Args:
        tokenizers: of the model.
        line: the text.
    """
    modules = ["json", "pathlib", "numpy", "onnxruntime", *imports(tokenizers)]
    sides = ("shared", "shared") if tokenizers.shared else ("source", "target")
    files = json.dumps(["config.json", *(f"{side}_vocabulary.json" for side in sides)])
    return "\n".join(
        [
            f"import {', '.join(modules)}",
            *makers_of_tokens(tokenizers),
            "config, source, target = (",
            '    json.loads(pathlib.Path(name).read_text(encoding="utf-8"))',
            f"    for name in {files}",
            ")",
            'encoder = onnxruntime.InferenceSession("encoder.onnx")',
            'decoder = onnxruntime.InferenceSession("decoder_step.onnx")',
            "known = {token: i for i, token in enumerate(source)}",
            f"tokens = {tokens_of(tokenizers, line)}",
            'ids = [known.get(token, config["unk_id"]) for token in tokens] + [config["end_id"]]',
            LOOP,
            f"print({text_of(tokenizers, 'tokens')})",
        ]
    )
