"""The network: tensors in, tensors out; no text, no files, no token has a meaning here.

One legend of shape letters for the whole package:

    B   sentences in a batch          H    attention heads
    S   source length                 Dh   width of a head
    T   target length                 D    width of the model
    N   rows in the decoder: B times the beam size in search, else B
    L   cached target length          F    inner width of the feed-forward block
    V   vocabulary size

Batch comes first everywhere. A mask is bool and says True where attention may look.
"""
