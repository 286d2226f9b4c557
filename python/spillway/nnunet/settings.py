"""The environment variables that give nnU-Net's commands their Session, because these have no options of ours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import spillway

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypedDict

    import torch

    class SessionOptions(TypedDict, total=False):
        """The options of spillway.Session that variables name."""

        budget: str | None
        host_budget: str | None
        disk: str | None
        split: str | None


_VARIABLES = {
    "budget": "SPILLWAY_BUDGET",
    "host_budget": "SPILLWAY_HOST_BUDGET",
    "disk": "SPILLWAY_DISK",
    "split": "SPILLWAY_SPLIT",
}


def session_options(environment: Mapping[str, str] = os.environ) -> SessionOptions:
    """Returns the options of spillway.Session that the environment names.

    SPILLWAY_BUDGET must be set: bytes as a text such as "8GiB", or "none" for no limit. SPILLWAY_HOST_BUDGET and
    SPILLWAY_SPLIT are such texts too, and SPILLWAY_DISK is a folder. Raises RuntimeError where the budget is missing.
    """
    if not environment.get("SPILLWAY_BUDGET", "").strip():
        raise RuntimeError(
            "SPILLWAY_BUDGET is not set. Set it to the bytes that tensors may hold on the device, for "
            "instance `export SPILLWAY_BUDGET=8GiB`, or to `none` for no limit"
        )
    options: dict[str, str | None] = {}
    for option, variable in _VARIABLES.items():
        value = environment.get(variable, "").strip()
        if value:
            options[option] = None if value.lower() == "none" else value
    return cast("SessionOptions", options)


def session_for(device: torch.device) -> spillway.Session:
    """Returns a closed Session for a torch.device, with the environment's options."""
    if device.type not in ("cpu", "cuda"):
        raise RuntimeError(
            f"Spillway pages tensors of the CPU and of CUDA devices, not of {device.type!r}; "
            "use -device cuda or -device cpu"
        )
    try:
        return spillway.Session(device=str(device), **session_options())
    except ValueError as error:
        raise ValueError(f"{error} (in one of {', '.join(_VARIABLES.values())})") from error
