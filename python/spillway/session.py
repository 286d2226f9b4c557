"""Sessions: a byte budget on everything that a thread's PyTorch code allocates."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import enum
import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch.utils import _pytree

from spillway import _compiled, _pointers, _purposes, _sharded, _spillway
from spillway._reruns import in_backward
from spillway._torch_check import has_distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Final, SupportsIndex, TypedDict

    from spillway._spillway import SessionStats

    class _Options(TypedDict):
        """The options of the extension's Session."""

        device: str
        engine: str
        budget_bytes: int
        host_budget_bytes: int
        disk: str
        split_bytes: int
        prefetch: bool
        replay: bool
        processes_of_host: int


if has_distributed():
    from spillway import _data_parallel

    _data_parallel.install()
_compiled.install()
_sharded.install()

T = TypeVar("T")


def _refuse_in_backward(what: str) -> None:
    if in_backward():
        raise RuntimeError(
            f"[session] it cannot be {what} in a backward pass, which puts the thread's state back at its end"
        )


class _Unset(enum.Enum):
    """The type of a default that stands for no value that a caller gives."""

    UNSET = enum.auto()


_UNSET: Final = _Unset.UNSET


def _name_of(device: str) -> str:
    """Returns the name of a device; "cuda" is the current GPU, as everywhere in PyTorch."""
    return f"cuda:{torch.cuda.current_device()}" if device == "cuda" and torch.cuda.is_available() else device


