"""Refuses the move of a container whose processes hold kernel objects that CRIU cannot restore, or loses silently.

The check reads /proc of the node's running processes before anything is created or frozen: a refusal by CRIU in the
middle of a dump costs a freeze and a roll-back, and a silent loss goes unnoticed. It is cheap (a readlink per
descriptor, some system calls per socket, three files per process), as it is part of every move and dry run. Objects
that /proc does not show cannot be refused; docs/design/0002-move.md lists them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import re
import socket
import stat
import struct
import termios
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyroute2.netlink.diag import UDIAG_SHOW_PEER, DiagSocket
from pyroute2.netlink.exceptions import NetlinkError

from wherry.base.errors import Code, Refused
from wherry.base.text import printable
from wherry.base.units import format_size
from wherry.node.container import amx, hidden_state, messages, terminals
from wherry.node.container.fd_identity import own_devices
from wherry.node.container.processes import is_open_in, namespace_pids, process_state, tracer_of
from wherry.node.container.timers import borrowed, was_cancelled
from wherry.node.netns_socket import in_netns

_CARRIED = ("eventfd", "eventpoll", "signalfd", "inotify", "timerfd", "pidfd", "fanotify", "bpf-map")
"""Kinds of anonymous inodes that CRIU restores."""
_MQUEUE_MAGIC = 0x19800202
"""f_type of the file system of POSIX message queues, ipc/mqueue.c."""
_libc = ctypes.CDLL(None, use_errno=True)
_HELD = ("anon_inode:[timerfd]", "anon_inode:inotify", "anon_inode:[inotify]")
"""Kinds that CRIU restores only where a process holds the object."""
_MEMORY = ("/memfd:", "/SYSV")
_TARGET = re.compile(r"anon_inode:\[?([\w-]+)")
_THREAD_TIMER = re.compile(r"^notify: \w+/tid\.\d+$", re.MULTILINE)
_OF_THE_KERNEL = ("010000E0",)
"""224.0.0.1, which every interface joins."""
_OF_THE_KERNEL_SIX, _OF_AN_ADDRESS = ("ff01::1", "ff02::1"), "ff02::1:ff"
"""The IPv6 groups that every interface joins; the beginning of the groups that it joins for an address."""
_SO_PROTOCOL, _SO_DOMAIN = 38, 39
"""asm-generic/socket.h."""
_TCP_ULP = 31
"""linux/tcp.h."""
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE)
"""Of Internet sockets that CRIU restores, beside raw ones."""
_FAMILIES = {38: "AF_ALG", 40: "AF_VSOCK", 44: "AF_XDP", 29: "AF_CAN", 15: "AF_KEY", 21: "AF_RDS", 30: "AF_TIPC"}
_NAMED = {1: "ICMP", 33: "DCCP", 132: "SCTP", 256: "SMC", 262: "MPTCP"}
_OF_A_NODE = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
"""Character devices whose open descriptors CRIU restores: null zero full random urandom tty ptmx."""
_TERMINALS = range(136, 144)
"""Major numbers of /dev/pts."""
_OF_DEVICES = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s+(/dev/(?!zero|shm/|hugepages/)\S+)", re.MULTILINE)
"""A mapping of a device in /proc/PID/maps."""
_ASYNCHRONOUS = re.compile(r"^[0-9a-f]+-[0-9a-f]+ .*/\[aio\] \(deleted\)$", re.MULTILINE)
_PAGE, _RESERVED = 4096, 1 << 40
"""Bytes of a page, and of address space with which a node is frozen too long: CRIU takes 3 to 4 s for 400 GiB of it."""
_EXITS, _LOOK = 2.0, 0.02
"""Seconds that a process may take to end on a busy machine, and between two looks at it."""
_SECRET = re.compile(r"^[0-9a-f]+-[0-9a-f]+ .*/secretmem\b", re.MULTILINE)


@dataclass
class _Seen:
    """The objects that were looked at, which several processes may hold, a holder of each Unix socket, and whether
    there are terminals."""

    objects: set[str] = field(default_factory=set)
    unix: list[tuple[int, int]] = field(default_factory=list)
    terminals: bool = False


def require_movable(pids: list[int], own: Iterable[Path]) -> None:
    """Refused with the first object that a move would lose; see `move_obstacles`."""
    _require_none(move_obstacles(pids, own))


def require_no_amx(pids: list[int]) -> None:
    """Refused with the first process that may use AMX by now: a library asks for it when it is first used."""
    _require_none(_users_of_amx(pids))


def _require_none(obstacles: Iterator[str]) -> None:
    if reason := next(obstacles, ""):
        raise Refused(
            Code.UNSUPPORTED,
            "the node holds an object that cannot be moved",
            reason,
            "end that program, or wait until it is done",
        )


def move_obstacle(pids: list[int], own: Iterable[Path] = ()) -> str:
    """The process that holds an object that a move would lose, with it; empty when none is found."""
    return next(move_obstacles(pids, own), "")


def move_obstacles(pids: list[int], own: Iterable[Path] = ()) -> Iterator[str]:
    """Every process and object for which a move would be refused. `own`: a directory on each of the node's own file
    systems."""
    seen = _Seen()
    for pid in pids:
        try:
            for what in _of_process(pid, seen):
                yield f"{process_name(pid)} {what}"
        except OSError:
            continue  # it ended
    yield from _of_states(pids)
    yield from _users_of_amx(pids)
    for pid in hidden_state.users_of_undo(pids):
        yield f"{process_name(pid)} has used semaphores with SEM_UNDO, and CRIU loses the undo operations of its end"
    if seen.terminals and (why := terminals.input_obstacle()):
        yield f"a process of the node has a terminal, and {why}"
    for pid, number in seen.unix:
        if what := message_obstacle(pid, number, pids, own):
            yield f"{process_name(pid)} {what}"
    if pids:
        yield from filter(None, (_multicast(pids[0]), _outside(pids, seen.objects) if seen.unix else ""))


def message_obstacle(pid: int, number: int, pids: Iterable[int], own: Iterable[Path], everything: bool = False) -> str:
    """The object that a move would lose, as only a message has it that no program has received from this Unix socket
    of a process; empty when there is none. `everything`: in any message, of a frozen node (`messages`)."""

    done = set[int]()

    def fault(pid: int, number: int, around: tuple[int, ...]) -> str:
        """`around`: the inodes of the sockets in whose messages this one is."""
        if not (total := messages.count(pid, number)):
            return ""
        with borrowed(pid, number) as end:
            inode = os.fstat(end).st_ino
            if inode in around:
                return "a Unix socket, in a message at itself,"
            if len(around) == messages.MAX_DEPTH:
                return f"a Unix socket, in messages at more than {messages.MAX_DEPTH} others,"
            if inode in done:
                return ""
            done.add(inode)
            for file in messages.descriptors(end, total, everything):
                seen = _Seen()
                if what := _of_message(file, pids, own, seen):
                    return what
                for one in seen.unix:
                    if what := fault(*one, (*around, inode)):
                        return what
        return ""

    with contextlib.suppress(OSError):  # it ended, or has closed the socket
        if what := fault(pid, number, ()):
            return f"has sent {what} in a message that no program has received (descriptor {number})"
    return ""


def _of_message(file: int, pids: Iterable[int], own: Iterable[Path], seen: _Seen) -> str:
    """The fault of a descriptor of ours that came from a message."""
    status, target = os.fstat(file), os.readlink(f"/proc/self/fd/{file}")
    if what := _of_descriptor(os.getpid(), file, target, seen):
        return what
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        if os.major(status.st_rdev) in _TERMINALS or target.endswith("/ptmx"):
            return "a terminal"
        return _of_device(os.getpid(), file, target, seen)
    outside = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if outside and status.st_dev not in own_devices(list(pids), own):
        return "a file that is not the node's own"
    if target in _HELD and not is_open_in(pids, file):
        return f"the only descriptor of an object of kind {target[11:].strip('[]')}"
    return ""


def _of_process(pid: int, seen: _Seen) -> Iterator[str]:
    directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(directory):
            try:
                what = _of_descriptor(pid, int(name), os.readlink(name, dir_fd=directory), seen)
            except OSError:
                continue  # closed meanwhile, or replaced by another object
            if what:
                yield f"holds {what} (descriptor {name}), which CRIU cannot move"
    finally:
        os.close(directory)
    if _is_for_32_bits(pid):
        yield "is a program for 32 bits, which CRIU cannot move"
    if _THREAD_TIMER.search(_text(f"/proc/{pid}/timers")):
        yield "has a timer that signals one thread (SIGEV_THREAD or SIGEV_THREAD_ID), which CRIU cannot move"
    maps = _text(f"/proc/{pid}/maps")
    if _SECRET.search(maps):
        yield "has secret memory (memfd_secret), which nobody else can read"
    if _ASYNCHRONOUS.search(maps):
        yield "has a context for asynchronous I/O (io_setup), of which CRIU would lose the requests that are under way"
    if device := _OF_DEVICES.search(maps):
        yield f"has memory of the device {device[1]}, which CRIU cannot move"
    if (reserved := int(_text(f"/proc/{pid}/statm").split()[0]) * _PAGE) > _RESERVED:
        size = format_size(reserved)
        yield f"has reserved {size} of address space, which CRIU would go through page by page while the node is frozen"
    if tracer_of(pid):
        yield "is traced by a debugger or strace, and CRIU has to trace it itself"
    yield from hidden_state.obstacles_of(pid)


def _users_of_amx(pids: list[int]) -> Iterator[str]:
    for pid, what in amx.users(pids):
        yield f"{process_name(pid)} {what}"


def _is_for_32_bits(pid: int) -> bool:
    """By the fifth byte of its ELF file."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/exe", "rb", buffering=0) as program:
        return program.read(5) == b"\x7fELF\x01"
    return False


