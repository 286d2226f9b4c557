"""Builds the wheel with scikit-build-core, against the torch that is installed where the wheel goes.

Pip builds in an environment of its own. A torch of the right version outside of it is used all the same, so that nobody
fetches 3 GB twice; where there is none, pip installs one into that environment.
"""

import pathlib
import re
import sysconfig

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403  the other hooks

_TORCH = "2.11"


def _version_of(folder):
    """Returns the minor version, such as "2.11", of the torch in a folder; None where there is none with libraries."""
    header = folder / "include/torch/headeronly/version.h"
    if not header.exists() or not (folder / "lib/libtorch_python.so").exists():
        return None
    numbers = re.findall(r"#define TORCH_VERSION_(?:MAJOR|MINOR) (\d+)", header.read_text())
    return ".".join(numbers[:2])


def _package_folders():
    """Yields the folders of packages outside of pip's environment, with those that their .pth files name."""
    for name in ("purelib", "platlib"):
        folder = pathlib.Path(sysconfig.get_path(name))
        yield folder
        for path in sorted(folder.glob("*.pth")):
            yield from (
                folder / line for line in path.read_text().splitlines() if not line.startswith(("import ", "#"))
            )


def _torch():
    """Returns the folder of a usable torch: this environment's, or else the one outside of pip's; None without one."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    folders = [pathlib.Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    folders += [folder / "torch" for folder in _package_folders()]
    return next((folder for folder in folders if _version_of(folder) == _TORCH), None)


def _with_torch(settings):
    settings = dict(settings or {})
    if (folder := _torch()) is not None:
        settings.setdefault("cmake.define.SPILLWAY_TORCH", str(folder))
    return settings


def get_requires_for_build_wheel(config_settings=None):
    requires = _build.get_requires_for_build_wheel(config_settings)
    return requires if _torch() else [*requires, f"torch=={_TORCH}.*"]


def get_requires_for_build_editable(config_settings=None):
    requires = _build.get_requires_for_build_editable(config_settings)
    return requires if _torch() else [*requires, f"torch=={_TORCH}.*"]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_wheel(wheel_directory, _with_torch(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_editable(wheel_directory, _with_torch(config_settings), metadata_directory)
