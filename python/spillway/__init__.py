"""Trains PyTorch models that do not fit, under a byte budget.

import spillway

with spillway.Session(budget="8GiB") as session:
    for batch in loader:
        with session.step():
            ...  # forward, backward, optimizer, as before
"""

from spillway._torch_check import require_torch

require_torch()

from spillway import optim  # noqa: E402
from spillway._spillway import CommError, DeviceError, DiskError, OutOfBudget, __version__  # noqa: E402
from spillway._torch_check import has_distributed  # noqa: E402
from spillway.kfac import KFAC  # noqa: E402
from spillway.session import Observed, Session, observe, resident, resident_read  # noqa: E402

if has_distributed():
    from spillway import distributed  # noqa: F401  it registers the backend

__all__ = [
    "KFAC",
    "CommError",
    "DeviceError",
    "DiskError",
    "Observed",
    "OutOfBudget",
    "Session",
    "__version__",
    "observe",
    "optim",
    "resident",
    "resident_read",
]
