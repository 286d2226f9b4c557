"""Wraps members of PyTorch's modules that a program may import late, perhaps while a Session is open."""

from __future__ import annotations

import functools
import importlib.abc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import TypeAlias

    Wrap: TypeAlias = Callable[[Callable[..., object]], Callable[..., object]]

_wraps: dict[str, list[tuple[str, Wrap]]] = {}  # by module: paths of members, and what wraps them


def _wrap(module: ModuleType, path: str, wrap: Wrap) -> None:
    *outer, name = path.split(".")
    owner: object = functools.reduce(getattr, outer, module)
    setattr(owner, name, wrap(getattr(owner, name)))


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, and wraps its members."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for path, wrap in _wraps[module.__name__]:
            _wrap(module, path, wrap)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds those modules where the other finders do."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _wraps:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


def wrap_member(module: str, path: str, wrap: Wrap) -> None:
    """Replaces a member of a module, such as "Class.method", by wrap(member): now, or as the module is imported."""
    if not _wraps:
        sys.meta_path.insert(0, _Finder())
    _wraps.setdefault(module, []).append((path, wrap))
    if module in sys.modules:
        _wrap(sys.modules[module], path, wrap)
