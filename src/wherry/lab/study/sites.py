"""The fabric of `multi-site` (CPU-limited hosts, a configurable link) and native MPI runs on its hosts.

Invariants: a native program runs in the network namespace and under the CPU limit of an emulated host, so that it
differs from a program on nodes only by the node; all limited hosts have the same CPU quota, independent of load.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.paths import instance
from wherry.lab.study.testbed import ProgramResult, Testbed

CPU_SHARE = 0.2
"""CPUs of each limited host: the smallest quota in a period of 5 ms. Nine such hosts fit on two CPUs."""
NEAR_HOSTS = ("a1", "a2", "a3", "a4", "a5")
FAR_HOSTS = ("b1", "b2", "b3", "b4")
UNLIMITED_HOSTS = {"a": ("q1", "q2"), "b": ("q3",)}
"""Hosts by site without a CPU limit, for NetPIPE: throttled ranks would measure the throttling and not the network."""
_HOSTS = [
    *(
        # Capacity for several nodes, of which one is busy and gets the whole quota of the host.
        {"name": name, "site": name[0], "cores": 1, "speed": CPU_SHARE, "memory": "1GiB"}
        for name in (*NEAR_HOSTS, *FAR_HOSTS)
    ),
    *(
        {"name": name, "site": site, "cores": 4, "memory": "2GiB"}
        for site, names in UNLIMITED_HOSTS.items()
        for name in names
    ),
]
_CGROUPS = Path("/sys/fs/cgroup")
_MPIRUN = (
    *("mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"),
    *(
        "--mca",
        "btl_tcp_if_include",
        "up0",
        "--mca",
        "btl_tcp_disable_family",  # else Open MPI 5 pairs no addresses on an interface with IPv4 and IPv6
        "6",
        "--mca",
        "oob_tcp_if_include",
        "up0",
        "--mca",
        "plm_rsh_no_tree_spawn",
        "1",
    ),
)
_AGENT = """\
#!/bin/sh
# Runs a command on an emulated host, as ssh would: in its network namespace and CPU cgroup, with its hostname.
case $1 in
{hosts}
*) echo "no host has the address $1" >&2; exit 1 ;;
esac
shift
for root in {roots}; do
  group=$root/{prefix}/$host
  if [ -d "$group" ]; then mkdir -p "$group/native" && echo $$ >"$group/native/cgroup.procs"; fi
done
exec nsenter --net=/run/netns/{prefix}-$host unshare --uts sh -c "hostname $host; $*"
"""


def fabric(overlay: str, latency: str) -> Mapping[str, Any]:
    """The study's fabric with a link of this overlay and latency. Latency `0` means no emulation."""
    link = {} if latency == "0" else {"latency": f"{latency}ms"}
    return {
        "kind": "fabric",
        "version": 1,
        "name": "multi-site",
        "sites": [{"name": "a"}, {"name": "b"}],
        "hosts": _HOSTS,
        "links": [{"between": ["a", "b"], "overlay": overlay, **link}],
    }


def run_on_hosts(
    testbed: Testbed, hosts: Sequence[str], argv: Sequence[str], directory: Path, seconds: float
) -> ProgramResult:
    """Runs a program natively by Open MPI, with one rank on each of these hosts."""
    if shutil.which(_MPIRUN[0]) is None:
        raise Refused(Code.UNSUPPORTED, f"{_MPIRUN[0]} is not installed", "", "make setup")
    prefix, addresses = instance().prefix, {host: _host_address(host) for host in hosts}
    agent = directory / "agent"
    cases = "\n".join(f"{address}) host={host} ;;" for host, address in addresses.items())
    agent.write_text(_AGENT.format(hosts=cases, roots=f"{_CGROUPS} {_CGROUPS}/cpu", prefix=prefix))
    agent.chmod(0o755)
    # The launcher runs on the first host, which Open MPI 5 accepts only by name.
    slots = ",".join(f"{slot}:1" for slot in (hosts[0], *list(addresses.values())[1:]))
    words = [*_MPIRUN, "--mca", "plm_rsh_agent", str(agent), "--host", slots, "-n", str(len(hosts)), *argv]
    environment = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    return testbed.run_command([str(agent), addresses[hosts[0]], shlex.join(words)], directory, seconds, environment)


def _host_address(host: str) -> str:
    words = ["ip", "-n", f"{instance().prefix}-{host}", "-json", "address", "show", "up0"]
    parsed = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=20).stdout)
    address: str = parsed[0]["addr_info"][0]["local"]
    return address


ThrottledSeconds = Mapping[str, Mapping[Path, float]]
"""Limited host -> cgroup -> seconds that its processes were throttled by a CPU quota."""


def read_throttled() -> ThrottledSeconds:
    """Reads the throttling counters of all limited hosts."""
    root = _CGROUPS / "cpu" if (_CGROUPS / "cpu").is_dir() else _CGROUPS
    return {host: _read_host_throttled(root / instance().prefix / host) for host in (*NEAR_HOSTS, *FAR_HOSTS)}


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
