"""One live migration of a domain by libvirt: start, progress, abort, cost.

The migration is peer to peer between the libvirtds, so it continues when the daemon that started it is killed.
Invariant: libvirt never runs two copies. It leaves the destination's copy paused (VIR_MIGRATE_PAUSED); in modes with
post-copy it resumes that copy only after it stopped the source's for good.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wherry.base.errors import Code, Failed, LostContact, WherryError
from wherry.base.units import format_rate, format_size
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.vm import libvirt_client

ABORT_TIMEOUT, ABORT_SOON = 60.0, 10.0
"""Seconds that libvirt may take to end an aborted job; and after which the destination is suspected not to answer."""
STALLED, _SET_UP = 30.0, 120.0
"""A migration counts as stalled after so many seconds in which it sent no byte; or, before its first, was set up."""
_MIB = 2**20
_REMEDIES = {
    "Userfaultfd not available": "on both hosts, for post-copy: sysctl vm.unprivileged_userfaultfd=1",
    "Unable to access credentials": "on both hosts put certificates for QEMU into /etc/pki/qemu (docs/vm.md)",
}
"""Remedies, by a part of libvirt's error message."""
POSTCOPY = ("post-copy", "hybrid")
"""Modes in which libvirt itself resumes the destination's copy, also when all memory was sent by pre-copy."""
_POLL_INTERVAL = 0.01
"""Polling interval in seconds."""


@dataclass(frozen=True)
class JobStatus:
    """Progress: passes over memory begun, bytes sent and left, bytes per second sent and dirtied by the node."""

    passes: int = 0
    sent: int = 0
    left: int = 0
    rate: int = 0
    dirtied: int = 0

    def text(self) -> str:
        """One line for a person."""
        speed = f"{self.rate / 1e6:.0f} MB/s, {self.dirtied / 1e6:.0f} MB/s written by the node"
        return f"{format_size(self.left)} left, {speed}"


@dataclass(frozen=True)
class MigrationTarget:
    """The destination: its libvirtd's URI as the source's libvirtd uses it, and the address where its QEMU receives.

    `description` is the domain's XML there, if it differs; `disks`: the domain has disks, on storage that both hosts
    see; `tls`: the two QEMUs authenticate each other by certificates and encrypt the memory; `remedy` is the hint for
    the user when the hosts cannot connect.
    """

    uri: str
    address: str
    description: str = ""
    disks: bool = False
    tls: bool = False
    remedy: str = "the same command again"


class MigrationJob:
    """A migration that runs in a thread of its own."""

    def __init__(
        self,
        domain: Any,
        target: MigrationTarget,
        parameters: MigrationParameters,
        rate: float | None,
        begun: Callable[[], bool],
    ) -> None:
        """`begun` is polled until it returns True: the destination's QEMU is ready to receive."""
        self._domain, self._begun, self._target = domain, begun, target
        self._flags, self._params = _how(target, parameters, rate)
        self._error: Exception | None = None
        self.seen = JobStatus()
        """The latest known progress. A thread of its own polls it, as libvirt may take long to answer."""
        self._advanced = time.monotonic()
        self.stopped = threading.Event()
        """Set by libvirt's event when the source's CPUs stopped; a query could take a second at that moment."""
        self._stopped_at = 0.0
        libvirt, self._connection = libvirt_client.load(), domain.connect()
        with libvirt_client.translated_errors("the migration was not started"):
            self._registration = self._connection.domainEventRegisterAny(
                domain, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._event, None
            )
        self._thread = threading.Thread(target=self._run, name="move-vm")
        self._thread.start()
        threading.Thread(target=self._watch, name="move-vm-look").start()

    def ended(self) -> bool:
        """True when the migration has succeeded or failed."""
        return not self._thread.is_alive()

    def stood(self) -> float | None:
        """Seconds since the source's CPUs stopped; None while they run."""
        return time.monotonic() - self._stopped_at if self.stopped.is_set() else None

    def check(self) -> None:
        """Failed with libvirt's reason when the migration failed; TIMED_OUT when it has stalled."""
        if self.ended() and self._error is not None:
            why = libvirt_client.reason(self._error)
            remedy = next((remedy for part, remedy in _REMEDIES.items() if part in why), self._target.remedy)
            raise Failed(Code.MOVE_FAILED, "libvirt could not migrate the node", why, remedy)
        limit = STALLED if self.seen.passes else _SET_UP
        if not self.ended() and time.monotonic() - self._advanced > limit:
            left = f"{format_size(self.seen.left)} are left" if self.seen.passes else "it had not begun"
            why = f"no memory was sent for {limit:.0f} s, and {left}"
            raise Failed(Code.TIMED_OUT, "the migration stalled", why, self._target.remedy)

    def wait(self, seconds: float = ABORT_TIMEOUT) -> None:
        """Returns when the migration has ended. TIMED_OUT."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise Failed(
                Code.TIMED_OUT, "libvirt did not end the migration", f"waited {seconds:.0f} s", "wherry doctor"
            )

    def _watch(self) -> None:
        # An earlier query would block until the end: libvirt locks the domain while the migration is set up.
        while not self.ended() and not self._begun():
            time.sleep(_POLL_INTERVAL)
        while not self.ended():
            found = job_status(self._domain)
            if found.passes:
                if (found.passes, found.sent) != (self.seen.passes, self.seen.sent):
                    self._advanced = time.monotonic()
                self.seen = found
            time.sleep(_POLL_INTERVAL)

    def _run(self) -> None:
        try:
            self._domain.migrateToURI3(self._target.uri, self._params, self._flags)
        except Exception as error:  # raised by check()
            self._error = error
        with contextlib.suppress(libvirt_client.load().libvirtError):  # the connection may be gone
            self._connection.domainEventDeregisterAny(self._registration)

    def _event(self, _connection: Any, _domain: Any, event: int, _detail: int, _opaque: Any) -> None:
        libvirt = libvirt_client.load()
        if event in (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_STOPPED):
            if not self.stopped.is_set():
                self._stopped_at = time.monotonic()
            self.stopped.set()


def job_status(domain: Any | None) -> JobStatus:
    """Progress of the domain's migration; zeros when there is none."""
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


