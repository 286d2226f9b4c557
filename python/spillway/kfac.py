"""K-FAC for any torch.nn.Module: gradients become natural gradients before the optimizer's step."""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import nn

from spillway import _spillway
from spillway._reruns import in_backward, roots_of, tensors_of
from spillway._reruns import watch_reruns as _watch_reruns  # noqa: F401  the extension calls it by this name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias, TypedDict

    from torch.amp.grad_scaler import GradScaler

    # Name, type, kind, groups, weight and bias of a module, for the extension.
    _Description: TypeAlias = tuple[str, str, str, int, torch.Tensor | None, torch.Tensor | None]

    class KfacStats(TypedDict):
        """Figures of a KFAC, a plain dict."""

        counters: _spillway.KfacCounters
        seconds: dict[str, float]
        bytes: dict[str, int]


_KINDS = ((nn.Linear, "linear"), (nn.Conv1d, "conv1d"), (nn.Conv2d, "conv2d"), (nn.Conv3d, "conv3d"))


def _describe(name: str, module: nn.Module) -> _Description:
    """Returns (name, type, kind, groups, weight, bias) of a module that owns parameters, for the extension."""
    own = dict(module._parameters.items())  # TorchScript's have no get()
    kind = next((kind for cls, kind in _KINDS if isinstance(module, cls)), "")
    weight = own.get("weight")
    if weight is None or isinstance(weight, nn.parameter.UninitializedParameter):
        kind = ""  # a parametrization computes the weight, or it has no shape yet
    bias = own.get("bias")
    return (
        name,
        type(module).__name__,
        kind,
        getattr(module, "groups", 1) if kind else 1,
        weight if kind else None,
        bias if kind else None,
    )


def _refuse_sharded(model: nn.Module) -> None:
    tensors = sys.modules.get("torch.distributed.tensor")  # not there: no weight is a DTensor
    for name, parameter in model.named_parameters():
        if tensors and isinstance(parameter, tensors.DTensor):
            raise TypeError(
                f"{name} is a DTensor; KFAC needs whole weights on every rank, as DistributedDataParallel has them"
            )


def _own_group(process_group: dist.ProcessGroup | None) -> _spillway.ProcessGroup | None:
    """Makes a group of the same ranks for KFAC alone, so that its messages and those of gradients never meet.

    Returns None where a process is alone.
    """
    if not dist.is_available() or not dist.is_initialized():
        if process_group is not None:
            raise ValueError("process_group was given, but torch.distributed is not initialized")
        return None
    group = cast("dist.ProcessGroup", process_group or dist.group.WORLD)
    if dist.get_rank(group) < 0:
        raise ValueError("this rank is not in process_group")
    if dist.get_world_size(group) == 1:
        return None
    from spillway import distributed

    return distributed.duplicate(group)