def _of_states(pids: list[int]) -> Iterator[str]:
    """The faults of the states of processes, and of their places among each other."""
    states = {pid: state for pid in pids if (state := process_state(pid))}
    leaderless, until = [pid for pid, state in states.items() if state.lives_without_leader], time.monotonic() + _EXITS
    while leaderless and time.monotonic() < until:
        time.sleep(_LOOK)  # a process that ends is seen so, too
        leaderless = [pid for pid in leaderless if (state := process_state(pid)) and state.lives_without_leader]
    for pid in leaderless:
        yield f"{process_name(pid)} has threads, and its main thread has ended, which CRIU takes for its end"
    for pid, state in states.items():
        if state.is_stopped:
            yield f"{process_name(pid)} is stopped (SIGSTOP, Ctrl-Z), and CRIU would wait for it: SIGCONT resumes it"
        parent = states.get(state.parent)
        lost = parent and parent.session != state.session and namespace_pids(state.parent)[-1] != 1
        if lost and not os.path.exists(f"/proc/{state.session}"):
            yield f"{process_name(pid)} is in a session whose leader has ended, and CRIU could not put it there"


def _text(path: str) -> str:
    """Content of a file in /proc, without the overhead of io's buffered classes."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, 1 << 16), b"")).decode(errors="replace")
    finally:
        os.close(file)


def _of_descriptor(pid: int, number: int, target: str, seen: _Seen) -> str:
    if target.startswith("anon_inode:"):
        kind = match[1] if (match := _TARGET.match(target)) else target
        if kind not in _CARRIED:
            return f"an object of kind {kind}"
        if kind == "eventfd" and "eventfd-semaphore: 1" in _text(f"/proc/{pid}/fdinfo/{number}"):
            return "an eventfd in semaphore mode"
        if kind == "timerfd" and was_cancelled(number, pid):
            return "a timerfd whose clock was set, which its program has not read yet"
        return "an inotify queue with unread events" if kind == "inotify" and _unread(pid, number) else ""
    if target.startswith("pipe:") and target not in seen.objects and _writes(pid, number):
        seen.objects.add(target)
        return "a pipe in packet mode (O_DIRECT)" if _flags(pid, number) & os.O_DIRECT else ""
    if target.startswith("socket:") and target not in seen.objects:
        seen.objects.add(target)
        return _of_socket(pid, number, seen)
    if target.startswith("/dev/"):
        return _of_device(pid, number, target, seen)
    if target.startswith("/secretmem"):
        return "secret memory (memfd_secret)"
    if target.count("/") == 1 and not target.startswith(_MEMORY) and target.startswith("/") and _is_queue(pid, number):
        return f"the POSIX message queue {target}"
    if target.startswith("/") and _is_told(pid, number):
        return "a directory whose changes a process gets as signals (F_NOTIFY)"
    return ""


def _of_socket(pid: int, number: int, seen: _Seen) -> str:
    """The fault of a socket."""
    with borrowed(pid, number) as file:
        family, kind, protocol = (_option(file, name) for name in (_SO_DOMAIN, socket.SO_TYPE, _SO_PROTOCOL))
        if family == socket.AF_UNIX:
            seen.unix.append((pid, number))
        elif family in _INTERNET:
            if kind != socket.SOCK_RAW and protocol not in _PROTOCOLS:
                return f"a socket of protocol {_NAMED.get(protocol, protocol)}"
            if protocol == socket.IPPROTO_TCP and kind == socket.SOCK_STREAM and (layer := _upper_layer(file)):
                return f"a TCP connection that the kernel encrypts, or changes otherwise ({layer})"
        elif family == socket.AF_NETLINK:
            return "a netlink socket with unread messages" if _has_unread(file) else ""
        elif family != socket.AF_PACKET:
            return f"a socket of family {_FAMILIES.get(family, family)}"
    return ""


def _option(end: int, name: int) -> int:
    """An option of a socket; Python's own socket refuses families without addresses."""
    value, size = ctypes.c_int(), ctypes.c_uint32(4)
    if _libc.getsockopt(end, socket.SOL_SOCKET, name, ctypes.byref(value), ctypes.byref(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return value.value


def _upper_layer(end: int) -> str:
    """The kernel's protocol for the bytes of a TCP connection (`tls`, say); empty for none."""
    name, size = ctypes.create_string_buffer(16), ctypes.c_uint32(16)
    _libc.getsockopt(end, socket.IPPROTO_TCP, _TCP_ULP, name, ctypes.byref(size))
    return printable(name.value.decode(errors="replace"))


def _has_unread(end: int) -> bool:
    """True when a message waits at a socket. It stays there."""
    waiting = _libc.recv(end, ctypes.create_string_buffer(1), 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return int(waiting) >= 0


def _of_device(pid: int, number: int, target: str, seen: _Seen) -> str:
    file = os.stat(f"/proc/{pid}/fd/{number}")
    major, minor = os.major(file.st_rdev), os.minor(file.st_rdev)
    known = (major, minor) in _OF_A_NODE or major in _TERMINALS
    special = stat.S_ISBLK(file.st_mode) or (stat.S_ISCHR(file.st_mode) and not known)
    if special:
        return f"the device {target}"
    if target in terminals.MASTERS:
        with borrowed(pid, number) as master:
            seen.terminals = True
            return terminals.obstacle(master)
    return ""


def _outside(pids: list[int], seen: set[str]) -> str:
    """The Unix socket of the node that leads to a program outside; empty when none does. `seen` has all that the node's
    processes hold."""

    def look() -> set[int]:
        with DiagSocket() as diag:
            diag.bind()
            found = diag.get_sock_stats(family=socket.AF_UNIX, show=UDIAG_SHOW_PEER)
        return {one.get_attr("UNIX_DIAG_PEER") or 0 for one in found if f"socket:[{one['udiag_ino']}]" in seen} - {0}

    try:
        unknown = {f"socket:[{peer}]" for peer in in_netns(f"/proc/{pids[0]}/ns/net", look)} - seen
    except (OSError, NetlinkError):
        return ""  # the process ended, or the kernel refuses
    if not unknown:
        return ""
    inside = set(pids)  # a peer that nobody holds is in a message under way, which CRIU carries
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid not in inside and not unknown.isdisjoint(_held(pid)):
            return f"a Unix socket of the node is connected to {process_name(pid)} outside the node"
    return ""


def _held(pid: int) -> set[str]:
    """The objects to which the descriptors of a process refer."""
    found: set[str] = set()
    with contextlib.suppress(OSError):  # it ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _is_queue(pid: int, number: int) -> bool:
    """True for a POSIX message queue. Its path alone is no proof: a file that an earlier move handed over has a
    similar one."""
    status = ctypes.create_string_buffer(256)
    if _libc.statfs(f"/proc/{pid}/fd/{number}".encode(), status):
        return False
    return bool(struct.unpack_from("@l", status)[0] == _MQUEUE_MAGIC)


def _is_told(pid: int, number: int) -> bool:
    """True for a directory that has an owner, who gets a signal when it changes: dnotify gives it one."""
    with borrowed(pid, number) as file:
        return bool(_libc.fcntl(file, fcntl.F_GETOWN) > 0) and stat.S_ISDIR(os.fstat(file).st_mode)


def _writes(pid: int, number: int) -> bool:
    """True for the writing end of a pipe: only its flags show packet mode."""
    return bool(os.lstat(f"/proc/{pid}/fd/{number}").st_mode & stat.S_IWUSR)


def _flags(pid: int, number: int) -> int:
    return int(re.findall(r"flags:\s*(\d+)", _text(f"/proc/{pid}/fdinfo/{number}"))[0], 8)


def _unread(pid: int, number: int) -> int:
    with borrowed(pid, number) as file:
        return int(struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0" * 4))[0])


def _multicast(pid: int) -> str:
    """Why a multicast membership in the node's network namespace would be lost; empty when there is none."""
    try:
        lines = _text(f"/proc/{pid}/net/igmp").splitlines()[1:]
    except OSError:
        return ""
    for line in lines:
        words = line.split()
        if line.startswith("\t") and words and words[0] not in _OF_THE_KERNEL:
            address = ".".join(str(byte) for byte in reversed(bytes.fromhex(words[0])))
            return _member_of(address)
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        for line in _text(f"/proc/{pid}/net/igmp6").splitlines():
            group = str(ipaddress.IPv6Address(bytes.fromhex(line.split()[2])))
            if group not in _OF_THE_KERNEL_SIX and not group.startswith(_OF_AN_ADDRESS):
                return _member_of(group)
    return ""


def _member_of(group: str) -> str:
    return f"a socket of the node is a member of multicast group {group}, which CRIU does not restore"


def process_name(pid: int) -> str:
    """PID inside the node, and command."""
    try:
        status = _text(f"/proc/{pid}/status")
    except OSError:
        return "a process"
    inside = re.findall(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
    command = re.findall(r"^Name:\s(.*)$", status, re.MULTILINE)
    return printable(f"process {inside[0] if inside else pid} ({command[0] if command else '?'})")
