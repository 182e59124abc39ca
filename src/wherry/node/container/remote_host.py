"""Hosts that are other machines, reached by SSH: the agent of each has the `ContainerHost` of its machine.

The plain values of `host` cross between them. Between two kernels clocks continue by a time namespace (`clocks`), and
files are compared by the attributes that two machines can agree on (`shared_files`). Nodes move between such hosts only
when the daemon has WHERRY_TWO_KERNELS=1, as that has been tried too little; see docs/design/0026-hosts-by-ssh.md.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.base.progress import Check
from wherry.base.two_kernels import SWITCH, may_differ
from wherry.hostlink.entrance import CONTAINERS
from wherry.hostlink.link import HostLink
from wherry.hostlink.remote import Links, remote
from wherry.node.as_user import as_user
from wherry.node.container import shown_proc
from wherry.node.container.host import ContainerHost
from wherry.node.protocol import Placement

_REMOVALS = dict.fromkeys(("stop", "unbind", "abort", "kill", "release", "discard", "resume", "close"))
"""Steps that a host that is declared lost need not do: all of ours is removed there when it is restored."""
_MAX_LISTED = 3
_ANEW = frozenset((*_REMOVALS, "thaw", "fill", "send_rest", "await_first_run"))
"""Steps of a half that need nothing of earlier ones; see `host`."""
_LOST = {**_REMOVALS, "alive": False, "pager_obstacle": ""}


class Files(Protocol):
    """The part of the fabric that is used here."""

    @property
    def connections(self) -> Links:
        """The connections to the hosts."""

    def unseen_files(self, host: str, paths: list[str]) -> list[str]:
        """Those of `paths` that the host lacks. LostContact when it does not answer."""


class RemoteHosts:
    """The hosts of a fabric by SSH."""

    def __init__(self, fabric: Files) -> None:
        self._fabric = fabric

    def of(self, name: str) -> ContainerHost:
        links = self._fabric.connections
        host = remote(links, name, CONTAINERS, ContainerHost, _LOST, _ANEW)
        return cast(ContainerHost, _Host(host, lambda paths: self._fabric.unseen_files(name, paths)))

    def pair_obstacle(self, source: str, destination: str) -> str:
        ends = [self._link(host) for host in (source, destination)]
        if any(end is None for end in ends):
            return ""  # the next request to it reports that
        here, there = (end.boot for end in ends if end)
        if here != there and (obstacle := self._kernel_obstacle(destination)):
            return f"hosts {source} and {destination} are two machines: {obstacle}"
        points = [set(self.of(host).mount_points()) for host in (source, destination)]
        if (points[0] ^ points[1]) & set(shown_proc.FILES):
            return f"of hosts {source} and {destination} one has lxcfs: apt-get install lxcfs at the other, too"
        if lacking := sorted(points[0] - points[1]):
            return (
                f"host {destination} has nothing mounted at {', '.join(lacking[:_MAX_LISTED])}, "
                f"which nodes see at {source}"
            )
        return ""

    def node_obstacle(self, source: Placement, destination: Placement) -> str:
        ends = [self._link(placement.host) for placement in (source, destination)]
        if len({end.boot for end in ends if end}) < 2:
            return ""
        if lack := self.of(destination.host).lacks(self.of(source.host).uses(source)):
            return f"at host {destination.host}: {lack}"
        return ""

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        found = ((host, self.of(host).disk_obstacle(size)) for host, size in wanted.items() if size)
        return next((f"host {host} {why}" for host, why in found if why), "")

    def _kernel_obstacle(self, destination: str) -> str:
        """Why no node of another kernel can go there; empty when nodes can."""
        if not may_differ():
            return f"moves between two kernels are tried too little to be on (the daemon has no {SWITCH}=1)"
        why = self.of(destination).kernel_obstacle()
        return f"at host {destination} {why}" if why else ""

    def unsupported(self) -> str:
        return ""

    def sweep(self) -> None:
        """Does nothing: the fabric removes the objects at hosts."""

    def _link(self, host: str) -> HostLink | None:
        try:
            return self._fabric.connections.link(host)
        except WherryError:
            return None


class _Host:
    """A host, whose nodes count as running while it is silent, and to which directories of users are bound only when it
    has the same ones as this machine."""

    def __init__(self, host: ContainerHost, missing: Callable[[list[str]], list[str]]) -> None:
        self._host, self._missing = host, missing

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)

    def start(self, placement: Placement, check: Check) -> None:
        for directory in placement.binds:
            self._require_shared(placement, directory)
        self._host.start(placement, check)

    def alive(self, placement: Placement) -> bool:
        try:
            return self._host.alive(placement)
        except LostContact:  # programs there run on: a silent host has lost no node
            return True

    def bind(self, placement: Placement, directory: str) -> None:
        self._require_shared(placement, directory)
        self._host.bind(placement, directory)

    def _require_shared(self, placement: Placement, directory: str) -> None:
        """Refused when a file that the owner makes in the directory here is not seen there."""
        name = f"{directory}/.wherry-{secrets.token_hex(8)}"
        try:
            as_user(placement.owner, lambda: _touch(name))
        except OSError:  # the owner cannot write there, so nothing that is written can be missing
            missing = self._missing([directory])
        else:
            try:
                missing = self._missing([name])
            finally:
                as_user(placement.owner, lambda: _remove(name))
        if missing:
            what = f"the nodes of {placement.node.cluster} at host {placement.host} would not see your files"
            why = f"{directory} is not the same directory there"
            remedy = "put it on storage that all hosts mount, or wherry up FILE from a directory that is"
            raise Refused(Code.INCOMPATIBLE_HOST, what, why, remedy)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # somebody else did
        os.unlink(path)
