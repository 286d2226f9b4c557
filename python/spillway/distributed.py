"""The backend "spillway" of torch.distributed: collectives by levels over sockets, for programs that torchrun starts.

    import spillway
    import torch.distributed as dist

    dist.init_process_group("spillway")
    model = torch.nn.parallel.DistributedDataParallel(model)

Ranks of one host talk through the kernel, those of several hosts by TCP. Which ranks share a host is found out, and
sums go host by host. Every rank gets the same bits. It needs no MPI, and can use one. Inside a Session, collectives end
before they return. On a network with strangers, give all ranks one SPILLWAY_SECRET.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import os
import socket
import time
from typing import TYPE_CHECKING, cast

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from spillway import _spillway

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from torch._C._distributed_c10d import Store, _DistributedBackendOptions

    # Family, kind, protocol, canonical name and address, as socket.getaddrinfo() returns them.
    _Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
    _Resolved: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, _Address]

__all__ = ["Options", "explain"]

_duplicates: dict[str, int] = {}  # how many were made of groups of other backends, by the groups' names


@dataclasses.dataclass
class Options:
    """Options of the backend, the same on every rank: `dist.init_process_group("spillway", pg_options=Options(…))`.

    Args:
        deadline: Longest wait for a message, in seconds; a rank that does not answer is then given up with a CommError.
            None: the group's `timeout`. A rank that has ended is noticed at once.
        transport: "sockets", or "mpi" for a group of all processes that an MPI launcher started, in MPI's order, in a
            package that was built with MPI. MPI may run already, as with mpi4py, if threads may call it side by side
            (MPI_THREAD_MULTIPLE).
        address: The address of this host that other hosts reach, or the names of network interfaces, of which the first
            that there is counts: "eth0,eth1". Empty: that of SPILLWAY_INTERFACE or GLOO_SOCKET_IFNAME, or else the one
            by which this host reaches the group's store.
        levels: Labels that say which ranks are near each other, level by level, the nearest first: [[0, 0, 1, 1]] for
            two hosts of two. Empty: the hosts, as found out.
        calibrate: Measure the links when the group is made, some 50 ms, so that plans suit them.
    """

    deadline: float | None = None
    transport: str = "sockets"
    address: str = ""
    levels: list[list[int]] = dataclasses.field(default_factory=list)
    calibrate: bool = True


def explain(group: dist.ProcessGroup | None = None, size: int | str = "1MiB") -> str:
    """Returns a few lines for people: how a group of this backend sums vectors of `size` bytes."""
    group = cast("dist.ProcessGroup", group or dist.group.WORLD)
    backend = _backend_of(group)
    if backend is None:
        raise TypeError(f"the group's backend is {dist.get_backend(group)}, not spillway")
    return backend.explain(_spillway.parse_bytes(str(size)))


def duplicate(group: dist.ProcessGroup) -> _spillway.ProcessGroup:
    """Makes a backend of this kind over the ranks of a group, with messages of its own.

    All ranks call it, in one order. A duplicate of a group of this backend has its settings, and dies with it; for
    another backend's group it has the defaults.
    """
    backend = _backend_of(group)
    if backend is not None:
        return backend.duplicate()
    number = _duplicates[group.group_name] = _duplicates.get(group.group_name, 0) + 1
    store = PrefixStore(f"spillway/duplicate/{number}", dist.distributed_c10d._get_process_group_store(group))
    return _connect(
        store, dist.get_rank(group), dist.get_world_size(group), Options(), _seconds(dist.default_pg_timeout)
    )


def _backend_of(group: dist.ProcessGroup) -> _spillway.ProcessGroup | None:
    """Returns the group's backend of this kind, which TORCH_DISTRIBUTED_DEBUG=DETAIL wraps; None where it has none."""
    backends = (group._get_backend(device) for device in group._device_types)
    inner = (getattr(backend, "wrapped_pg", backend) for backend in backends)
    return next((backend for backend in inner if isinstance(backend, _spillway.ProcessGroup)), None)


