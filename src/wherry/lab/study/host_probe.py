"""Facts of the user's own hosts, asked of each over SSH by a constant script before a study makes anything.

Invariant: nothing is written at a host, and no word of an answer becomes a command.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.lab.environment import HOST, HOSTS_LOAD, SAME_MACHINE, environment
from wherry.lab.study.own_hosts import OwnHosts
from wherry.model.spec.fabric import HostSpec
from wherry.model.ssh_uri import parse_ssh_uri

_SECONDS = 60.0
_ECHOES = 10
"""So many are sent to each other host; the least round-trip time of them counts."""
_SCRIPT = f"""
echo "kernel $(uname -r)"
sed -n 's/^model name[^:]*: */cpu /p' /proc/cpuinfo | head -n 1
echo "cpus $(nproc)"
sed -n 's/^MemTotal: *\\([0-9]*\\) kB/memory \\1/p' /proc/meminfo
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "load $(cut -d' ' -f1-3 /proc/loadavg)"
sed -n 's/^PRETTY_NAME="*\\([^"]*\\)"*$/system \\1/p' /etc/os-release
echo "openmpi $(mpirun.openmpi --version 2>/dev/null | head -n 1)"
echo "mpich $(mpiexec.mpich --version 2>/dev/null | sed -n 's/^ *Version: *//p')"
echo "ping $(command -v ping)"
ip -o -4 address show to "$1/32" | while read -r number interface kind address rest; do
  echo "interface $interface"
  echo "network $address"
  ip -o link show dev "$interface" | sed -n 's/.* mtu \\([0-9]*\\) .*/mtu \\1/p'
done
shift
for other in "$@"; do
  ping -nqc {_ECHOES} -i 0.01 "$other" 2>/dev/null | sed -n "s|^r.* = \\([0-9.]*\\)/.*|echo $other \\1|p"
done
"""
"""Its words are the host's address on the wire, and those of the others."""
_SEES = 'if [ -e "$1" ]; then echo yes; fi'
_ASKED = ("kernel", "cpus", "memory", "boot", "load")
"""Facts that each host has."""
MPIS = {"openmpi": ("mpirun.openmpi", "open mpi"), "mpich": ("mpiexec.mpich", "mpich")}
"""MPI -> the feature that a machine without it lacks, and the fact of this machine with its version."""
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ClearAllForwardings=yes")


@dataclass(frozen=True)
class Probe:
    """A host's answers. `echoes`: least round-trip time in seconds to the other hosts' addresses that answered."""

    name: str
    address: str
    facts: Mapping[str, str]
    echoes: Mapping[str, float] = field(default_factory=dict)

    @property
    def network(self) -> str:
        """That of its address on the wire, as ADDRESS/BITS."""
        return str(ipaddress.ip_interface(self.facts["network"]).network)


def ssh_words(host: HostSpec) -> list[str]:
    """The command that runs another one at a host, as root's ssh_config has it."""
    uri = parse_ssh_uri(host.uri)
    return ["ssh", *_OPTIONS, *(["-p", uri.port] if uri.port else []), "--", uri.destination]


def run_script(host: HostSpec, script: str, *words: str, seconds: float = _SECONDS) -> str:
    """The output of a constant script at a host, with these words. Refused (UNREACHABLE) when it cannot be run."""
    command = [*ssh_words(host), "sh", "-s", "--", *map(shlex.quote, words)]  # which SSH gives to a shell
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise _silent(host, f"it did not answer in {seconds:g} s") from None
    if done.returncode:
        raise _silent(host, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def require_shared(hosts: Sequence[HostSpec], directory: Path) -> None:
    """Refused (INCOMPATIBLE_HOST) when a host does not see this directory, in which programs are and write; it is made
    for that, and removed again if it was not there."""
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".seen-") as file:
            blind = [host.name for host in hosts if not run_script(host, _SEES, file.name).strip()]
        if blind:
            what = f"{' and '.join(blind)} {'do' if len(blind) > 1 else 'does'} not see {directory}"
            why = "programs of the study are copied there, and write there"
            raise Refused(Code.INCOMPATIBLE_HOST, what, why, "--out DIR on storage that this machine and all hosts see")
    except BaseException:
        if made:
            directory.rmdir()
        raise


def _silent(host: HostSpec, why: str) -> Refused:
    return Refused(Code.UNREACHABLE, f"host {host.name} cannot be asked over SSH", why, f"wherry host add {host.uri}")


