"""The steps of a move between two Xen hosts: libvirt's live migration, carried out by Xen's toolstack.

    source                                      destination
    ------                                      -----------
    prepare                                     leftovers of an earlier move removed
    round 1   Xen's own rounds --- pages --->   Xen receives          (the node runs)
              Xen stops the node
    transfer  remaining pages, destroyed        complete, paused      <- libvirt's own point of no return
    thaw                                        runs, agent answers

Xen reports neither rounds nor bytes, and its migration cannot be aborted. That the node was stopped is inferred: it
uses no CPU, and its agent does not answer. Invariants: libvirt leaves the destination's copy paused
(VIR_MIGRATE_PAUSED), so that only `thaw` resumes it; nothing is decided before a running migration has ended, also if
an earlier daemon started it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.progress import Progress, quiet
from wherry.model.libvirt_uri import parse_uri
from wherry.model.records import Round
from wherry.node.protocol import Measured, Placement, Transferred
from wherry.node.vm import libvirt_client
from wherry.node.vm.agent_liveness import answers, await_answer
from wherry.node.vm.domain_names import domain_name

if TYPE_CHECKING:
    from wherry.node.vm.real.driver import RemoteVmDriver

_STATUS = "wherry status"
_IDLE = 1.0
"""Seconds without CPU time after which a node counts as stopped, although its agent is probed."""
_PROBE_TIMEOUT = 1.0
"""Seconds that the agent may take to answer. Each probe makes a running node use CPU time, however busy its host is."""
_POLL_INTERVAL = 0.05
"""Polling interval in seconds."""
_PROGRESS_INTERVAL = 1.0
"""Seconds between two progress reports of a round."""
_TIMEOUT, _SLOWEST = 120.0, 1e6
"""A migration times out after so many seconds, plus the time to send the node's memory at so many bytes/s."""


