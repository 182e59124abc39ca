"""Connections to the agents of hosts by OpenSSH's client, one kept for each host.

Settings of ssh_config hold: keys, agents, jump hosts, ControlMaster. Invariant: only the first attempt to reach a host
blocks its callers, OPEN seconds at most, and the attempt after the end of a connection. Once that attempt has failed,
or when the host has fallen silent, calls fail at once, and a thread in the background tries again every _PAUSE seconds.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.base.version import __version__
from wherry.hostlink.bundle import DAMAGED, MISSING
from wherry.hostlink.entrance import ENTRANCE, LEASE, Entrance, HostSetup, Opened
from wherry.hostlink.interface import Interface
from wherry.hostlink.link import HostLink
from wherry.hostlink.openssh import OPEN
from wherry.hostlink.values import from_plain
from wherry.model.ssh_uri import SshUri, parse_ssh_uri

log = logging.getLogger("wherry.hosts")
_PAUSE = 5.0
"""Seconds until a silent host is tried again."""
_AFTER_COPY = 60.0
"""Seconds until a bundle that could not be put at a host is tried again: it is tens of megabytes."""
_STOPS = 30.0
"""Seconds that the guard of a host may take to look at the time, and to stop nodes: nine, and twenty more on a host
that is busy."""
_MARGIN = 1.0
"""Seconds by which a lease is outlasted: clocks do not run alike."""
_SAID = 8
"""Lines that are kept of the standard error of ssh and the agent."""


class SshLinks:
    """The agents of hosts, by the names of these. `setup` is the first message to the agent of a host; `kinds` are
    further errors that its steps raise. `command` starts an agent; when it ends with MISSING, `put` makes the files
    that it needs there, and it is started again. Safe from several threads."""

    def __init__(
        self,
        uris: Mapping[str, str],
        setup: Callable[[str], HostSetup],
        command: Callable[[SshUri], list[str]],
        put: Callable[[SshUri], object],
        kinds: tuple[type[WherryError], ...] = (),
    ) -> None:
        self._uris = {host: parse_ssh_uri(uri) for host, uri in uris.items()}
        self._setup, self._kinds = setup, kinds
        self._command, self._put = command, put
        self._locks = {host: threading.Lock() for host in self._uris}
        self._open: dict[str, HostLink] = {}
        self._failed: dict[str, tuple[float, WherryError]] = {}
        """Time and error of a host's latest failed attempt; the time is in the future during a retry."""
        self._later = dict[str, float]()
        self.lost: set[str] = set()
        """Hosts that an administrator declared lost: contacted only to remove objects of ours."""
        self.stood = list[str]()
        """Hosts whose nodes were stopped for want of a lease, and run again."""
        self._leaving = set[str]()
        """Hosts that are being declared lost."""
        self._heard: dict[str, float] = {}
        """The latest possible time of an earlier agent's last message, by host, of hosts that were tried."""

    def link(self, host: str) -> HostLink:
        """The open stream to the host's agent. LostContact when it does not answer, or did not just now; Refused when
        it does not work for this daemon."""
        if host in self.lost or host in self._leaving:
            what, remedy = f"host {host} is declared lost", f"wherry host restore {host}, once it answers"
            raise LostContact(Code.UNREACHABLE, what, "lost hosts are not contacted", remedy)
        return self.reach(host)

    def reach(self, host: str) -> HostLink:
        """As `link`, also for a host that is declared lost."""
        if (found := self._open.get(host)) and found.alive:
            return found
        with self._locks[host]:
            if (found := self._open.get(host)) and found.alive:
                return found
            if found and found.fell_silent:
                self._heard[host] = self._open.pop(host).heard
                self._failed[host] = 0.0, found.lost_contact()
            when, error = self._failed.get(host, (0.0, None))
            if error is None:
                return self._try(host)
            if time.monotonic() - when > _PAUSE:
                self._failed[host] = time.monotonic() + 2 * OPEN, error
                threading.Thread(target=self._retry, args=(host,), name=f"retry-{host}", daemon=True).start()
            raise error

    def answers(self, host: str) -> bool:
        """True when the host's agent works for this daemon."""
        try:
            self.link(host)
        except WherryError:
            return False
        return True

    def lose(self, host: str) -> None:
        """Declares the host lost. Returns when no agent that was connected may act there any more, and with a lease of
        nodes when these are stopped, even without an answer; at once for a host that was never tried."""
        self._leaving.add(host)
        try:
            self.end(host)
            if heard := self._heard.get(host):
                nodes = self._setup(host).lease
                lease = max(LEASE, nodes + _STOPS if nodes else 0.0) + _MARGIN
                time.sleep(max(0.0, heard + lease - time.monotonic()))
            self.lost.add(host)
        finally:
            self._leaving.discard(host)

    def end(self, host: str) -> None:
        """Ends the connection to one host, if there is one."""
        with self._locks[host]:  # not while one is made
            if link := self._open.pop(host, None):
                link.close()
                self._heard[host] = link.heard

    def close(self) -> None:
        """Ends all connections, and with them the agents. Nodes run on."""
        for link in list(self._open.values()):
            link.close()

    def _retry(self, host: str) -> None:
        with contextlib.suppress(WherryError):
            self._try(host)

    def _try(self, host: str) -> HostLink:
        try:
            self._open[host] = self._connect(host)
        except WherryError as error:
            self._failed[host] = time.monotonic() + self._later.pop(host, 0.0), error
            raise
        self._failed.pop(host, None)
        return self._open[host]

    def _connect(self, host: str) -> HostLink:
        try:
            return self._start(host)
        except _NoBundle:
            self._later[host] = _AFTER_COPY
            self._put(self._uris[host])
            self._later.pop(host)
        return self._start(host)

    def _start(self, host: str) -> HostLink:
        self._heard.setdefault(host, time.monotonic())  # an earlier daemon may have had one until now
        uri, setup = self._uris[host], self._setup(host)
        setup = setup.model_copy(update={"lost": setup.lost or host in self.lost})
        process = subprocess.Popen(
            self._command(uri),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a daemon on a terminal must not reach it
        )
        assert process.stdin and process.stdout and process.stderr
        said = _Said(host, process)
        reads, writes = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        link = HostLink(host, reads, writes, said.text, process.kill, self._kinds)
        for stream in (process.stdin, process.stdout):
            stream.close()
        try:
            method = Interface(Entrance).method("open")
            opened: Opened = from_plain(Opened, link.call(ENTRANCE, method, method.encode((setup,), {})))
        except LostContact as error:
            why = said.text() or error.why
            if process.returncode == MISSING:
                raise _NoBundle(Code.UNREACHABLE, f"host {host} has no bundle of Wherry", why) from None
            if process.returncode == DAMAGED:
                raise Refused(Code.FAILED, f"host {host} is not worked", why, f"wherry host add {uri}") from None
            what = f"host {host} cannot be reached by SSH"
            raise LostContact(Code.UNREACHABLE, what, why, f"ssh {uri} true") from None
        except BaseException:
            link.close()
            raise
        if opened.version != __version__:
            link.close()
            why = f"its agent is of version {opened.version}, and the daemon of {__version__}"
            raise Refused(
                Code.VERSION_MISMATCH, f"host {host} has another version of Wherry", why, "wherry daemon stop"
            )
        link.boot = opened.boot
        if opened.stood:
            self.stood.append(host)
        return link


class _NoBundle(LostContact):
    """The host lacks the files of its agent."""


class _Said:
    """The standard error of ssh, and of the agent through it. Waits for its end."""

    def __init__(self, host: str, process: subprocess.Popen[bytes]) -> None:
        self._host, self._process = host, process
        self._lines = collections.deque[str](maxlen=_SAID)
        self._thread = threading.Thread(target=self._read, name=f"ssh-{host}", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The last line, once the stream has ended."""
        self._thread.join(1.0)
        return self._lines[-1] if self._lines else ""

    def _read(self) -> None:
        assert self._process.stderr
        with self._process.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                log.info("%s: %s", self._host, text)
                if text:
                    self._lines.append(text)
        self._process.wait()