def probe(hosts: Sequence[HostSpec]) -> list[Probe]:
    """Asks all of them at once. Refused when one does not answer, or does not have its address on the wire."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(lambda host: _probe(host, hosts), hosts))


def _probe(host: HostSpec, hosts: Sequence[HostSpec]) -> Probe:
    others = [other.wire for other in hosts if other.name != host.name]
    found = parse(host.name, str(_address(host)), run_script(host, _SCRIPT, str(_address(host)), *map(str, others)))
    if lacking := [key for key in _ASKED if key not in found.facts]:
        raise _silent(host, f"its answer has no {', no '.join(lacking)}")
    if "network" not in found.facts:
        why = f"{host.name} has no interface with the address {found.address}"
        raise Refused(Code.INVALID_FILE, f"host {host.name} is not on the wire", why, "correct its `address`")
    return found


def parse(name: str, address: str, text: str) -> Probe:
    """A host's answers from the script's output."""
    facts, echoes = dict[str, str](), dict[str, float]()
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "echo":
            other, _, milliseconds = value.partition(" ")
            echoes[other] = float(milliseconds) / 1000
        elif value:
            facts.setdefault(key, value)
    return Probe(name, address, facts, echoes)


def _address(host: HostSpec) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(host.wire)


def unavailable(probes: Sequence[Probe]) -> dict[str, str]:
    """Features that the hosts lack, as `requirements.unavailable_features` has those of this machine."""
    reasons, here = OwnHosts.unavailable(), environment()
    for mpi, (feature, fact) in MPIS.items():
        other = {one.name: one.facts.get(mpi, "") for one in probes if one.facts.get(mpi, "") != here[fact]}
        if other:
            has = "; ".join(f"{name} has {version or 'none'}" for name, version in other.items())
            reasons[feature] = f"hosts need the same one as this machine, {here[fact]}: {has}"
    if silent := [one.name for one in probes if not one.facts.get("ping")]:
        reasons["ping"] = f"there is no ping at {', '.join(silent)} (Debian's iputils-ping)"
    if len(interfaces := {one.facts["interface"]: one.name for one in probes}) > 1:
        each = ", ".join(f"{interface} at {name}" for interface, name in interfaces.items())
        reasons.setdefault("mpiexec.mpich", f"MPICH takes one name of the interface to the wire, and it is {each}")
    return reasons


def texts(probes: Sequence[Probe], encryption: str = "never") -> dict[str, str]:
    """Facts of the environment: those of each host, those of the wire between them, and their load. `encryption` is the
    fabric file's."""
    rows, machines = dict[str, str](), dict[str, str]()
    for one in probes:
        first = machines.setdefault(one.facts["boot"], one.name)
        rows[f"{HOST}{one.name}"] = _text(one) + (f", {SAME_MACHINE} as {first}" if first != one.name else "")
    sizes = ", ".join(f"{one.name} MTU {one.facts['mtu']} ({one.facts['interface']})" for one in probes)
    names = {one.address: one.name for one in probes}
    echoes = [
        f"{one.name} to {names.get(other, other)} {1e3 * seconds:.2g} ms"
        for one in probes
        for other, seconds in one.echoes.items()
    ]
    rows["wire"] = f"{sizes}; frames of nodes are {'not ' if encryption == 'never' else ''}encrypted"
    rows["round-trip times"] = ", ".join(echoes) or "unknown: no ping was answered"
    rows[HOSTS_LOAD] = ", ".join(f"{one.name} {one.facts['load']}" for one in probes)
    return rows


def _text(one: Probe) -> str:
    facts = one.facts
    words = [f"Linux {facts['kernel']}", facts.get("system", ""), facts.get("cpu", ""), f"{facts['cpus']} CPUs"]
    words.append(format_size(int(facts["memory"]) << 10))
    return ", ".join(word for word in words if word)


def own_address(probes: Sequence[Probe]) -> str:
    """The address from which this machine reaches the first of them. Refused (UNREACHABLE) when it has none."""
    words = ["ip", "-json", "route", "get", probes[0].address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise Refused(Code.UNREACHABLE, f"there is no way to {probes[0].address}", done.stderr.strip(), "ip route")
    address: str = json.loads(done.stdout)[0]["prefsrc"]
    return address
