"""Wraps members of PyTorch's modules that a program may import late, perhaps while a Session is open."""

import functools
import importlib.abc
import sys

_wraps = {}  # by module: paths of members, and what wraps them


def _wrap(module, path, wrap):
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, module)
    setattr(owner, name, wrap(getattr(owner, name)))


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, and wraps its members."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        for path, wrap in _wraps[module.__name__]:
            _wrap(module, path, wrap)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds those modules where the other finders do."""

    def find_spec(self, name, path, target=None):
        if name not in _wraps:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


def wrap_member(module: str, path: str, wrap) -> None:
    """Replaces a member of a module, such as "Class.method", by wrap(member): now, or as the module is imported."""
    if not _wraps:
        sys.meta_path.insert(0, _Finder())
    _wraps.setdefault(module, []).append((path, wrap))
    if module in sys.modules:
        _wrap(sys.modules[module], path, wrap)
