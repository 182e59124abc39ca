"""MPI programs in SimGrid's SMPI: two sites as a platform file, ranks placed at random, and a run.

All ranks run in one process of this machine; time and network are simulated, so a run gives the same times whatever
else the machine does.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import native_program

PROGRAM = "wherry-collectives-smpi"
SELECTORS = {"ompi": "Open MPI", "mpich": "MPICH"}
"""SMPI's name of the algorithms that a library takes, and the library."""
_SITES = "ab"
_LAN_LATENCY, _LAN_BANDWIDTH = 20e-6, 10e9
"""Of two hosts of a site: seconds one way, bits per second."""
_OPTIONS = {
    "smpi/lat-factor": "0:1",  # its own factors by size were measured on a cluster, and multiply a WAN's latency
    "smpi/bw-factor": "0:0.97",  # headers
    "smpi/simulate-computation": "no",
    "smpi/wtime": "1e-6",  # s that a look at the clock takes: else a loop that waits for it would not end
}
_PLATFORM = """\
<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="world" routing="Full">
    {clusters}
    <link id="wan" bandwidth="{bandwidth}bps" latency="{latency}s" sharing_policy="SPLITDUPLEX"/>
    {routes}
  </zone>
</platform>
"""
_CLUSTER = (
    '<cluster id="{site}" prefix="{site}" suffix="" radical="0-{last}" speed="1Gf" bw="{bandwidth}bps"'
    ' lat="{latency}s" router_id="{site}-router"/>'
)
_ROUTE = (
    '<zoneRoute src="{src}" dst="{dst}" gw_src="{src}-router" gw_dst="{dst}-router" symmetrical="NO">'
    '<link_ctn id="wan" direction="{direction}"/></zoneRoute>'
)


@dataclass(frozen=True)
class TwoSites:
    """Hosts with one rank each, half of them at either site, in an order that is drawn with `seed`. Times are seconds,
    one way; rates are bits per second in each direction."""

    ranks: int
    seed: int
    latency: float
    bandwidth: float

    def platform(self) -> str:
        """SimGrid's file. Two links of hosts are between two hosts of a site, so each has half of the latency."""
        first = (self.ranks + 1) // 2
        lan = {"bandwidth": f"{_LAN_BANDWIDTH:g}", "latency": f"{_LAN_LATENCY / 2:g}"}
        counts = zip(_SITES, (first, self.ranks - first), strict=True)
        clusters = [_CLUSTER.format(site=site, last=count - 1, **lan) for site, count in counts]
        ways = {"UP": "ab", "DOWN": "ba"}
        routes = [_ROUTE.format(src=ends[0], dst=ends[1], direction=way) for way, ends in ways.items()]
        return _PLATFORM.format(
            clusters="\n    ".join(clusters),
            routes="\n    ".join(routes),
            bandwidth=f"{self.bandwidth:g}",
            latency=f"{self.latency:g}",
        )

    def hosts(self) -> list[str]:
        """The host of each rank."""
        first = (self.ranks + 1) // 2
        names = [f"a{number}" for number in range(first)] + [f"b{number}" for number in range(self.ranks - first)]
        random.Random(self.seed).shuffle(names)  # noqa: S311 - a placement, not a secret
        return names

    def site_map(self) -> str:
        """Where the ranks are, in the form of a job's map."""
        return ",".join(f"{_SITES.index(host[0])}x1" for host in self.hosts())


def obstacle() -> str:
    """Why nothing can be simulated; empty when all is there."""
    if not shutil.which("smpirun"):
        return "SimGrid is not installed"
    try:
        native_program(PROGRAM)
    except Refused:
        return f"{PROGRAM} is not built"
    return ""


def simulate(
    where: TwoSites,
    selector: str,
    words: Sequence[str],
    directory: Path,
    *,
    by_sites: bool,
    eager: int = 0,
    timeout: float = 7200,
) -> str:
    """The output of the program for collectives, run with `words` by all ranks. `directory` gets the
    platform and host files. Messages of fewer than `eager` bytes begin before their receiver has called. Raises Failed
    when the program does not end well, TimeoutExpired after `timeout` seconds (of this machine, not of the simulated
    one)."""
    platform, hosts = directory / "platform.xml", directory / "hosts"
    platform.write_text(where.platform())
    hosts.write_text("".join(f"{host}\n" for host in where.hosts()))
    options = {"smpi/coll-selector": selector, **_OPTIONS, "smpi/async-small-thresh": str(eager)}
    command = ["smpirun", "-np", str(where.ranks), "-platform", str(platform), "-hostfile", str(hosts)]
    command += [f"--cfg={name}:{value}" for name, value in options.items()]
    command += ["--log=root.thres:warning", str(native_program(PROGRAM)), *words]
    environment = {name: value for name, value in os.environ.items() if name != "WHERRY_MPI_SITES"}
    environment |= {"WHERRY_MPI_SITES": where.site_map()} if by_sites else {}
    return _run(command, environment, directory, timeout)


def _run(command: Sequence[str], environment: dict[str, str], directory: Path, timeout: float) -> str:
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, env=environment, cwd=directory, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        output, errors = child.communicate(timeout=timeout)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)  # smpirun is a shell, and the simulator its child
        child.communicate()
        raise
    if child.returncode:
        last = "; ".join(errors.strip().splitlines()[-3:])
        raise Failed(Code.FAILED, f"the simulated program ended with {child.returncode}", last)
    return output
