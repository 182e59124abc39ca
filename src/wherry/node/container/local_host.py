"""This machine as the host of container nodes: made by runc (or crun), moved by CRIU.

Emulated hosts are network namespaces and cgroups of one machine, so all of them are reached in this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance, native_program
from wherry.base.progress import Check
from wherry.fabric import cpuset
from wherry.fabric.cgroup import Cgroup, only
from wherry.fabric.host_facts import runtime, runtime_problem
from wherry.model import host_memory
from wherry.model.move_check import Hindrance
from wherry.model.records import CONTROL_PORT
from wherry.node.container import (
    clocks,
    disk,
    hot_bind,
    runtime_config,
    shared_files,
    shown_cgroups,
    shown_proc,
    write_sample,
)
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.host import Clocks, Uses
from wherry.node.container.host_memory import HostMemory
from wherry.node.container.inspection import inspect, tree_bytes
from wherry.node.container.local_arrival import LocalArrival
from wherry.node.container.local_departure import LocalDeparture
from wherry.node.container.mounts import Layout, remove_tree, submounts
from wherry.node.container.movable import require_movable
from wherry.node.container.processes import first_process, is_dying, number_of_mappings
from wherry.node.container.stale_mounts import same_directory, used_stale_mount
from wherry.node.container.tracking import Probed, Tracking, chosen, probed, receiver_obstacle
from wherry.node.container.warm_connections import Underlay, Wire
from wherry.node.netns_socket import in_netns
from wherry.node.protocol import Measured, Placement, Usage
from wherry.node.undo import undone_on_error
from wherry.node.usage import usage_of

_LISTEN_TIMEOUT = 60.0
"""Seconds that a node's agent may take until it listens."""
_RUNTIME_TIMEOUT = 60.0
"""Seconds for a call of the OCI runtime, which takes a fraction of one."""


class LocalHosts:
    """The emulated hosts of an instance's fabric, or the one host that this machine is. Without `pager` CRIU sends the
    memory of nodes that move; `tracking` is how the pager finds their dirty pages, None for the best way. Memory that
    leaves the machine is `sealed`; tests seal all."""

    def __init__(
        self,
        instance: Instance,
        fabric: Wire,
        pager: bool = True,
        tracking: Tracking | None = None,
        sealed: bool = False,
    ) -> None:
        self._instance, self._fabric, self._pager, self._tracking = instance, fabric, pager, tracking
        self._sealed = sealed or fabric.leaves_machine

    def of(self, name: str) -> LocalHost:
        return LocalHost(self._instance, Underlay(self._fabric, name), self._pager, self._tracking, self._sealed)

    def pair_obstacle(self, source: str, destination: str) -> str:
        return ""

    def node_obstacle(self, source: Placement, destination: Placement) -> str:
        return ""

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        return f"this machine {why}" if (why := disk.obstacle(self._instance, sum(wanted.values()))) else ""

    def unsupported(self) -> str:
        if os.geteuid() != 0:
            return "container nodes need root"
        return runtime_problem()

    def sweep(self) -> None:
        """Removes the mounts and directories of the instance's placements. Processes end with its cgroups."""
        for directory in ("nodes", "runtime", "shared"):
            remove_tree(self._instance.run / directory)
        remove_tree(disk.directory(self._instance))
        shown_proc.of(self._instance).remove()


