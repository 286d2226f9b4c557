"""Keeps compiled code out of Sessions, because the gate sees PyTorch's operators, and no compiled kernels.

On a thread whose Session is open, functions of torch.compile run eagerly. What PyTorch compiles by itself, only to look
into it (torch.cond, torch.while_loop, flex_attention), is traced there as always, and its operators then run one by
one. Compiled code that is reached in another way is refused.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

from spillway import _late

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_GATE_KEY = torch._C._dispatch_key_parse("Fake")  # swap/gate's; PyTorch has no name for it in Python


def is_gated() -> bool:
    """Returns true on a thread whose operators pass the gate."""
    return torch._C._dispatch_tls_is_dispatch_key_included(_GATE_KEY)


def _eager_when_gated(original: Callable[P, R]) -> Callable[P, R | None]:
    """Wraps the function that turns a compiler into a runner of a function's frames; None: they run as they are."""
    from torch._higher_order_ops.utils import _in_hop_compile  # traces, and runs what it traced operator by operator

    @functools.wraps(original)
    def callback_from_stance(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return None if is_gated() and not _in_hop_compile() else original(*args, **kwargs)

    return callback_from_stance


def _refused_when_gated(original: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_gated():
            raise RuntimeError(
                "[session] this would run kernels of torch.compile, which Spillway cannot see, inside a Session: the "
                "backward of a forward that was compiled outside, or a compiled package. Run forward and backward both "
                "inside, where compiled functions run eagerly, or both outside"
            )
        return original(*args, **kwargs)

    return call


def _let_higher_order_operators_pass() -> None:
    """Lets operators that take functions pass over the gate, because the operators of tensors inside come to it."""
    # For those that are made from now on.
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_GATE_KEY)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(_GATE_KEY)  # type: ignore[no-untyped-call]  # torch left it untyped


def install() -> None:
    """Wraps PyTorch's entrances to compiled code, for the process's life. Each asks whether its thread is gated."""
    _let_higher_order_operators_pass()
    _late.wrap_member("torch._dynamo.eval_frame", "_callback_from_stance", _eager_when_gated)
    _late.wrap_member("torch._inductor.output_code", "CompiledFxGraph.__call__", _refused_when_gated)
    _late.wrap_member("torch._inductor.output_code", "CompiledAOTI.__call__", _refused_when_gated)
    _late.wrap_member("torch.export.pt2_archive._package", "AOTICompiledModel.__call__", _refused_when_gated)
