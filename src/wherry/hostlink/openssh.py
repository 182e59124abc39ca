"""The command line of OpenSSH's client. Settings of ssh_config hold: keys, agents, jump hosts, ControlMaster."""

from __future__ import annotations

import shlex

from wherry.model.ssh_uri import SshUri

OPEN = 30
"""Seconds that a host may take to accept a connection."""
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={OPEN}", "-o", "ClearAllForwardings=yes")


def ssh_command(uri: SshUri, command: list[str]) -> list[str]:
    """The command line that runs a command at a host."""
    port = ("-p", uri.port) if uri.port else ()
    return ["ssh", *_OPTIONS, *port, "--", uri.destination, shlex.join(command)]
