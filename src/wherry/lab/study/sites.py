"""Sites of `multi-site`, `mixed` and `packing`: their links, what hosts with a share of a CPU the machine carries; the
fabric of `multi-site`, and native MPI runs on its hosts.

Invariants: a native program runs in the network namespace and under the CPU limit of an emulated host, so that it
differs from a program on nodes only by the node; all limited hosts have the same CPU quota, independent of load.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wherry.base.paths import instance
from wherry.lab import native_mpirun
from wherry.lab.study.settings import SECONDS, Setting
from wherry.lab.study.testbed import ProgramResult, Testbed

CPU_SHARE = 0.2
"""CPUs of each limited host, usually: the smallest quota in a period of 5 ms. Nine such hosts fit on two CPUs."""
EMULATED_SHARE = 0.4
"""CPUs of each virtual machine whose processor is emulated, usually: with less it boots for minutes."""
SITES = "abcdefgh"
"""Names of sites; a host's begins with that of its site."""


def clusters_on_host(share: float) -> int:
    """So many clusters fit on a limited host, which declares one CPU."""
    return int(1 / share + 1e-9)


LATENCY = Setting("link.latency", "latency of the link, one way", 0.01, 0.01, unit=SECONDS, least=0, most=10)
MBITS = Setting("link.mbits", "bandwidth of the link in Mbit/s", 1000, 1000, most=100_000)


def links(count: int, **figures: str) -> list[dict[str, Any]]:
    """Links of so many sites, all with these figures: from the first to each other one, as a fabric joins its sites as
    a tree. Between two of the others are two links."""
    return [{"between": [SITES[0], other], **figures} for other in SITES[1:count]]


def figures(mbits: int, seconds: float) -> dict[str, str]:
    """Those of a link with this bandwidth and latency; none is declared of 0 s."""
    latency = {"latency": f"{1e3 * seconds:g}ms"} if seconds else {}
    return {"bandwidth": f"{mbits}Mbit/s", **latency}


_MACHINE = "CPUs for limited hosts"
"""Feature whose text is how many CPUs the machine has for them."""


def machine_cpus(cpus: int) -> dict[str, str]:
    """The facts for `why_not_carried` of a machine with so many CPUs."""
    return {_MACHINE: str(cpus)}


def why_not_carried(ranks: int, share: float, unavailable: Mapping[str, str]) -> str:
    """Why the machine does not carry so many limited hosts of this share of a CPU; empty if it does."""
    have = unavailable.get(_MACHINE, "")
    if not have or ranks * share <= int(have) + 1e-9:
        return ""
    return f"hosts of {ranks} ranks have {ranks * share:g} CPUs together, this machine has {have}"


class Hosts(NamedTuple):
    """Limited hosts: those of the first site, and those of all others."""

    near: tuple[str, ...]
    far: tuple[str, ...]

    @staticmethod
    def of(near: int, far: int, kind: str, sites: int) -> Hosts:
        """So many at the first site, and at each other one. A name begins with its site's, then `kind`."""
        counts = [near, *[far] * (sites - 1)]
        at = [[f"{site}{kind}{i}" for i in range(1, count + 1)] for site, count in zip(SITES, counts, strict=False)]
        return Hosts(tuple(at[0]), tuple(host for hosts in at[1:] for host in hosts))

    def for_ranks(self, ranks: int, all_sites: bool) -> tuple[str, ...]:
        """One for each rank: the first ones, or all of the other sites' and the rest at the first."""
        return (*self.near[: ranks - len(self.far)], *self.far) if all_sites else self.near[:ranks]


