"""The network: tensors in, tensors out; no text, no files, no token has a meaning here.

One legend of shape letters for the whole package:

    B   sentences in a batch          H    attention heads
    S   source length                 Dh   width of a head
    T   target length                 D    width of the model
    K   rows of a sentence in search  C    columns of the cache
    N   any number of rows            F    inner width of the feed-forward block
    V   vocabulary size

Batch comes first everywhere. A mask is bool and says True where attention may look.
"""