def _bytes(value: SupportsIndex | str | None, name: str, unlimited: int) -> int:
    """Returns a number of bytes from an int, a text such as "8GiB", or None for `unlimited`."""
    if value is None:
        return unlimited
    if isinstance(value, str):
        return _spillway.parse_bytes(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; allowed are bytes as an int, a text such as '8GiB', and None")
    return value.__index__()


class Session:
    """Pages the tensors of its thread under a byte budget while it is open.

    Every operator of the thread, and of autograd for it, makes its arguments resident before it runs, and the counted
    bytes never exceed the budget. Results equal those of unlimited memory, bit for bit. Closing brings all tensors
    back.

        with spillway.Session(budget="8GiB") as session:
            for batch in loader:
                with session.step():
                    ...

    Args:
        budget: Device bytes that all tensors of the process may hold: an int, a text such as "8GiB" or "600MiB", or
            None for no limit (the peak is counted all the same).
        device: "cpu", "cuda" (the GPU that is current as the Session opens) or "cuda:N".
        host_budget: Host bytes for what left the device. None: a share of the machine's memory.
        disk: A folder for what the host budget has no room for. None: nothing goes to disk.
        split: Bytes above which convolutions, norms and similar operators run window by window, so that none of their
            tensors must be whole on the device. None: never. Gradients of split convolutions differ from whole ones by
            rounding. The default is 224 MiB on the CPU, and 8 GiB on a GPU.
        engine: "gate" moves tensors by copies, "unified" by CUDA's managed memory.
        prefetch: Copy tensors back ahead of their use, from the second step of a kind on.
        replay: Run cheap operators again instead of copying their results, where that is faster. It changes no bit.
        processes_of_host: Processes of this machine that open Sessions, such as the ranks of a data-parallel run. None:
            LOCAL_WORLD_SIZE, as torchrun sets it, or 1.

    A Session is opened, used and closed on one thread, which has no other open Session. A block in
    torch.inference_mode() is a whole one, and Sessions neither begin nor end in a backward pass. When that thread has
    ended, any other one may close it. The same object can be opened again after it was closed.

    Raises:
        ValueError: for options out of range, and options that differ from another open Session's.
        DeviceError: when the device cannot be had.
        OutOfBudget: when more than the budget is held already and cannot leave.
    """

    def __init__(
        self,
        budget: int | str | None = None,
        *,
        device: str | torch.device = "cpu",
        host_budget: int | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        split: int | str | _Unset | None = _UNSET,
        engine: str = "gate",
        prefetch: bool = True,
        replay: bool = True,
        processes_of_host: int | None = None,
    ) -> None:
        unlimited = _spillway.UNLIMITED_BYTES
        split_bytes = _spillway.SPLIT_BY_DEVICE if split is _UNSET else _bytes(split, "split", unlimited)
        if split is not _UNSET and split_bytes == _spillway.SPLIT_BY_DEVICE:
            raise ValueError("split is 0; it must be positive, or None")
        self._options: _Options = {
            "device": str(device),
            "engine": engine,
            "budget_bytes": _bytes(budget, "budget", unlimited),
            "host_budget_bytes": _bytes(host_budget, "host_budget", unlimited),
            "disk": "" if disk is None else os.fspath(disk),
            "split_bytes": split_bytes,
            "prefetch": bool(prefetch),
            "replay": bool(replay),
            "processes_of_host": int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            if processes_of_host is None
            else processes_of_host,
        }
        self._open: _spillway.Session | None = None
        self._thread: threading.Thread | None = None
        self._opened_in_inference_mode = False

    # ---- open and close

    def open(self) -> Session:
        """Opens the Session, for code that has no block to put it into, such as a notebook. Returns it."""
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "[session] open it outside of torch.inference_mode(), which would close its gate at its end, or for a "
                "block: `with session:`"
            )
        return self.__enter__()

    def __enter__(self) -> Session:
        if self._open is not None:
            raise RuntimeError("[session] it is open already")
        _refuse_in_backward("opened")
        options: _Options = {**self._options, "device": _name_of(self._options["device"])}
        opened = _spillway.Session(**options)
        try:
            _open_sessions.add(self)
        except BaseException:
            _open_sessions.discard(self)
            opened.close()
            raise
        self._thread = threading.current_thread()
        self._opened_in_inference_mode = torch.is_inference_mode_enabled()
        self._open = opened
        return self

    def close(self) -> None:
        """Brings every tensor back to the device and lifts the budget. Does nothing where the Session is closed."""
        if self._open is None:
            return
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            raise RuntimeError("[session] close it on the thread that opened it, or after that thread has ended")
        if thread is threading.current_thread():
            _refuse_in_backward("closed")
            if torch.is_inference_mode_enabled() and not self._opened_in_inference_mode:
                raise RuntimeError(
                    "[session] close it outside of torch.inference_mode(), which would open its gate again at its end"
                )
        try:
            self._open.close()
        finally:
            self._open = None
            _open_sessions.discard(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- steps

    def step(self, kind: str = "step") -> _Step:
        """Returns the scope of a training step: a context manager, or a decorator of a function that is one step.

        Steps that do the same work have the same `kind`: "step", "validate". The first one of a kind pages on demand,
        later ones by the schedule that is made of its trace. A step that an exception leaves is forgotten.
        """
        return _Step(self, kind)

    # ---- figures

    @property
    def is_open(self) -> bool:
        """True while the Session is open."""
        return self._open is not None

    @property
    def budget_bytes(self) -> int | None:
        """The budget; None where there is no limit."""
        budget = self._options["budget_bytes"]
        return None if budget == _spillway.UNLIMITED_BYTES else budget

    @property
    def floor_bytes(self) -> int:
        """The bytes of the neediest operator so far. No smaller budget can repeat the work that was done."""
        return self.stats()["floor_bytes"]

    def stats(self) -> SessionStats:
        """Returns figures since the Session was opened, as a dict.

        Bytes: peak_bytes, peak_by_category (weights are the tensors that require a gradient by themselves, optimizer
        what optimizers keep after a step), used_bytes (now), library_bytes (part of that which libraries hold on a
        GPU), floor_bytes (of floor_operator), host_peak_bytes, disk_peak_bytes, and what was copied: bytes_out,
        bytes_in, bytes_to_disk, bytes_from_disk. Counts: page_outs, page_ins, demand_page_ins, replays, operators,
        deviations (steps that left their schedule). exposed_seconds is the time that operators waited for copies.
        Everything but operators and deviations covers all Sessions of the device.
        """
        return self._require_open().stats()

    def report(self, folder: str | os.PathLike[str]) -> str:
        """Writes a report to `folder`, which it makes: report.html for people, trace.json for Perfetto.

        The page shows memory over a step against the budget, lanes of compute and copies, what leaves the device and
        why, and the operators that took most time and memory. The step is of the kind that there were most steps of:
        the third one, where there were so many. Returns the path of the page. Raises OSError when a file cannot be
        written.
        """
        self._require_open().report(os.fspath(folder))
        return os.path.join(os.fspath(folder), "report.html")

    def reset_peak(self) -> None:
        """Starts counting the peak anew."""
        self._require_open().reset_peak()

    def _require_open(self) -> _spillway.Session:
        if self._open is None:
            raise RuntimeError("[session] it is closed: open it with `with session:` or session.open()")
        return self._open

    def __repr__(self) -> str:
        budget = _spillway.format_bytes(self._options["budget_bytes"])
        state = "open" if self.is_open else "closed"
        return f"<spillway.Session budget={budget} device={self._options['device']} {state}>"


class _Step(contextlib.ContextDecorator):
    """The scope of one step, entered once at a time."""

    def __init__(self, session: Session, kind: str) -> None:
        self._session = session
        self._kind = str(kind)
        self._opened: _spillway.Session | None = None

    def __enter__(self) -> Session:
        opened = self._session._require_open()
        opened.begin_step(self._kind)
        self._opened = opened
        return self._session

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        opened, self._opened = self._opened, None
        if opened is None or opened is not self._session._open:  # closed inside the step, and perhaps opened again
            return
        if error is None:
            opened.end_step()
        else:
            opened.forget_step()


class _Sessions:
    """The open Sessions, and their changes to PyTorch, which are the process's.

    The changes are in place from the first one's opening to the last one's end. Sessions that are open when the
    interpreter ends are closed then, while storages can still be used. Later, a storage that only Python's own object
    holds refuses to, and what comes back for it would be waited for without end.
    """

    def __init__(self) -> None:
        self._all: dict[int, Session] = {}
        self._lock = threading.RLock()

    def add(self, session: Session) -> None:
        with self._lock:
            self._all[id(session)] = session
            _pointers.install()
            _purposes.install()

    def discard(self, session: Session) -> None:
        with self._lock:
            self._all.pop(id(session), None)
            if self._all:
                return
            _pointers.remove()
            _purposes.remove()

    def close_all(self) -> None:
        """Closes all but those of threads that still run, which may be using them."""
        for session in list(self._all.values()):
            with contextlib.suppress(Exception):  # nothing needs the bytes any more
                session.close()


_open_sessions = _Sessions()
atexit.register(_open_sessions.close_all)


def _tensors_of(things: Iterable[object]) -> Iterator[torch.Tensor]:
    for thing in things:
        if isinstance(thing, torch.nn.Module):
            yield from (tensor for tensor in (*thing.parameters(), *thing.buffers()))
        else:
            yield from (leaf for leaf in _pytree.tree_leaves(thing) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def resident(thing: T, *others: object) -> Iterator[T]:
    """Keeps tensors' bytes on the device and at one address inside the block, for reading and writing by pointer.

    Takes tensors, modules, and lists, tuples and dicts of tensors. Code that takes a pointer (`data_ptr()`, kernels of
    one's own) must do so inside this block. Bytes that are written by a pointer outside of it are lost when the tensor
    leaves the device.

        with spillway.resident(x):
            my_kernel(x.data_ptr(), x.numel())

    Raises OutOfBudget when the bytes do not fit beside what operators hold.
    """
    leases = [_spillway.resident(tensor) for tensor in _tensors_of((thing, *others))]
    try:
        yield thing
    finally:
        del leases


@contextlib.contextmanager
def resident_read(thing: T, *others: object) -> Iterator[T]:
    """Keeps tensors' bytes on the device as resident() does, for reading only: they can leave again without a copy."""
    leases = [_spillway.resident_read(tensor) for tensor in _tensors_of((thing, *others))]
    try:
        yield thing
    finally:
        del leases


@dataclasses.dataclass(frozen=True)
class Observed(Generic[T]):
    """The figures of a step without a budget."""

    peak_bytes: int  #: most bytes that were held at once
    peak_by_category: dict[str, int]  #: their share by purpose: weights, gradients, optimizer, activations, …
    floor_bytes: int  #: bytes of the neediest operator, below which no budget is feasible
    floor_operator: str  #: its name
    result: T  #: the function's result

    def __str__(self) -> str:
        return (
            f"peak {_spillway.format_bytes(self.peak_bytes)}, floor {_spillway.format_bytes(self.floor_bytes)} "
            f"({self.floor_operator})"
        )


def observe(
    function: Callable[[], T], *, device: str | torch.device = "cpu", split: int | str | _Unset | None = _UNSET
) -> Observed[T]:
    """Runs `function` without a budget, and returns what it takes.

    The figures help to choose a budget: anything from `floor_bytes` up is feasible, and from `peak_bytes` up nothing is
    paged. On a GPU libraries take memory during the first step, so observe a second one. Takes no Session that is open
    on this thread.
    """
    with Session(device=device, split=split) as session:
        result = function()
        stats = session.stats()
    return Observed(
        stats["peak_bytes"], stats["peak_by_category"], stats["floor_bytes"], stats["floor_operator"], result
    )
