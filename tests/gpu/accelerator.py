"""The device that these tests hold to the CPU, and what they need."""

import os

import pytest
import torch

# Any other device can be named, the CPU too: then the tests compare it with itself.
DEVICE = torch.device(os.environ.get("TFORMER_GPU", "cuda"))
CPU = torch.device("cpu")

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"
    ),
]
on_cuda = pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA only")

# As `resolve_device` does: the kernels of a training are those that are tested.
torch.backends.cuda.enable_cudnn_sdp(False)
# Float32 means float32: no TF32.
torch.set_float32_matmul_precision("highest")
torch.set_num_threads(1)
