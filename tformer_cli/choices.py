"""What users choose among by name, the same in Python and on the command line."""

from typing import Literal

Backend = Literal["auto", "native", "ctranslate2"]
"""What translates: our own engine, CTranslate2, or `auto`, the faster where both are alike."""

FormatName = Literal[
    "argos", "ctranslate2", "m2m", "marian", "marian-npz", "onnx", "safetensors", "t5"
]
"""Program that an export is for; `safetensors` is a plain folder."""

LongLines = Literal["split", "truncate", "error"]
"""What to do with a line that is too long to be translated at once."""

MetricName = Literal["bleu", "chrf", "ter"]
"""Metric of sacrebleu that scores translations."""

Quantization = Literal["int8", "int8_float32", "float16", "bfloat16", "float32"]
"""Number format of the matrices of an export."""

TuningMetric = Literal["bleu", "chrf"]
"""Metric that the best search maximizes."""

Utility = Literal["chrf", "bleu"]
"""Similarity of two sentences in MBR decoding."""