def cost(domain: Any | None) -> tuple[int, float | None]:
    """Bytes sent by the migration that brought the domain here, and its downtime (seconds) as measured by QEMU. 0 and
    None when libvirt has no answer, or the domain has ended."""
    libvirt = libvirt_client.load()
    if domain is None:
        return 0, None
    try:
        stats = domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED)
    except libvirt.libvirtError:
        return 0, None
    downtime = stats.get(libvirt.VIR_DOMAIN_JOB_DOWNTIME)
    return stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_PROCESSED, 0), None if downtime is None else downtime / 1000


def abort(domain: Any, seconds: float = ABORT_TIMEOUT) -> None:
    """Aborts the domain's migration, whichever daemon started it; returns when none is running. TIMED_OUT. LostContact
    when the connection breaks: a node may be paused meanwhile, and the next attempt has a new connection."""
    libvirt, deadline = libvirt_client.load(), time.monotonic() + seconds
    while True:
        try:
            if domain.jobInfo()[0] == libvirt.VIR_DOMAIN_JOB_NONE:
                return
            domain.abortJob()
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return
            if not libvirt_client.is_alive(domain.connect()):
                what = "libvirtd did not answer about a migration"
                raise LostContact(Code.UNREACHABLE, what, libvirt_client.reason(error), "wherry doctor") from None
        if time.monotonic() > deadline:
            what = "libvirt did not end the migration"
            raise Failed(Code.TIMED_OUT, what, f"waited {seconds:.0f} s", "wherry doctor")
        time.sleep(0.02)


def parameters_obstacle(parameters: MigrationParameters, version: Callable[[], int]) -> str:
    """Why libvirt cannot migrate with these parameters; empty when it can. `version` gives its version number."""
    if parameters.deadline is not None:
        return "--deadline is for containers: leave it out"
    if parameters.compress == "on":
        return "--compress is for containers: use --parallel 2 --zstd"
    if parameters.mode in POSTCOPY and parameters.connections:
        return "post-copy uses one connection: leave --parallel out"
    if parameters.zstd and not parameters.connections:
        return "zstd compresses parallel connections only: add --parallel 2"
    if parameters.zstd:
        try:
            number = version()
        except WherryError as error:
            return str(error)
        if number < 9_004_000:
            return f"libvirt {number // 1_000_000}.{number // 1000 % 1000} cannot compress with zstd; 9.4 and later can"
    return ""


def rate_obstacle(rate: float) -> str:
    """Why a migration cannot be limited to `rate` bit/s; empty when it can. libvirt takes 0 MiB/s for no limit."""
    least = 8 * _MIB
    return (
        ""
        if rate >= least
        else f"libvirt limits the rate in whole MiB/s: {format_rate(least)} is the least for a virtual machine"
    )


def _how(target: MigrationTarget, parameters: MigrationParameters, rate: float | None) -> tuple[int, dict[str, Any]]:
    """Flags and parameters of virDomainMigrateToURI3."""
    libvirt = libvirt_client.load()
    flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
    params: dict[str, Any] = {libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{target.address}"}
    if target.description:
        params[libvirt.VIR_MIGRATE_PARAM_DEST_XML] = target.description
    if target.disks:  # libvirt cannot check that both hosts see these files; the plan and the move checked it
        flags |= libvirt.VIR_MIGRATE_UNSAFE
    if target.tls:
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
