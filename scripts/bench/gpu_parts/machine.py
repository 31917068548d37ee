"""What there is to measure on."""

import torch

from tformer_cli.device import hardware_name


def machine() -> dict[str, object]:
    """Return the names and versions of this machine; `gpu` is None without a CUDA device."""
    there: dict[str, object] = {
        "torch": torch.__version__,
        "cpu": hardware_name(torch.device("cpu")),
        "gpu": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        there |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_mib": properties.total_memory / 2**20,
            "cuda": torch.version.cuda,
        }
    return there
