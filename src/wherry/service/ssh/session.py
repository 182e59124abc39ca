"""Sessions of SSH on a node: its shell, a command line, its server of SFTP."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from contextlib import suppress
from signal import Signals
from typing import Any, get_args

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR
from asyncssh.packet import SSHPacket

from wherry.base.bytes_text import to_text
from wherry.base.errors import Code, Failed, WherryError
from wherry.model.accounts import NODE_HOME, NODE_USER
from wherry.model.job_request import ExecRequest, SignalName, Terminal
from wherry.model.records import Job, JobState
from wherry.service.commands import Commands
from wherry.service.ssh.program import Place, ProgramOnNode

_PASSED_VARIABLES = ("LANG", "LC_", "COLORTERM", "NO_COLOR")
"""Beginnings of the variables that a client may set, as with Debian's sshd."""
_VARIABLES, _VARIABLE = 64, 1024
"""Most variables, and most bytes of each."""
_SFTP = " ".join(f"/usr/{at}/sftp-server" for at in ("lib/openssh", "libexec/openssh", "lib/ssh", "libexec"))
_SHELL = "cd 2>/dev/null; [ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"
_COMMAND = 'cd 2>/dev/null; exec /bin/sh -c "$1"'
_SUBSYSTEM = (
    f"cd 2>/dev/null; for p in {_SFTP}; do [ -x $p ] && exec $p; done; "
    "echo 'wherry: this node has no sftp-server; Debian has it in openssh-sftp-server' >&2; exit 127"
)
_KEYS = 1 << 14
"""Most bytes in a frame for a terminal."""
_SIGNAL_SECONDS = 30.0
_FAILED = 255
"""Exit code where none is of the program, as with OpenSSH."""


class NodeSession(ProgramOnNode, asyncssh.SSHServerSession[bytes]):
    """A session on a node."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._words: tuple[str, ...] = ()
        self._terminal: Terminal | None = None
        self._type = ""
        self._variables: dict[str, str] = {}
        self._signal: asyncio.Future[None] | None = None
        """The sending of the last signal."""

    # Called by asyncssh.

    def connection_made(self, chan: Any) -> None:
        """The channel. AsyncSSH would keep variables of any number and size."""
        super().connection_made(chan)
        chan._process_env_request = self._variable_sent

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """The program is to have a terminal, with the usual modes."""
        self._type, self._terminal = term_type, _terminal(term_size[0], term_size[1])
        return True

    def shell_requested(self) -> bool:
        """The node's shell."""
        self._words = ("/bin/sh", "-c", _SHELL)
        return True

    def exec_requested(self, command: str) -> bool:
        """A line for the node's shell."""
        self._words = ("/bin/sh", "-c", _COMMAND, "sh", to_text(command))
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """SFTP, by the server that the node has."""
        self._words = ("/bin/sh", "-c", _SUBSYSTEM)
        return subsystem == "sftp"

    def session_started(self) -> None:
        """All is known that the client asks for."""
        self.begin()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Input: as it is, or in frames of keys."""
        if self._terminal:
            pieces = (data[at : at + _KEYS] for at in range(0, len(data), _KEYS))
            data = b"".join(b"D" + struct.pack(">H", len(keys)) + keys for keys in pieces)
        super().data_received(data, datatype)

    def eof_received(self) -> bool:
        """The end of the input. To a terminal it is nothing: the end of its input would hang it up."""
        return self._terminal is not None or super().eof_received()

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """The size goes where the keys go."""
        if self._terminal and self.takes_more:
            size = _terminal(width, height)
            super().data_received(b"W" + struct.pack(">HHH", 4, size.rows, size.columns), None)

    def signal_received(self, signal: str) -> None:
        """A signal for the program, once it runs. One at a time: each holds a thread until the node answers."""
        if self.job and signal in get_args(SignalName) and (self._signal is None or self._signal.done()):
            loop, number = asyncio.get_running_loop(), Signals[f"SIG{signal}"]
            self._signal = loop.run_in_executor(self.place.executor, self._send_signal, self.job, number)

    def _variable_sent(self, packet: SSHPacket) -> bool:
        name, value = packet.get_string().decode("latin-1"), packet.get_string()
        packet.check_end()
        is_taken = name.startswith(_PASSED_VARIABLES) and len(name) + len(value) <= _VARIABLE
        if is_taken and len(self._variables) < _VARIABLES and b"\0" not in value:
            self._variables[name] = to_text(value.decode(errors="surrogateescape"))
        return is_taken

    # The program.

    def request(self, commands: Commands) -> ExecRequest:
        """See the base class."""
        own = {"HOME": NODE_HOME, "USER": NODE_USER, "LOGNAME": NODE_USER}
        env = {**self._variables, **own, **({"TERM": self._type} if self._terminal else {})}
        owner = commands.program_owner(None, commands.cluster_of(self.place.node))
        return ExecRequest(
            node=self.place.node, argv=self._words, owner=owner, env=env, input=True, terminal=self._terminal
        )

    def output(self, data: bytes, is_error: bool) -> None:
        """See the base class."""
        self._channel.write(data, EXTENDED_DATA_STDERR if is_error else None)

    def end(self, job: Job | None, error: WherryError | None) -> None:
        """Its exit code for the client, which also gets the reason of a failed job."""
        if job and (job.state is JobState.FAILED or job.exit_code is None):
            next = job.next or f"wherry job show {job.id}"
            error = Failed(Code.JOB_FAILED, "the program was ended", job.reason, next)
        if error:
            more = {"why": error.why, "next": error.next}
            lines = [f"error {error.code}: {error.what}", *(f"  {name}: {text}" for name, text in more.items() if text)]
            self.output("".join(f"{line}\r\n" for line in lines).encode(), is_error=True)
        self._channel.exit(_FAILED if job is None or job.exit_code is None else job.exit_code)

    def _send_signal(self, id: str, number: Signals) -> None:
        with suppress(WherryError):
            self.jobs.send_signal(id, number, _SIGNAL_SECONDS)


def _terminal(columns: int, rows: int) -> Terminal:
    """A size that a client sent: one without a terminal of its own sends 0."""
    return Terminal(rows=min(rows, 65535) or 24, columns=min(columns, 65535) or 80)