class KFAC:
    """Preconditions a model's gradients with Kronecker-factored curvature, in place.

        kfac = spillway.KFAC(model, optimizer)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)       # a mean over the batch
            loss.backward()
            kfac.step()                       # .grad of Linear and Conv layers is preconditioned
            optimizer.step()

    It sees forward passes of `model` in training mode by itself, and layers that checkpoints and custom functions run
    again in backward. The samples are dimension 0 of the first tensor among the arguments. Where they are not, as in
    [T, B, …] and in a single image [C, H, W], call the model within no_watch(), and then watch(). Layers with other
    kinds of parameters are left to the optimizer (`left_alone`), and so is a bias of several layers. The first step()
    warns of layers that it has seen nothing of. Copies of the model, and what torch.save writes of it, have nothing to
    do with the KFAC. Under a Session, its state is paged like every other tensor. Source: Martens and Grosse 2015;
    Grosse and Martens 2016 for convolutions.

    Compiled graphs show nothing. Make the KFAC of the compiled model or of the one inside, and run those steps eagerly
    that update factors:

        with torch.compiler.set_stance("force_eager" if kfac.updates_factors else "default"):
            loss_of(compiled(x), y).backward()

    Where torch.distributed has several ranks, they share the work, and get the gradient of a single process that sees
    the global batch (but with strategy "dp"). Then every rank makes the KFAC of the same model and calls step(),
    discard(), state_dict() and load_state_dict() together; gradients are averaged before step(), as
    DistributedDataParallel does.

    Args:
        model: The module. Its layers are found once, so make it complete before.
        optimizer: The optimizer that steps the parameters. Its first group's learning rate bounds the steps; a schedule
            of it is followed. A number: that learning rate.
        damping: Share of the curvature that damps a layer, > 0. The default is 0.1 of the whole network's.
        absolute_damping: The number that is added to every layer's curvature, > 0, in place of `damping`. Papers give
            such numbers. It has to suit the loss's scale.
        factor_interval, inverse_interval: Steps between updates of factors, and between decompositions. The default is
            3 for both in the first 30 steps, and 10 and 100 from then on. Where one is given, the other is 3.
        decay: Running average of factors, [0, 1).
        factor_samples: Positions that a convolution's input factor is estimated from: "auto", "exact" or a number.
        rank: Eigenvectors that are kept of a factor: "auto", "full" or a number.
        conv_factors: "automatic", "full", "separable" or "block".
        method: "eigen", "pi" or "plain".
        skip: Regular expressions of names of layers to leave alone, such as the heads of a soft Dice loss.
        norm_clip: Longest step as a share of the weights' norm.
        kl_clip: κ of the trust region.
        process_group: The ranks that train the model together. None: all of torch.distributed's, where it is
            initialized. KFAC makes a group of its own of them, of the backend "spillway", whatever theirs is.
        grad_worker_frac: Share of the ranks that precondition a layer, (0, 1]. A larger share costs memory for
            eigenbases on more ranks, a smaller one a broadcast of the layer's gradient in every step. Bits do not
            depend on it. Source: KAISA, section 3.
        strategy: "hybrid", "owner_reduce", "comm_opt", "mem_opt", "dp" or "auto".
        placement: "lpt-time", "lpt-memory", "round-robin" or "measured": which rank decomposes which factor.
        factor_dtype: Type in which factors travel: "fp32", "bf16" or "fp16".
        overlap_factors: Sum factors while backward goes on; for one forward pass a step.
        options: staleness, burn_in, convention, damping_scope, storage, max_factor_dim, max_linear_dim, block_linear,
            seed.

    Raises ValueError for numbers out of range and for ranks whose models or options differ, TypeError for unknown
    options and for weights that are sharded (FSDP), and RuntimeError when no layer can be preconditioned.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | float,
        *,
        process_group: dist.ProcessGroup | None = None,
        **options: object,
    ) -> None:
        self._optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        if isinstance(optimizer, bool) or not isinstance(optimizer, (torch.optim.Optimizer, int, float)):
            raise TypeError(
                f"optimizer is {type(optimizer).__name__}; allowed are a torch.optim.Optimizer and a number"
            )
        if torch.is_inference_mode_enabled():
            raise RuntimeError("KFAC is made in torch.inference_mode(), whose tensors no later step can update")
        lr = _lr_of(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else float(optimizer)
        modules = {
            name: module
            for name, module in model.named_modules()
            if module._parameters and any(p is not None for p in module._parameters.values())
        }
        _refuse_sharded(model)
        described = [_describe(name, module) for name, module in modules.items()]
        self._kfac = _spillway.Kfac(described, options, lr, _own_group(process_group))
        self._weights = [(name, weakref.ref(modules[name]), modules[name].weight) for name in self.layers]
        self._watches = True
        self._hook = model.register_forward_hook(_ForwardHook(self), with_kwargs=True)
        weakref.finalize(self, self._hook.remove)

    def _refuse_other_weights(self) -> None:
        other = [
            name
            for name, module, weight in self._weights
            if (living := module()) is not None and living._parameters.get("weight") is not weight
        ]
        if other:
            raise RuntimeError(
                f"{', '.join(other)}: other weights than when KFAC was made, as parametrizations and "
                "load_state_dict(assign=True) leave them; make a new KFAC after such changes"
            )

    # ---- steps

    def watch(self, loss: torch.Tensor, batch: int) -> None:
        """Watches a backward pass from `loss`, the mean over `batch` samples, in place of the model's forward passes.

        Call it between forward and backward, for models whose parts are called one by one.
        """
        self._kfac.watch([loss], batch)

    def no_watch(self) -> _NoWatch:
        """Returns a scope whose forward passes are not watched, for passes in training mode without a backward."""
        return _NoWatch(self)

    def step(self, scaler: GradScaler | None = None) -> None:
        """Preconditions `.grad` of the layers, and takes in curvature where it is due.

        `scaler` is the torch.amp.GradScaler by whose scale the loss was multiplied. Gradients must be unscaled
        (`scaler.unscale_(optimizer)`). When they are not finite, the scaler will skip the optimizer's step, and this
        step forgets what it saw.

        Raises RuntimeError when factors are due and no forward pass was watched, or when a layer has a gradient that a
        compiled graph or another function has made out of sight; OutOfBudget in a Session, CommError when a rank ended
        or did not answer. Warns once of layers without statistics after the first step.
        """
        if self._optimizer:
            self._kfac.lr = _lr_of(self._optimizer)
        if scaler is not None and scaler.is_enabled() and _found_inf(scaler, self._optimizer):
            self._kfac.discard()
            return
        if self.updates_factors:
            self._refuse_other_weights()
        if unseen := self._kfac.unseen_layers():
            warnings.warn(
                "KFAC saw nothing of these layers in its first step, and preconditions them once it does: "
                + ", ".join(f"'{name}' ({reason})" for name, reason in unseen),
                stacklevel=2,
            )
        self._kfac.step(float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0)

    def discard(self) -> None:
        """Forgets what was watched since the last step, for a step that is skipped."""
        self._kfac.discard()

    def adapt_damping(self, loss_before: float, loss_after: float) -> float:
        """Adapts the damping to the ratio of the loss's reduction to the predicted one, and returns the ratio.

        Call it now and then, right after the optimizer's step, with the losses of that step's own batch. Martens and
        Grosse 2015, section 6.5.
        """
        return self._kfac.adapt_damping(float(loss_before), float(loss_after))

    # ---- numbers

    @property
    def damping(self) -> float:
        """The damping, relative or absolute as the KFAC was made; may be set between steps."""
        return self._kfac.damping

    @damping.setter
    def damping(self, value: float) -> None:
        self._kfac.damping = float(value)

    @property
    def kl_clip(self) -> float:
        """κ of the trust region; may be set between steps where it was given."""
        return self._kfac.kl_clip

    @kl_clip.setter
    def kl_clip(self, value: float) -> None:
        self._kfac.kl_clip = float(value)

    @property
    def updates_factors(self) -> bool:
        """True where the coming step updates factors, so that it needs a forward pass that can be watched."""
        return self._kfac.updates_factors()

    @property
    def kind(self) -> str:
        """The kind of the coming step, for `session.step(kfac.kind)`: "plain", "factor+decompose" and the like."""
        return self._kfac.kind()

    @property
    def layers(self) -> list[str]:
        """Names of the preconditioned layers."""
        return self._kfac.layers()

    @property
    def left_alone(self) -> list[tuple[str, str]]:
        """(name, reason) of the modules with parameters that the optimizer alone steps."""
        return self._kfac.left_alone()

    def stats(self) -> KfacStats:
        """Returns counters, seconds by phase, and bytes of the state, as a dict of dicts."""
        return {"counters": self._kfac.counters(), "seconds": self._kfac.seconds(), "bytes": self._kfac.bytes()}

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that the next step depends on beside the model: tensors by name, and the damping.

        Every rank calls it, and gets the same.
        """
        return {"tensors": dict(self._kfac.state()), "damping": self.damping, "kl_clip": self.kl_clip}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on bit by bit from a state_dict() of the same layers and options; the number of ranks may differ.

        Raises ValueError naming the first tensor that does not fit; nothing has changed then.
        """
        self._kfac.load_state(list(state["tensors"].items()))
        self._kfac.damping, self._kfac.kl_clip = state["damping"], state["kl_clip"]

    def remove(self) -> None:
        """Takes the hook off the model."""
        self._hook.remove()


class _NoWatch:
    def __init__(self, kfac: KFAC) -> None:
        self._kfac = kfac

    def __enter__(self) -> None:
        self._before, self._kfac._watches = self._kfac._watches, False

    def __exit__(self, *_: object) -> None:
        self._kfac._watches = self._before


class _ForwardHook:
    """Watches the backward passes of a model's forward passes in training mode.

    A copy of it, or what is loaded of a saved one, does nothing, because a copy of the model is not the KFAC's.
    """

    def __init__(self, kfac: KFAC) -> None:
        self._kfac = weakref.ref(kfac)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        # It takes any arguments and returns None, without spillway too.
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __call__(self, model: nn.Module, args: object, kwargs: object, output: object) -> None:
        if torch.compiler.is_compiling():
            return
        kfac = self._kfac()
        if kfac is None or not (kfac._watches and model.training and torch.is_grad_enabled() and kfac.updates_factors):
            return
        roots = roots_of(output)
        inputs = [tensor for tensor in tensors_of((args, kwargs)) if tensor.dim()]
        if roots and inputs:
            watch = kfac._kfac.watch_rerun if in_backward() else kfac._kfac.watch
            watch(roots, inputs[0].size(0))


def _lr_of(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def _found_inf(scaler: GradScaler, optimizer: torch.optim.Optimizer | None) -> bool:
    """True where the scaler's unscale_() of this optimizer met a gradient that is not finite."""
    if optimizer is None:
        raise ValueError("a KFAC that was made with a number has no optimizer whose gradients a scaler unscales")
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    if not found:
        raise RuntimeError("call scaler.unscale_(optimizer) before kfac.step(scaler)")
    return any(flag.item() for flag in found.values())
