"""One live migration of a domain as libvirt runs it: begun, watched, stopped, and what it cost.

libvirtd to libvirtd, peer to peer: it goes on when the daemon that began it is killed. The destination's copy stays
paused (VIR_MIGRATE_PAUSED) whatever happens; so at most one copy ever runs by libvirt's doing, the source's. But in
modes with post-copy libvirt lets the destination's run, once it has stopped the source's for good.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.units import format_rate, format_size
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.vm import libvirt_client

_ABORT_TIMEOUT = 60.0
"""Seconds that libvirt may take to end a job that it was told to."""
_MIB = 2**20
_CURES = {
    "Userfaultfd not available": "on both hosts, for post-copy: sysctl vm.unprivileged_userfaultfd=1",
    "Unable to access credentials": "on both hosts put certificates for QEMU into /etc/pki/qemu (docs/vm.md)",
}
"""What helps, by a sign in what libvirt says."""
POSTCOPY = ("post-copy", "hybrid")
"""Modes that may end so. libvirt itself lets a copy run at the destination then, also one that was sent to its end."""
_LOOK = 0.01
"""Seconds between two looks."""


@dataclass(frozen=True)
class JobStatus:
    """How far it is: passes over memory begun, bytes sent and left, bytes per second sent and written by the node."""

    passes: int = 0
    sent: int = 0
    left: int = 0
    rate: int = 0
    dirtied: int = 0

    def text(self) -> str:
        """For a person."""
        speed = f"{self.rate / 1e6:.0f} MB/s, {self.dirtied / 1e6:.0f} MB/s written by the node"
        return f"{format_size(self.left)} left, {speed}"


@dataclass(frozen=True)
class MigrationTarget:
    """The other end: its libvirtd's URI for that of the source, and the address at which its QEMU takes the memory.

    `description` is the domain's XML there, if that differs; `disks`, whether it has some, which both ends see;
    `tls`, whether the two QEMUs show each other certificates and encrypt the memory; `remedy` what a person does when
    the two ends do not come together.
    """

    uri: str
    address: str
    description: str = ""
    disks: bool = False
    tls: bool = False
    remedy: str = "wherry event list"


class MigrationJob:
    """A migration in a thread of its own."""

    def __init__(
        self,
        domain: Any,
        peer: MigrationTarget,
        parameters: MigrationParameters,
        rate: float | None,
        begun: Callable[[], bool],
    ) -> None:
        """`begun` is asked until it says that the destination waits for the memory."""
        self._domain, self._begun, self._peer = domain, begun, peer
        self._flags, self._params = _how(peer, parameters, rate)
        self._error: Exception | None = None
        self.seen = JobStatus()
        """How far it was a moment ago. libvirt does not always answer at once, so a thread of its own asks."""
        self.stopped = threading.Event()
        """Set when the source's CPUs were stopped, by us or by QEMU. To ask for it could take a second just then."""
        self._stopped_at = 0.0
        libvirt, self._connection = libvirt_client.load(), domain.connect()
        self._told = self._connection.domainEventRegisterAny(
            domain, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._event, None
        )
        self._thread = threading.Thread(target=self._run, name="move-vm")
        self._thread.start()
        threading.Thread(target=self._watch, name="move-vm-look").start()

    def ended(self) -> bool:
        """True when libvirt has ended it, well or not."""
        return not self._thread.is_alive()

    def stood(self) -> float | None:
        """Seconds since the source's CPUs were stopped; None when they were not."""
        return time.monotonic() - self._stopped_at if self.stopped.is_set() else None

    def check(self) -> None:
        """Failed with libvirt's reason when it ended badly."""
        if self.ended() and self._error is not None:
            why = libvirt_client.reason(self._error)
            cure = next((cure for sign, cure in _CURES.items() if sign in why), self._peer.remedy)
            raise Failed(Code.MOVE_FAILED, "libvirt could not move it", why, cure)

    def wait(self, seconds: float = _ABORT_TIMEOUT) -> None:
        """Until it has ended. TIMED_OUT."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise Failed(Code.TIMED_OUT, "libvirt does not end the move", f"waited {seconds:.0f} s", "wherry doctor")

    def _watch(self) -> None:
        # Who asks before is answered when all is over: libvirt lets nobody in while it begins.
        while not self.ended() and not self._begun():
            time.sleep(_LOOK)
        while not self.ended():
            found = job_status(self._domain)
            if found.passes:
                self.seen = found
            time.sleep(_LOOK)

    def _run(self) -> None:
        try:
            self._domain.migrateToURI3(self._peer.uri, self._params, self._flags)
        except Exception as error:  # told by check()
            self._error = error
        with contextlib.suppress(libvirt_client.load().libvirtError):  # the connection may be gone
            self._connection.domainEventDeregisterAny(self._told)

    def _event(self, _connection: Any, _domain: Any, event: int, _detail: int, _opaque: Any) -> None:
        libvirt = libvirt_client.load()
        if event in (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_STOPPED):
            if not self.stopped.is_set():
                self._stopped_at = time.monotonic()
            self.stopped.set()


def job_status(domain: Any | None) -> JobStatus:
    """How far the domain's migration is; zeros when there is none."""
    libvirt = libvirt_client.load()
    if domain is None:
        return JobStatus()
    try:
        stats = domain.jobStats()
    except libvirt.libvirtError:  # it is just ending
        return JobStatus()
    return JobStatus(
        passes=stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_ITERATION, 0),
        sent=stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_PROCESSED, 0),
        left=stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_REMAINING, 0),
        rate=stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_BPS, 0),
        dirtied=stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_DIRTY_RATE, 0)
        * stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_PAGE_SIZE, 4096),
    )


