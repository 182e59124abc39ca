"""`python -m wherry.agent`: works one host for the daemon, over standard input and output.

It ends with its input, and when its daemon does not receive its messages any more (`lease`). Until it is open its
standard error is the daemon's log; then that is a file at the host.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wherry.agent import guard
from wherry.agent.bundled import bundle_digest
from wherry.agent.lease import Lease, clock
from wherry.agent.server import Objects, Server
from wherry.agent.takeover import LOG, leave, take_over
from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.base.version import __version__
from wherry.fabric.host_network import HostNetwork
from wherry.fabric.wire_host import WireHost
from wherry.hostlink.entrance import CONTAINERS, ENTRANCE, NETWORK, PROTOCOL, RANKS, Entrance, HostSetup, Opened
from wherry.hostlink.frames import Malformed
from wherry.hostlink.interface import Interface
from wherry.model.records import HostFacts
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.host import ContainerHost
from wherry.node.container.local_host import LocalHosts
from wherry.node.local_ranks import LocalRanks
from wherry.node.protocol import Placement
from wherry.node.rank_host import RankHost

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The path of a login of root; sshd may give less."""
_LOG = 1 << 20
"""Bytes of the log from which on the next agent begins it anew."""


class _Host(WireHost):
    """This host with its containers."""

    def __init__(self, setup: HostSetup, criu_version: Callable[[], str]) -> None:
        super().__init__(setup, criu_version)
        self.containers = LocalHosts(Instance(setup.instance), self)
        self.nodes = guard.GuardedNodes(Instance(setup.instance), setup.name, self.cgroup(setup.name))

    def make(self) -> None:
        super().make()
        if self.setup.lease:
            guard.start(self.nodes)

    def facts(self) -> HostFacts:
        return super().facts().model_copy(update={"bundle": bundle_digest()})

    def remove(self) -> None:
        super().remove()
        self.containers.sweep()


class HostEntrance:
    """The entrance of this host; it adds to `objects` when opened. With the `lease` the time of nodes is prolonged."""

    def __init__(self, objects: Objects, lease: Lease) -> None:
        self._objects, self._lease = objects, lease
        self.taken: HostSetup | None = None
        """For whom this agent works."""
        self._network: _Host | None = None

    def open(self, setup: HostSetup) -> Opened:
        if self._network is not None:
            raise Refused(Code.WRONG_STATE, f"host {setup.name} is open already")
        if setup.protocol != PROTOCOL:
            what = f"the agent of host {setup.name} is of another version"
            raise Refused(Code.VERSION_MISMATCH, what, f"protocol {PROTOCOL}, and the daemon's is {setup.protocol}", "")
        if os.geteuid() != 0:
            what, why = f"host {setup.name} cannot be worked", "its agent is not root"
            raise Refused(Code.PERMISSION, what, why, "uri: ssh://root@… in the fabric file")
        take_over(setup)
        self.taken = setup
        _log_to(Instance(setup.instance).run / LOG)
        os.environ["WHERRY_INSTANCE"] = setup.instance
        network = self._network = _Host(setup, _criu_version)
        self._objects[NETWORK] = Interface(HostNetwork), network
        self._objects[CONTAINERS] = Interface(ContainerHost), network.containers.of(setup.name)
        self._objects[RANKS] = Interface(RankHost), LocalRanks(network.cgroup(setup.name))
        return Opened(version=__version__, boot=_BOOT.read_text().strip(), stood=self._guarded(network))

    def _guarded(self, network: _Host) -> bool:
        """Has the host's nodes guarded from now on, and run unless the host is declared lost. True when they were
        stopped."""
        nodes, setup = network.nodes, network.setup
        if setup.lease:
            self._lease.prolonged = lambda at: None if nodes.prolong(at + setup.lease) else self._lease.give_up()
        if setup.lost or not (setup.lease or nodes.known()):
            return False
        return nodes.go_on(clock() + setup.lease if setup.lease else math.inf)

    def here(self, value: Any) -> Any:
        """A placement with the paths of this host, which only the agent has."""
        network = self._network
        if not isinstance(value, Placement) or network is None:
            return value
        if value.host != network.name:
            raise Malformed(f"{value.node.name} is to be at {value.host}, and this is {network.name}")
        netns, cgroup = network.port_netns(value.node.name), f"{network.cgroup(value.host)}/{value.node.name}"
        return value.model_copy(update={"netns": netns, "cgroup": cgroup})


def main() -> None:
    """Serves until the input ends; or guards."""
    if sys.argv[1:2] == [guard.WORD]:
        instance, name, cgroup = sys.argv[2:]
        guard.run(guard.GuardedNodes(Instance(instance), name, cgroup))
        return
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{_PATH}".strip(":")
    reads, writes = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # no program that is started here reads from the stream
    os.dup2(2, 1)  # nor writes into it
    objects = Objects()

    def end() -> None:
        print("its daemon no longer receives its frames, so this agent ends", file=sys.stderr)
        os._exit(0)

    lease = Lease(end)
    entrance = HostEntrance(objects, lease)
    objects[ENTRANCE] = Interface(Entrance), entrance

    def write(frame: bytes) -> None:
        left = memoryview(frame)
        while left:
            left = left[os.write(writes, left) :]

    lease.watch()
    try:
        Server(objects, write, entrance.here, lease).serve(reads)
    except Malformed as error:
        print(f"a frame of the daemon is malformed: {error}", file=sys.stderr)
    except OSError:  # nobody reads any more
        pass
    if entrance.taken:
        leave(entrance.taken)
    os._exit(0)  # whatever is under way, as when a daemon is killed


def _log_to(path: Path) -> None:
    """Has this process and its children write there: they must not wait for SSH, nor end with it."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.fstat(log).st_size > _LOG:
        os.ftruncate(log, 0)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)


def _criu_version() -> str:
    found = criu_probe.find()
    return found.version if found.works else ""


if __name__ == "__main__":
    main()