class XenMover:
    """Moves one guest between two Xen hosts."""

    def __init__(self, driver: RemoteVmDriver, source: Placement, destination: Placement) -> None:
        self._driver = driver
        self._source, self._destination = source, destination
        self._name = source.node.name
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._ran = time.monotonic()
        """Time of the latest evidence that the source's copy runs."""

    def predict(self, seconds: float = 0.0) -> Measured:
        return Measured(bytes=self._driver.usage(self._source).memory, overhead=1.0)

    def limit_rate(self, rate: float | None, spare: float = 0.0) -> None:
        """Never called with a rate: `rate_obstacle` of the driver refuses it."""

    def can_round(self) -> bool:
        return True

    def prepare(self) -> None:
        self._driver.stop(self._destination)
        self._driver.note(self._destination.host)
        if self._driver.domain(self._source) is None:
            raise Failed(Code.MOVE_FAILED, f"node {self._name} does not run on {self._source.host}", "", _STATUS)

    def round(self, number: int, progress: Progress = quiet) -> Round:
        began = told = known = time.monotonic()  # known: end of the last query that showed use; a busy host is slow
        used: float | None = None
        self._begin()
        with self._probed():
            while not self._ended():
                asked, now = time.monotonic(), self._cpu()
                if now is None:  # the host did not answer: neither running nor stopped is known
                    known = time.monotonic()
                elif now != used:
                    used, self._ran, known = now, max(self._ran, asked), time.monotonic()
                elif asked - max(known, self._ran) > _IDLE:
                    break
                if time.monotonic() - told > _PROGRESS_INTERVAL:
                    told = time.monotonic()
                    progress(f"{told - began:.0f} s")
                time.sleep(_POLL_INTERVAL)
        self._check()
        return Round(number=number, bytes=0, seconds=time.monotonic() - began, dirty=0)

    def freeze(self, post_copy: bool = False) -> float:
        """Xen has stopped the node already, at the end of its rounds."""
        return time.monotonic() - self._ran

    def settled(self) -> bool:
        return True

    def transfer(self, progress: Progress = quiet) -> Transferred:
        self._begin()
        self._await_end()
        self._check()
        if not self._complete():
            what = f"node {self._name} is not complete at {self._destination.host}"
            raise Failed(Code.MOVE_FAILED, what, "libvirt reported success, and the domain is not there", _STATUS)
        return Transferred(bytes=0)

    def restore(self, progress: Progress = quiet) -> float | None:
        return None

    def problem(self) -> str:
        return ""  # libvirt's call ends with the migration, which each look waits for

    def switched(self) -> bool:
        self._await_end()
        return self._driver.domain(self._source) is None and self._complete()

    def release(self) -> None:
        self._driver.stop(self._source)

    def thaw(self) -> None:
        libvirt_client.resume(self._driver.domain(self._destination), self._name, self._destination.host)

    def await_first_run(self) -> float | None:
        return await_answer(self._destination, self._driver.console_tail)

    def roll_back(self) -> None:
        self._await_end()
        domain, libvirt = self._driver.domain(self._source), libvirt_client.load()
        if domain is None:
            raise Failed(Code.MOVE_FAILED, f"node {self._name} does not run on {self._source.host}", "it ended")
        self._driver.abandon(self._destination)
        if libvirt_client.state(domain)[0] == libvirt.VIR_DOMAIN_PAUSED:
            with libvirt_client.translated_errors(f"node {self._name} could not be thawed"):
                domain.resume()

    def complete(self) -> None:
        return None  # all memory was there before the thaw

    def close(self) -> None:
        for placement in (self._destination, self._source):
            with contextlib.suppress(WherryError):
                if (domain := self._driver.domain(placement)) is not None:
                    self._driver.consoles.follow(self._name, placement.host, domain)

    @contextlib.contextmanager
    def _probed(self) -> Iterator[None]:
        """Probes the node's agent repeatedly in a thread; each answer is evidence that the node runs.

        A thread, as a host that is about to destroy its copy may block for seconds. The last probe is not waited for:
        the node may be stopped.
        """
        self._ran, over = time.monotonic(), threading.Event()

        def probe() -> None:
            while not over.wait(_POLL_INTERVAL):
                if answers(self._source, _PROBE_TIMEOUT) and not over.is_set():
                    self._ran = time.monotonic()

        threading.Thread(target=probe, name="move-vm-ask", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _begin(self) -> None:
        """Starts the migration unless it was started."""
        if self._thread is not None:
            return
        domain = self._driver.domain(self._source)
        if domain is None:
            raise Failed(Code.MOVE_FAILED, f"node {self._name} does not run on {self._source.host}", "it ended")
        self._thread = threading.Thread(target=self._run, args=(domain,), name="move-vm")
        self._thread.start()

    def _run(self, domain: Any) -> None:
        libvirt = libvirt_client.load()
        peer = self._driver.connections.uris[self._destination.host]
        flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | libvirt.VIR_MIGRATE_PAUSED
        params = {libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{parse_uri(peer).host}"}
        try:
            if self._source.device != self._destination.device:
                params[libvirt.VIR_MIGRATE_PARAM_DEST_XML] = at_bridge(domain.XMLDesc(0), self._destination.device)
            domain.migrateToURI3(peer, params, flags)
        except Exception as error:  # raised by _check
            self._error = error

    def _ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def _check(self) -> None:
        if self._ended() and self._error is not None:
            name, host = domain_name(self._driver.instance, self._name), self._destination.host
            remedy = f"if `xl list` on {host} has {name}, which libvirt then does not know, there: xl destroy {name}"
            raise Failed(
                Code.MOVE_FAILED, "libvirt could not migrate the node", libvirt_client.reason(self._error), remedy
            )

    def _await_end(self) -> None:
        """Returns when no migration of the node is running, also of an earlier daemon. TIMED_OUT."""
        timeout = _TIMEOUT + self._source.node.memory / _SLOWEST
        deadline = time.monotonic() + timeout
        while self._is_migrating():
            if time.monotonic() > deadline:
                what = f"libvirt did not end the migration of {self._name}"
                raise Failed(Code.TIMED_OUT, what, f"waited {timeout:.0f} s", _STATUS)
            time.sleep(_POLL_INTERVAL)

    def _is_migrating(self) -> bool:
        if self._thread is not None:
            return self._thread.is_alive()
        libvirt, domain = libvirt_client.load(), self._driver.domain(self._source)
        if domain is None:
            return False
        try:
            return int(domain.jobInfo()[0]) != libvirt.VIR_DOMAIN_JOB_NONE
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return False
            raise libvirt_client.translated(
                f"host {self._source.host} does not report whether {self._name} is migrated", error
            ) from None

    def _cpu(self) -> float | None:
        """CPU seconds that the source's copy has used; None when its host does not answer, or has it no more."""
        try:
            found = self._driver.usage(self._source)
        except WherryError:
            return None
        return found.cpu if found.processes else None

    def _complete(self) -> bool:
        """True when the destination's copy is complete: paused by VIR_MIGRATE_PAUSED, or resumed by us."""
        libvirt = libvirt_client.load()
        state = libvirt_client.state(self._driver.domain(self._destination))[0]
        return state in (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_RUNNING)


def at_bridge(description: str, bridge: str) -> str:
    """The domain XML with its interface on another bridge."""
    root = ElementTree.fromstring(description)
    for source in root.iterfind("devices/interface/source"):
        source.set("bridge", bridge)
    return ElementTree.tostring(root, encoding="unicode")
