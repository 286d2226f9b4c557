"""Optimizers whose step needs little memory at once: torch.optim's own, a few tensors at a time, and LAMB.

torch's `foreach` and `fused` steps are one operator over all parameters, whose weights, gradients and state must then
be on the device together. These optimizers take their parameters in groups of at most `group_bytes`, so that a budget
far below the optimizer's state is feasible. Hyperparameters, results and `state_dict()` are torch.optim's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import torch

from spillway import _spillway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from torch.optim.optimizer import ParamsT

    _Base = torch.optim.Optimizer
else:
    _Base = object  # the optimizer comes after _InGroups among the bases

__all__ = ["SGD", "Adam", "AdamW", "Lamb"]

_GROUP_BYTES = 32 << 20


def _groups(parameters: Iterable[torch.Tensor], group_bytes: int, tensors_each: int) -> list[list[torch.Tensor]]:
    """Cuts parameters into lists whose tensors, with gradients and state, have at most `group_bytes`; one at least."""
    groups: list[list[torch.Tensor]] = []
    held = 0
    for parameter in parameters:
        size = tensors_each * parameter.numel() * parameter.element_size()
        if not groups or held + size > group_bytes:
            groups.append([])
            held = 0
        groups[-1].append(parameter)
        held += size
    return groups


class _InGroups(_Base):
    """Makes an optimizer of torch take its parameters group by group."""

    _tensors_each: int  # of a parameter: the weight, its gradient and its state, with what a step makes

    # The arguments are those of torch's class.
    def __init__(self, params: ParamsT, *args: Any, group_bytes: int = _GROUP_BYTES, **kwargs: Any) -> None:
        if not isinstance(group_bytes, int) or group_bytes < 1:
            raise ValueError(f"group_bytes is {group_bytes!r}; it must be a positive int")
        self._group_bytes = group_bytes
        super().__init__(params, *args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._group_bytes = _GROUP_BYTES
        super().__setstate__(state)

    def _step_of_torch(self, optimizer: torch.optim.Optimizer) -> None:
        raise NotImplementedError

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Takes a step, after `closure()` where there is one. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        whole = self.param_groups
        try:
            with _spillway.category("optimizer"):
                for group in whole:
                    for part in _groups(group["params"], self._group_bytes, self._tensors_each):
                        self.param_groups = [{**group, "params": part}]
                        self._step_of_torch(self)
        finally:
            self.param_groups = whole
        return loss


def _step_of(optimizer: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], object]:
    """Returns the step of a class of torch.optim without its hooks, which the step around it has run already."""
    step: Callable[..., object] = optimizer.step
    return vars(step)["__wrapped__"] if getattr(step, "hooked", False) else step


class Adam(_InGroups, torch.optim.Adam):
    """torch.optim.Adam, group by group. Kingma and Ba 2015, algorithm 1."""

    _tensors_each = 4

    def _step_of_torch(self, optimizer: torch.optim.Optimizer) -> None:
        _step_of(torch.optim.Adam)(optimizer)


class AdamW(_InGroups, torch.optim.AdamW):
    """torch.optim.AdamW, group by group. Loshchilov and Hutter 2019, algorithm 2."""

    _tensors_each = 4

    def _step_of_torch(self, optimizer: torch.optim.Optimizer) -> None:
        _step_of(torch.optim.AdamW)(optimizer)


class SGD(_InGroups, torch.optim.SGD):
    """torch.optim.SGD, group by group, with momentum, Nesterov's included."""

    _tensors_each = 3

    def _step_of_torch(self, optimizer: torch.optim.Optimizer) -> None:
        _step_of(torch.optim.SGD)(optimizer)


class Lamb(_InGroups, torch.optim.Optimizer):
    """LAMB. You et al. 2020, algorithm 2, with φ(x) = x, and a ratio of 1 where a norm is zero.

    Args:
        lr: η.
        betas: β₁ and β₂.
        eps: ε.
        weight_decay: λ.
        group_bytes: Bytes of parameters, gradients and state that a group holds.
    """

    _tensors_each = 5

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        group_bytes: int = _GROUP_BYTES,
    ) -> None:
        if not 0 <= betas[0] < 1 or not 0 <= betas[1] < 1:
            raise ValueError(f"betas are {betas}; allowed is 0 up to 1")
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} is {value}; it must not be negative")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, group_bytes=group_bytes)

    def _step_of_torch(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            if with_gradient:
                self._update(with_gradient, group)

    def _update(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            state = self.state[p]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["step"] += 1
        gradients = [p.grad for p in parameters if p.grad is not None]
        means = [self.state[p]["exp_avg"] for p in parameters]
        variances = [self.state[p]["exp_avg_sq"] for p in parameters]
        beta1, beta2 = group["betas"]
        counts = [self.state[p]["step"].item() for p in parameters]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(variances, beta2)
        torch._foreach_addcmul_(variances, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(variances)
        torch._foreach_div_(roots, [(1 - beta2**t) ** 0.5 for t in counts])
        torch._foreach_add_(roots, group["eps"])
        directions = torch._foreach_div(means, [1 - beta1**t for t in counts])
        torch._foreach_div_(directions, roots)
        if group["weight_decay"] != 0:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        own, other = torch.stack(torch._foreach_norm(parameters)), torch.stack(torch._foreach_norm(directions))
        ratio = torch.where((own > 0) & (other > 0), own / other, torch.ones_like(own))
        torch._foreach_mul_(directions, list(ratio.unbind()))
        torch._foreach_add_(parameters, directions, alpha=-float(group["lr"]))
