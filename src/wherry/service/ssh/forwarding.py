"""Connections of a client to TCP ports that a node reaches: its own, and those of its cluster's nodes."""

from __future__ import annotations

import asyncio
import ipaddress

import asyncssh

from wherry.base.errors import Code, Refused, WherryError
from wherry.model.job_request import ExecRequest
from wherry.model.records import Job
from wherry.service.commands import Commands
from wherry.service.ssh.program import Place, ProgramOnNode

_LONGEST = 1024
"""Bytes of a reason."""
_CONNECTED = b"+"
"""First byte of the output of wherry-connect."""


class NodeConnection(ProgramOnNode, asyncssh.SSHTCPSession[bytes]):
    """A connection from a node to a port: `host` is an address, a name of a node of its cluster, or localhost."""

    def __init__(self, place: Place, host: str, port: int) -> None:
        super().__init__(place)
        self._host, self._port = host, port
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held, self._errors = b"", b""
        """Output from before the client had the channel; and the reason why there is no connection."""

    async def connected(self) -> NodeConnection:
        """The session, once the node is connected. ChannelOpenError."""
        self.begin()
        try:
            await self._decided
        except asyncio.CancelledError:
            self.connection_lost(None)
            raise
        return self

    def session_started(self) -> None:
        """The client has the channel."""
        self._channel.write(self._held)
        self.resume_writing()

    # The program.

    def request(self, commands: Commands) -> ExecRequest:
        """See the base class. NOT_FOUND for another name of a host."""
        cluster = commands.cluster_of(self.place.node)
        address = self._address({node.name: node.address for node in commands.seen.nodes(cluster)})
        argv, owner = (address, str(self._port)), commands.program_owner(None, cluster)
        return ExecRequest(node=self.place.node, argv=argv, owner=owner, env={}, input=True, ours="wherry-connect")

    def output(self, data: bytes, is_error: bool) -> None:
        """See the base class. The first byte means that the node is connected."""
        if is_error:
            self._errors = (self._errors + data)[-_LONGEST:]
        elif self._channel:
            self._channel.write(data)
        elif self._decided.done():
            self._held += data  # of the same piece
        else:
            self._held = data.removeprefix(_CONNECTED)
            self.pause_writing()  # until the client has the channel
            self._decided.set_result(None)

    def end(self, job: Job | None, error: WherryError | None) -> None:
        """The end for the client, or the reason why there is no connection."""
        if self._channel:
            self._channel.write_eof()
            self._channel.close()
            return
        self.connection_lost(None)  # as for the end of a channel, which it never had
        if self._decided.done():
            return
        why = str(error) if error else self._errors.decode(errors="replace").strip() or "the program ended"
        self._decided.set_exception(asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, why))

    def _address(self, nodes: dict[str, str]) -> str:
        if self._host == "localhost":
            return "127.0.0.1"
        try:
            return nodes.get(self._host) or str(ipaddress.ip_address(self._host))
        except ValueError:
            what = f"no node of its cluster is named {self._host[:64]!r}"
            raise Refused(Code.NOT_FOUND, what, f"known: {', '.join(sorted(nodes))}", "wherry status") from None
