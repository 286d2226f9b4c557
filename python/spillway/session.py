"""Sessions: a byte budget on everything that a thread's PyTorch code allocates."""

import contextlib
import dataclasses
import functools
import os
import threading

from spillway import _spillway

_UNSET = object()


def _bytes(value, name, unlimited):
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
    bytes never exceed the budget. Results equal those of unlimited memory, bit for bit. Closing brings all tensors back.

        with spillway.Session(budget="8GiB") as session:
            for batch in loader:
                with session.step():
                    ...

    Args:
        budget: Device bytes that all tensors of the process may hold: an int, a text such as "8GiB" or "600MiB", or None
            for no limit (the peak is counted all the same).
        device: "cpu", "cuda" or "cuda:N".
        host_budget: Host bytes for what left the device. None: a share of the machine's memory.
        disk: A folder for what the host budget has no room for. None: nothing goes to disk.
        split: Bytes above which convolutions, norms and similar operators run window by window, so that none of their
            tensors must be whole on the device. None: never. Gradients of split convolutions differ from whole ones by
            rounding. The default is 224 MiB.
        engine: "gate" moves tensors by copies, "unified" by CUDA's managed memory.
        prefetch: Copy tensors back ahead of their use, from the second step of a kind on.
        replay: Run cheap operators again instead of copying their results, where that is faster. It changes no bit.
        processes_of_host: Processes of this machine that open Sessions, such as the ranks of a data-parallel run.

    A Session is opened, used and closed on one thread, which has no other open Session. The same object can be opened
    again after it was closed.

    Raises:
        ValueError: for options out of range, and options that differ from another open Session's.
        DeviceError: when the device cannot be had.
        OutOfBudget: when more than the budget is held already and cannot leave.
    """

    def __init__(self, budget=None, *, device="cpu", host_budget=None, disk=None, split=_UNSET, engine="gate",
                 prefetch=True, replay=True, processes_of_host=1):
        unlimited = _spillway.UNLIMITED_BYTES
        self._options = {
            "device": str(device),
            "engine": engine,
            "budget_bytes": _bytes(budget, "budget", unlimited),
            "host_budget_bytes": _bytes(host_budget, "host_budget", unlimited),
            "disk": "" if disk is None else os.fspath(disk),
            "split_bytes": _spillway.DEFAULT_SPLIT_BYTES if split is _UNSET else _bytes(split, "split", unlimited),
            "prefetch": bool(prefetch),
            "replay": bool(replay),
            "processes_of_host": processes_of_host,
        }
        self._open = None
        self._thread = None

    # ---- open and close

    def open(self):
        """Opens the Session, for code that has no block to put it into, such as a notebook. Returns it."""
        if self._open is not None:
            raise RuntimeError("[session] it is open already")
        self._open = _spillway.Session(**self._options)
        self._thread = threading.get_ident()
        _open_sessions.add(self)
        return self

    def close(self):
        """Brings every tensor back to the device and lifts the budget. Does nothing where the Session is closed."""
        if self._open is None:
            return
        if threading.get_ident() != self._thread:
            raise RuntimeError("[session] close it on the thread that opened it")
        self._open.close()
        self._forget()

    def _forget(self):
        self._open = None
        _open_sessions.discard(self)

    def __enter__(self):
        return self.open()

    def __exit__(self, *_):
        self.close()

    # ---- steps

    def step(self, kind="step"):
        """Returns the scope of a training step: a context manager, or a decorator of a function that is one step.

        Steps that do the same work have the same `kind`: "step", "validate". The first one of a kind pages on demand,
        later ones by the schedule that is made of its trace. A step that an exception leaves is forgotten.
        """
        return _Step(self, kind)

    # ---- figures

    @property
    def is_open(self):
        """True while the Session is open."""
        return self._open is not None

    @property
    def budget_bytes(self):
        """The budget; None where there is no limit."""
        budget = self._options["budget_bytes"]
        return None if budget == _spillway.UNLIMITED_BYTES else budget

    @property
    def floor_bytes(self):
        """The bytes of the neediest operator so far. No smaller budget can repeat the work that was done."""
        return self.stats()["floor_bytes"]

    def stats(self):
        """Returns figures since the Session was opened, as a dict.

        Bytes: peak_bytes, peak_by_category, used_bytes (now), floor_bytes (of floor_operator), host_peak_bytes,
        disk_peak_bytes, and what was copied: bytes_out, bytes_in, bytes_to_disk, bytes_from_disk. Counts: page_outs,
        page_ins, demand_page_ins, replays, operators, deviations (steps that left their schedule). exposed_seconds is
        the time that operators waited for copies. Everything but operators and deviations covers all Sessions of the
        device.
        """
        return self._require_open().stats()

    def report(self, folder):
        """Writes a report to `folder`, which it makes: report.html for people, trace.json for Perfetto.

        The page shows memory over a step against the budget, lanes of compute and copies, what leaves the device and why,
        and the operators that took most time and memory. The step is of the kind that there were most steps of: the
        third one, where there were so many. Returns the path of the page. Raises OSError when a file cannot be written.
        """
        self._require_open().report(os.fspath(folder))
        return os.path.join(os.fspath(folder), "report.html")

    def reset_peak(self):
        """Starts counting the peak anew."""
        self._require_open().reset_peak()

    def _require_open(self):
        if self._open is None:
            raise RuntimeError("[session] it is closed: open it with `with session:` or session.open()")
        return self._open

    def __repr__(self):
        budget = _spillway.format_bytes(self._options["budget_bytes"])
        return f"<spillway.Session budget={budget} device={self._options['device']} {'open' if self.is_open else 'closed'}>"


class _Step(contextlib.ContextDecorator):
    """The scope of one step, entered once at a time."""

    def __init__(self, session, kind):
        self._session = session
        self._kind = str(kind)

    def __enter__(self):
        self._session._require_open().begin_step(self._kind)
        return self._session

    def __exit__(self, error, *_):
        opened = self._session._open
        if opened is None:  # closed inside the step
            return
        if error is None:
            opened.end_step()
        else:
            opened.forget_step()


class _Sessions:
    """The open Sessions, closed when the interpreter ends, because tensors may live on after it has gone."""

    def __init__(self):
        self._all = {}

    def add(self, session):
        self._all[id(session)] = session

    def discard(self, session):
        self._all.pop(id(session), None)

    def close_all(self):
        for session in list(self._all.values()):
            if session._thread == threading.get_ident():
                session.close()


_open_sessions = _Sessions()


@contextlib.contextmanager
def resident(tensor):
    """Keeps a tensor's bytes on the device and at one address inside the block, for reading and writing by pointer.

    Code that takes a pointer (`numpy()`, `data_ptr()`, DLPack) must do so inside this block. Bytes that are written by a
    pointer outside of it are lost when the tensor leaves the device.

        with spillway.resident(x):
            total = x.numpy().sum()

    Raises OutOfBudget when the bytes do not fit beside what operators hold.
    """
    lease = _spillway.resident(tensor)
    try:
        yield tensor
    finally:
        del lease


@contextlib.contextmanager
def resident_read(tensor):
    """Keeps a tensor's bytes on the device as resident() does, for reading only: it can leave again without a copy."""
    lease = _spillway.resident_read(tensor)
    try:
        yield tensor
    finally:
        del lease


@dataclasses.dataclass(frozen=True)
class Observed:
    """What a step takes without a budget."""

    peak_bytes: int  #: most bytes that were held at once
    peak_by_category: dict  #: their share by purpose: weights, gradients, optimizer, activations, …
    floor_bytes: int  #: bytes of the neediest operator, below which no budget is feasible
    floor_operator: str  #: its name
    result: object  #: what the function returned

    def __str__(self):
        return (f"peak {_spillway.format_bytes(self.peak_bytes)}, floor {_spillway.format_bytes(self.floor_bytes)} "
                f"({self.floor_operator})")


def observe(function, *, device="cpu", split=_UNSET):
    """Runs `function` without a budget, and returns what it takes.

    The figures help to choose a budget: anything from `floor_bytes` up is feasible, and from `peak_bytes` up nothing is
    paged. Takes no Session that is open on this thread.
    """
    with Session(device=device, split=split) as session:
        result = function()
        stats = session.stats()
    return Observed(stats["peak_bytes"], stats["peak_by_category"], stats["floor_bytes"], stats["floor_operator"], result)