def _address_of_interface(names: str) -> str:
    """Returns the address of the first interface of `eth0,eth1` that there is; an address stays what it is."""
    there = {interface for _, interface in socket.if_nameindex()}
    for name in (name.strip() for name in names.split(",")):
        if name not in there:
            continue
        address = _ipv4_of(name) or _ipv6_of(name)
        if address is None:
            raise ValueError(f"the network interface {name} has no address that other hosts reach")
        return address
    return names


def _ipv4_of(interface: str) -> str | None:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", interface.encode()[:15]))  # SIOCGIFADDR
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def _ipv6_of(interface: str, table: str = "/proc/net/if_inet6") -> str | None:
    """Returns an interface's IPv6 address, but none that means another host elsewhere (fe80::)."""
    try:
        with open(table) as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return None
    addresses = [digits for digits, _, _, scope, _, name in rows if name == interface and scope != "20"]
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(addresses[0])) if addresses else None


def _address_towards(host: str) -> str | None:
    """Returns this host's address on the way to another one; nothing is sent. None where there is no way."""
    for family, kind, _, _, target in _resolved(host):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(target)
                address: str = probe.getsockname()[0]
                return address
        except OSError:
            continue
    return None


def _resolved(host: str) -> Sequence[_Resolved]:
    try:
        return socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return []


def _is_loopback(address: str | None) -> bool:
    return address is None or address.startswith("127.") or address == "::1"


def _store_host(store: Store) -> str:
    """Returns the host of the group's store, where it has one."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else os.environ.get("MASTER_ADDR", "")


def _own_address(store: Store, given: str) -> str:
    name = given or os.environ.get("SPILLWAY_INTERFACE") or os.environ.get("GLOO_SOCKET_IFNAME")
    if name:
        return _address_of_interface(name)
    host = _store_host(store)
    address = _address_towards(host) if host else None
    if host not in ("localhost", "127.0.0.1", "::1") and _is_loopback(address):
        # A host's own name often leads to its loopback. 192.0.2.1 is nobody's: its way is the default route.
        address = _address_towards("192.0.2.1")
    return address or "127.0.0.1"


def _seconds(value: datetime.timedelta | float) -> float:
    return value.total_seconds() if isinstance(value, datetime.timedelta) else float(value)


def _make(given: _DistributedBackendOptions, options: Options | None) -> _spillway.ProcessGroup:
    """Makes the backend of a group; torch.distributed calls it."""
    if options is not None and not isinstance(options, Options):
        raise TypeError(
            f"pg_options is {type(options).__name__}; the backend spillway takes spillway.distributed.Options"
        )
    options = options or Options()
    deadline = _seconds(given.timeout if options.deadline is None else options.deadline)
    return _connect(given.store, given.group_rank, given.group_size, options, deadline)


def _connect(store: Store, rank: int, size: int, options: Options, deadline: float) -> _spillway.ProcessGroup:
    return _spillway.ProcessGroup(
        store=store,
        rank=rank,
        size=size,
        deadline_seconds=min(deadline, 86400.0),
        transport=options.transport,
        address=_own_address(store, options.address),
        secret=os.environ.get("SPILLWAY_SECRET", ""),
        levels=[list(level) for level in options.levels],
        calibrate=options.calibrate,
    )


def _leave() -> None:
    """Ends what the backend's threads do with Python, because one that needs it after its end aborts the process.

    Waits for the callbacks of futures that run. Later ones are not called, and what is under way fails.
    """
    while not _spillway.ProcessGroup.end_callbacks():
        time.sleep(0.01)  # Ctrl-C ends the wait
    for group in list(dist.distributed_c10d._world.pg_map):
        if backend := _backend_of(group):
            backend.leave()


atexit.register(_leave)
if "spillway" not in dist.Backend.backend_list:
    dist.Backend.register_backend("spillway", _make, extended_api=True, devices=["cpu", "cuda"])