UNLIMITED_HOSTS = {"a": ("q1", "q2"), "b": ("q3",)}
"""Hosts by site without a CPU limit, for NetPIPE: throttled ranks would measure the throttling and not the network."""
_CGROUPS = Path("/sys/fs/cgroup")
_INTERFACE = "up0"
"""A host's interface to its site."""
_OPENMPI = (
    *("--allow-run-as-root", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"),
    *("--mca", "btl_tcp_if_include", _INTERFACE, "--mca", "oob_tcp_if_include", _INTERFACE),
    *("--mca", "btl_tcp_disable_family", "6"),  # else Open MPI 5 pairs no addresses on one with IPv4 and IPv6
    *("--mca", "plm_rsh_no_tree_spawn", "1"),
)
_AGENT = """\
#!/bin/sh
# Runs a command on an emulated host, as ssh would: in its network namespace and CPU cgroup, with its hostname. /sys is
# the namespace's own, as UCX looks there for interfaces; cgroups stay, for the agents that the command starts.
case $1 in
{hosts}
*) echo "no host has the address $1" >&2; exit 1 ;;
esac
shift
for root in {roots}; do
  group=$root/{prefix}/$host
  if [ -d "$group" ]; then mkdir -p "$group/native" && echo $$ >"$group/native/cgroup.procs"; fi
done
new=${{0%/*}}/sys
mkdir -p "$new"
export new host
exec nsenter --net=/run/netns/{prefix}-$host unshare --uts --mount sh -c 'hostname "$host" &&
mount -t sysfs sysfs "$new" && mount --rbind {cgroups} "$new/fs/cgroup" && mount --move "$new" /sys &&
exec sh -c "$*"' sh "$@"
"""


class Room(NamedTuple):
    """Share of a CPU that a kind of hosts has, and memory in bytes."""

    share: float
    memory: int


def fabric(
    hosts: Hosts, overlay: str, latency: str, emulated: Hosts, rooms: tuple[Room, Room, Room], sites: int
) -> Mapping[str, Any]:
    """The study's fabric with links of this overlay and latency in ms. Latency `0` means no emulation. `emulated` are
    hosts of virtual machines without KVM; `rooms` are those of limited hosts, of these, and of the unlimited ones."""
    kinds = (
        ((*hosts.near, *hosts.far), 1),  # capacity for several nodes, one of which is busy and gets the whole quota
        ((*emulated.near, *emulated.far), 4),  # a node of one CPU has the share by its own quota
        (tuple(name for names in UNLIMITED_HOSTS.values() for name in names), 4),
    )
    at = {name: site for site, names in UNLIMITED_HOSTS.items() for name in names}
    link = {} if latency == "0" else {"latency": f"{latency}ms"}
    return {
        "kind": "fabric",
        "version": 1,
        "name": "multi-site",
        "sites": [{"name": name} for name in SITES[:sites]],
        "hosts": [
            {
                "name": name,
                "site": at.get(name, name[0]),
                "cores": cores,
                "speed": room.share,
                "memory": f"{room.memory}B",
            }
            for (names, cores), room in zip(kinds, rooms, strict=True)
            for name in names
        ],
        "links": links(sites, overlay=overlay, **link),
    }


def run_on_hosts(
    testbed: Testbed, hosts: Sequence[str], argv: Sequence[str], directory: Path, seconds: float, mpi: str = "openmpi"
) -> ProgramResult:
    """Runs a program natively, with one rank on each of these hosts, which waits as ranks on nodes do."""
    launcher = native_mpirun.launcher(mpi)
    prefix, addresses = instance().prefix, {host: _host_address(host) for host in hosts}
    agent = directory / "agent"
    cases = "\n".join(f"{address}) host={host} ;;" for host, address in addresses.items())
    agent.write_text(_AGENT.format(hosts=cases, roots=f"{_CGROUPS} {_CGROUPS}/cpu", prefix=prefix, cgroups=_CGROUPS))
    agent.chmod(0o755)
    start = _mpich if mpi == "mpich" else _openmpi
    options, environment = start(agent, hosts[0], list(addresses.values()))
    words = [launcher, *options, "-n", str(len(hosts)), *native_mpirun.waiting_as_on_nodes(mpi), *argv]
    return testbed.run_command([str(agent), addresses[hosts[0]], shlex.join(words)], directory, seconds, environment)


def _openmpi(agent: Path, first: str, addresses: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of Open MPI's launcher. It runs on the first host, which Open MPI 5 accepts only by
    name."""
    slots = ",".join(f"{slot}:1" for slot in (first, *addresses[1:]))
    return [*_OPENMPI, "--mca", "plm_rsh_agent", str(agent), "--host", slots], {}


def _mpich(agent: Path, _first: str, addresses: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """As `_openmpi`, of MPICH's."""
    slots = ",".join(f"{address}:1" for address in addresses)
    options = ["-launcher", "rsh", "-launcher-exec", str(agent), "-rmk", "user", "-localhost", addresses[0]]
    over = {"UCX_NET_DEVICES": _INTERFACE, "FI_TCP_IFACE": _INTERFACE}
    environment = {**native_mpirun.environment("mpich", "tcp"), **over}
    return [*options, "-hosts", slots, *native_mpirun.options("mpich", "tcp")], environment


def _host_address(host: str) -> str:
    words = ["ip", "-n", f"{instance().prefix}-{host}", "-json", "address", "show", _INTERFACE]
    parsed = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=20).stdout)
    address: str = parsed[0]["addr_info"][0]["local"]
    return address


ThrottledSeconds = Mapping[str, Mapping[Path, float]]
"""Limited host -> cgroup -> seconds that its processes were throttled by a CPU quota."""


def read_throttled(hosts: Sequence[str]) -> ThrottledSeconds:
    """Reads the throttling counters of limited hosts."""
    root = _CGROUPS / "cpu" if (_CGROUPS / "cpu").is_dir() else _CGROUPS
    return {host: _read_host_throttled(root / instance().prefix / host) for host in hosts}


def throttled_between(before: ThrottledSeconds, after: ThrottledSeconds) -> float:
    """Throttled seconds between two readings, summed over hosts. Nested cgroups (node and host) throttle at the same
    time and both count it, so each host contributes its largest cgroup only."""
    return sum(
        max((total - before.get(host, {}).get(group, 0.0) for group, total in groups.items()), default=0.0)
        for host, groups in after.items()
    )


def _read_host_throttled(host: Path) -> dict[Path, float]:
    parsed = {}
    for file in host.rglob("cpu.stat"):
        stat = dict(line.split() for line in file.read_text().splitlines())
        nanoseconds, microseconds = int(stat.get("throttled_time", 0)), int(stat.get("throttled_usec", 0))
        parsed[file.parent] = nanoseconds * 1e-9 + microseconds * 1e-6
    return parsed