def cost(domain: Any) -> tuple[int, float | None]:
    """What the migration that brought the domain here sent (bytes), and its downtime (seconds) as QEMU measured it."""
    libvirt = libvirt_client.load()
    try:
        stats = domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED)
    except libvirt.libvirtError:
        return 0, None
    downtime = stats.get(libvirt.VIR_DOMAIN_JOB_DOWNTIME)
    return stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_PROCESSED, 0), None if downtime is None else downtime / 1000


def abort(domain: Any) -> None:
    """Ends a migration of the domain, whoever began it; returns when it has none. TIMED_OUT."""
    libvirt, deadline = libvirt_client.load(), time.monotonic() + _ABORT_TIMEOUT
    while True:
        try:
            if domain.jobInfo()[0] == libvirt.VIR_DOMAIN_JOB_NONE:
                return
            domain.abortJob()
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return
        if time.monotonic() > deadline:
            raise Failed(Code.TIMED_OUT, "libvirt does not end the move", f"waited {_ABORT_TIMEOUT:.0f} s")
        time.sleep(0.02)


def parameters_obstacle(parameters: MigrationParameters, version: Callable[[], int]) -> str:
    """Why libvirt, of that version as it numbers them, cannot do it in this way; empty when it can."""
    if parameters.mode in POSTCOPY and parameters.connections:
        return "post-copy has one connection"
    if parameters.zstd and not parameters.connections:
        return "zstd needs connections of its own: --parallel 2"
    if parameters.zstd:
        try:
            number = version()
        except WherryError as error:
            return str(error)
        if number < 9_004_000:
            return f"libvirt {number // 1_000_000}.{number // 1000 % 1000} cannot compress with zstd; 9.4 and later can"
    return ""


def rate_obstacle(rate: float) -> str:
    """Why a migration cannot keep to so many bit/s; empty when it can. 0 MiB/s means no limit to libvirt."""
    least = 8 * _MIB
    return "" if rate >= least else f"libvirt counts in MiB/s: {format_rate(least)} is the least for a virtual machine"


def _how(peer: MigrationTarget, parameters: MigrationParameters, rate: float | None) -> tuple[int, dict[str, Any]]:
    """Flags and parameters of virDomainMigrateToURI3."""
    libvirt = libvirt_client.load()
    flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
    params: dict[str, Any] = {libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{peer.address}"}
    if peer.description:
        params[libvirt.VIR_MIGRATE_PARAM_DEST_XML] = peer.description
    if peer.disks:  # libvirt cannot know that both hosts see these files; the plan and the move's check have looked
        flags |= libvirt.VIR_MIGRATE_UNSAFE
    if peer.tls:
        flags |= libvirt.VIR_MIGRATE_TLS
    flags |= libvirt.VIR_MIGRATE_POSTCOPY if parameters.mode in POSTCOPY else libvirt.VIR_MIGRATE_PAUSED
    if parameters.mode == "auto-converge":
        flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE
    if parameters.connections:
        flags |= libvirt.VIR_MIGRATE_PARALLEL
        params[libvirt.VIR_MIGRATE_PARAM_PARALLEL_CONNECTIONS] = parameters.connections
    if parameters.zstd:
        flags |= libvirt.VIR_MIGRATE_COMPRESSED
        params[libvirt.VIR_MIGRATE_PARAM_COMPRESSION] = "zstd"
    if rate is not None:
        params[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = int(rate / 8 / _MIB)
        if parameters.mode in POSTCOPY:
            params[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH_POSTCOPY] = params[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH]
    return flags, params