class LocalHost:
    """One emulated host."""

    def __init__(
        self,
        instance: Instance,
        underlay: Underlay,
        pager: bool = True,
        tracking: Tracking | None = None,
        sealed: bool = False,
    ) -> None:
        self._instance, self._underlay, self._pager, self._named = instance, underlay, pager, tracking
        self._sealed = sealed

    def layout(self, placement: Placement) -> Layout:
        """The directories of a placement."""
        name, size, shown = _placement(placement), placement.node.disk, shown_proc.of(self._instance)
        directory = self._instance.run / "nodes" / name
        return Layout(
            directory,
            placement.owner,
            placement.binds,
            self.memory(placement).outside,
            placement.cgroup.strip("/"),
            shown.mounts,
            disk.Disk(disk.directory(self._instance) / name, directory / "disk", size) if size else None,
        )

    def memory(self, placement: Placement) -> HostMemory:
        """The memory that the host shares between the nodes of the placement's cluster."""
        directory = self._instance.run / "shared" / f"{placement.node.cluster}@{placement.host}"
        return HostMemory(directory, _placement(placement), placement.owner, placement.node.memory)

    def engine_group(self, placement: Placement) -> Cgroup:
        """The cgroup of CRIU while it restores at a placement; processes that a killed CRIU left are found in it."""
        prefix = placement.cgroup.strip("/").partition("/")[0]
        return Cgroup(f"{prefix}/.engines/{_placement(placement)}", only("freezer"))

    def pager_group(self, placement: Placement) -> Cgroup:
        """The cgroup of the program that gives a node its memory after a move, beside the node's: until then the memory
        counts at the host."""
        return Cgroup(f"{placement.cgroup}.pager", only("freezer", "memory"))

    def start(self, placement: Placement, check: Check) -> None:
        layout = self.layout(placement)
        self.stop(placement)
        group = Cgroup(placement.cgroup)
        with undone_on_error(lambda: self.stop(placement), f"node {placement.node.name} on host {placement.host}"):
            self._join(placement)
            layout.make(placement.node.memory, placement.netns)
            layout.fill(placement.hosts_file)
            self._install_init(layout, placement)
            group.create()
            cpuset.create(placement.cgroup)
            group.limit(placement.quota, placement.node.memory, burst=placement.burst)
            group.weight(placement.cpus)
            group.weigh_parent()
            self._run(placement, layout)
            if placement.pin:
                cpuset.pin_processes(placement.cgroup, placement.pin, group.pids)
            self._await_listening(placement, group, check)
        (layout.private / "run" / "wherry" / "key").unlink(missing_ok=True)

    def stop(self, placement: Placement) -> None:
        layout = self.layout(placement)
        self.engine_group(placement).remove()
        group = Cgroup(placement.cgroup)
        if group.exists():
            group.kill()
        self.pager_group(placement).remove()
        self._forget_runtime(placement)
        group.remove()
        group.weigh_parent()
        layout.remove()
        self.memory(placement).leave()
        shown_proc.of(self._instance).leave(_placement(placement))

    def alive(self, placement: Placement) -> bool:
        first = first_process(placement)
        return first is not None and not is_dying(first)

    def bind(self, placement: Placement, directory: str) -> None:
        what, next = f"{directory} cannot be bound into node {placement.node.name}", "wherry status"
        namespace = _mounts_of(placement)
        if namespace is None:
            raise Failed(Code.FAILED, what, "it has no first process", next)
        try:
            opened = self.layout(placement).open_directory(directory)
            try:
                hot_bind.attach(namespace, opened, directory)
            finally:
                os.close(opened)
        except OSError as error:
            remedy = f"wherry down {placement.node.cluster}, then wherry up FILE from there"
            raise Failed(Code.FAILED, what, error.strerror or str(error), remedy) from None
        finally:
            os.close(namespace)

    def shows(self, placement: Placement, directory: str) -> bool:
        pid = first_process(placement)
        return pid is not None and same_directory(directory, f"/proc/{pid}/root{directory}")

    def unbind(self, placement: Placement, directory: str) -> None:
        namespace = _mounts_of(placement)
        if namespace is None:
            return
        try:
            hot_bind.detach(namespace, directory, directory in submounts())
        except OSError as error:
            what = f"{directory} cannot be taken out of node {placement.node.name}"
            raise Failed(Code.FAILED, what, error.strerror or str(error), "wherry status") from None
        finally:
            os.close(namespace)

    def usage(self, placement: Placement) -> Usage:
        layout = self.layout(placement)
        used, limit = layout.space()
        change = {"files": used, "files_limit": limit}
        if layout.disk:
            used, limit = layout.disk.space()
            change |= {"disk": used, "disk_limit": limit}
        return usage_of(placement, self._underlay.netns).model_copy(update=change)

    def measure(self, placement: Placement, seconds: float) -> Measured:
        layout = self.layout(placement)
        usage, files = self.usage(placement), tree_bytes(layout.private)
        on_disk = (layout.disk.space()[0] or 0) if layout.disk else 0
        memory, written = usage.memory, tuple[tuple[float, int], ...]()
        found, pids = self._tracked().tracking, Cgroup(placement.cgroup).pids()
        if seconds and (sampled := write_sample.take(Cgroup(placement.cgroup), seconds, found)):
            memory, written = sampled
        return Measured(
            bytes=memory + files + on_disk,
            overhead=0.05 + 0.004 * usage.processes,
            files=files,
            disk=on_disk,
            engine=found.engine if found else "",
            written=written,
            processes=len(pids),
            mappings=sum(map(number_of_mappings, pids)),
        )

    def clocks(self, placement: Placement) -> Clocks:
        return clocks.of_host(first_process(placement))

    def mount_points(self) -> tuple[str, ...]:
        shown = () if shown_proc.of(self._instance).obstacle() else shown_proc.FILES
        return (*submounts(), *shown_cgroups.mount_points(), *shown)

    def pager_obstacle(self) -> str:
        if not self._pager:
            return "it is switched off"
        return self._tracked().obstacle or receiver_obstacle() or criu_probe.lazy_obstacle()

    def engine_obstacle(self) -> str:
        return criu_probe.obstacle()

    def move_obstacle(self, placement: Placement) -> str:
        pids = Cgroup(placement.cgroup).pids()
        if not _has_sys_resource():
            users = {_uid(pid) for pid in pids} - {0, None}
            if users:
                return (
                    "this machine lacks CAP_SYS_RESOURCE, so CRIU cannot dump processes of another user "
                    f"(uid {', '.join(str(u) for u in sorted(u for u in users if u is not None))})"
                )
        return ""

    def disk_obstacle(self, size: int) -> str:
        return disk.obstacle(self._instance, size)

    def require_movable(self, placement: Placement) -> None:
        pids = Cgroup(placement.cgroup).pids()
        if used := self._used_stale_mount(placement, pids):
            what, remedy = (
                f"a mount of {placement.node.name} cannot be moved",
                "end that program, or mount it there again",
            )
            raise Refused(Code.UNSUPPORTED, what, used, remedy)
        require_movable(pids, self.layout(placement).own)
        if scratch := self.layout(placement).disk:
            scratch.require_carriable(pids, placement.node)

    def _used_stale_mount(self, placement: Placement, pids: list[int]) -> str:
        first = first_process(placement)
        return used_stale_mount(first, pids, self.layout(placement)) if first is not None else ""

    def uses(self, placement: Placement) -> Uses:
        pids = Cgroup(placement.cgroup).pids()
        return shared_files.uses(pids, self.layout(placement).own, placement.binds) if pids else Uses()

    def lacks(self, used: Uses) -> str:
        return shared_files.lacks(used)

    def kernel_obstacle(self) -> str:
        return "" if clocks.supported() else "its kernel has no time namespaces (Linux 5.6, CONFIG_TIME_NS)"

    def inspect(self, placement: Placement) -> tuple[Hindrance, ...]:
        if not (pids := Cgroup(placement.cgroup).pids()):
            return ()
        layout, elsewhere = self.layout(placement), self._underlay.fabric.leaves_machine
        used = self._used_stale_mount(placement, pids)
        found = inspect(placement, pids, layout, self.pager_obstacle(), elsewhere)
        return (Hindrance(text=used, prevents=True), *found) if used else found

    def departure(self, placement: Placement, paged: bool = False) -> LocalDeparture:
        layout, group, found = self.layout(placement), self.pager_group(placement), self._tracked().tracking
        memory, remove = self.memory(placement), lambda: self.stop(placement)
        return LocalDeparture(self._underlay, placement, layout, group, remove, paged, found, memory)

    def arrival(self, placement: Placement, paged: bool = False) -> LocalArrival:
        layout, groups = self.layout(placement), (self.engine_group(placement), self.pager_group(placement))
        remove, join = (lambda: self.stop(placement)), (lambda: self._join(placement))
        return LocalArrival(self._underlay, placement, layout, groups, remove, paged, self._sealed, join)

    def _tracked(self) -> Probed:
        """How the pager finds writes here, or why it cannot."""
        return probed(self._named) if self._named else chosen()

    def _join(self, placement: Placement) -> None:
        """Gives the placement the objects that this host has for several nodes."""
        self.memory(placement).join()
        shown_proc.of(self._instance).join(_placement(placement))

    def _forget_runtime(self, placement: Placement) -> None:
        """Removes the runtime's state of a container whose processes were moved or killed."""
        if (self._runtime_root() / _container_id(placement)).exists():
            with contextlib.suppress(OSError, Failed):  # it hangs or is gone; its state is removed below
                self._runtime(placement, "delete", "--force", _container_id(placement))
            shutil.rmtree(self._runtime_root() / _container_id(placement), ignore_errors=True)

    def _runtime_root(self) -> Path:
        return self._instance.run / "runtime"

    def _install_init(self, layout: Layout, placement: Placement) -> None:
        """Copies wherry-init into the private tree, so that a new build of Wherry never changes a running node. Beside
        it are the mount point of the host's memory and the files that its ranks have for it."""
        directory = layout.private / "run" / "wherry"
        (layout.private / host_memory.INSIDE.strip("/")).mkdir(parents=True)
        kept = layout.private / host_memory.KEPT.strip("/")
        kept.mkdir(mode=0o700)
        os.chown(kept, placement.owner.uid, placement.owner.gid)
        shutil.copy(native_program("wherry-init"), directory / "init")
        (directory / "init").chmod(0o755)
        key = directory / "key"
        key.touch(mode=0o600)
        key.write_text(placement.key.get_secret_value())

    def _run(self, placement: Placement, layout: Layout) -> None:
        bundle = layout.directory / "bundle"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(runtime_config.of_node(placement, layout)))
        self._runtime_root().mkdir(parents=True, exist_ok=True, mode=0o700)
        log = layout.directory / "runtime.log"
        run = ("run", "--detach", "--bundle", str(bundle), _container_id(placement))
        code = self._runtime(placement, "--log", str(log), *run)
        if code:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            raise Failed(
                Code.FAILED,
                f"node {placement.node.name} did not start on host {placement.host}",
                lines[-1] if lines else f"{Path(runtime()).name} exited with {code}",
                "wherry doctor",
            )

    def _runtime(self, placement: Placement, *words: str) -> int:
        """The exit code of the OCI runtime. TIMED_OUT when it hangs. It gets no pipe, as its container would inherit
        that and keep it open."""
        command = [runtime(), "--root", str(self._runtime_root()), *words]
        quiet = subprocess.DEVNULL
        try:
            done = subprocess.run(
                command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=_RUNTIME_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            what = f"the container runtime did not answer about node {placement.node.name} on host {placement.host}"
            why = f"{Path(command[0]).name} did not end within {_RUNTIME_TIMEOUT:g} s"
            raise Failed(Code.TIMED_OUT, what, why, "wherry doctor") from None
        return done.returncode

    def _await_listening(self, placement: Placement, group: Cgroup, check: Check) -> None:
        deadline = time.monotonic() + _LISTEN_TIMEOUT
        pause = 0.002
        while not in_netns(placement.netns, lambda: _listens(placement.node.address)):
            check()
            if not group.pids() or time.monotonic() > deadline:
                raise Failed(
                    Code.FAILED,
                    f"node {placement.node.name} on host {placement.host} does not listen",
                    "its first process ended" if not group.pids() else f"waited {_LISTEN_TIMEOUT:.0f} s",
                    "wherry doctor",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)


def _listens(address: str) -> bool:
    try:
        with socket.create_connection((address, CONTROL_PORT), timeout=1):
            return True
    except OSError:
        return False


def _mounts_of(placement: Placement) -> int | None:
    """A descriptor of the node's mount namespace; None when the node has ended."""
    pid = first_process(placement)
    try:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC) if pid is not None else None
    except OSError:
        return None
    if namespace is not None and first_process(placement) != pid:  # the number may be another process's by now
        os.close(namespace)
        return None
    return namespace


def _placement(placement: Placement) -> str:
    """The name of a placement in those of directories and cgroups."""
    return f"{placement.node.name}@{placement.host}"


def _container_id(placement: Placement) -> str:
    return f"{placement.node.name}.{placement.host}"


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _has_sys_resource() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 24 & 1)
    return False
