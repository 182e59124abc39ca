"""`wherry exec`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wherry.base.errors import Code, Refused, WherryError
from wherry.base.interrupts import signals_as_interrupt
from wherry.cli import terminal
from wherry.cli.job_follow import follow, has_input, job_signals, read_input, say_to_terminal
from wherry.cli.names import NodeName
from wherry.cli.options import checked
from wherry.cli.output import Output, is_interactive
from wherry.client import existing, identity, remote


def exec_(
    node: NodeName,
    program: str | None = None,
    /,
    *args: Annotated[str, Parameter(allow_leading_hyphen=True)],
    wdir: Annotated[Path | None, Parameter(name=["--wdir", "-wdir"])] = None,
    output: Output = "text",
) -> int:
    """Run a program on a node, as its user: wherry exec NODE -- PROGRAM ARGS.

    The command has the program's streams and exit code, and gives it a terminal when it has one itself; else Ctrl-C,
    SIGTERM and SIGHUP end the program. It is found and run without a shell. It moves with its node, and
    waits while the node is frozen. Processes that it leaves behind are ended with it.

    Parameters
    ----------
    node
        The node.
    program
        The program, after `--`.
    args
        Its arguments.
    wdir
        The program's directory; default: that of the command where the node sees it, else `/`.
    """
    if wdir:
        remote.refuse("--wdir")
    checked("NODE", "spec.base:ShortText", node, "wherry exec")
    if program is None:
        raise Refused(Code.USAGE, "no program is given", "", f"wherry exec {node} -- PROGRAM")
    on_terminal = is_interactive() and output == "text"
    size = terminal.size() if on_terminal else None
    with job_signals() as came, existing(f"node {node!r}") as client, signals_as_interrupt():
        job = client.exec(
            node,
            (program, *args),
            identity.owner(wdir.absolute() if wdir else None),
            wdir is not None,
            not on_terminal and has_input(),
            size,
            say_to_terminal,
        )
        try:
            if not on_terminal:
                return follow(client, job, output, read_input if has_input() else None, 0, came=came)
            with terminal.raw() as read:
                return follow(client, job, output, read, 0, came=came)
        finally:
            with suppress(WherryError):  # it runs, or its cluster is gone: it is removed with others that have ended
                client.forget(job.id)
