"""Networks: tensors in, tensors out. They know no text, files or devices.

Letters of tensor shapes in the whole package:

    B   sentences in a batch          H    attention heads; Hkv heads of keys and values
    S   source length                 Dh   head width
    T   target length                 D    model width
    K   beams of a sentence           C    cells of the KV cache
    N   any number of rows            F    width of the feed-forward block
    V   vocabulary size

Batch comes first. A bool mask is True where a query may attend.
"""
