"""Refuses another torch than the one that the extension was built for: LibTorch's allocators have no stable ABI."""

import torch

from spillway._built_for import TORCH_VERSION


def require_torch() -> None:
    """Raises ImportError where torch's minor version is another than the extension's."""
    found = ".".join(torch.__version__.split(".")[:2])
    if found != TORCH_VERSION:
        raise ImportError(
            f"this spillway was built for torch {TORCH_VERSION}, and torch {torch.__version__} is installed; "
            f"install torch=={TORCH_VERSION}.* or build spillway again (`pip install .` in its source)"
        )


def has_distributed() -> bool:
    """True where torch was built with torch.distributed."""
    return torch.distributed.is_available()
