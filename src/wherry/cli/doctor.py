"""`wherry doctor`, `wherry version`: facts of this machine and this Wherry."""

from __future__ import annotations

from wherry.base.version import __version__
from wherry.cli.output import Output, emit, table
from wherry.client import daemon_process


def doctor(*, output: Output = "text") -> None:
    """Show what this machine supports, with a remedy for each missing feature. Needs no daemon."""
    findings = daemon_process.examine()

    def text() -> None:
        table(("WHAT", "STATE", "FOUND"), [(f["name"], f["health"], f["text"]) for f in findings], "")
        remedies = [(f["name"], f["remedy"]) for f in findings if f["health"] != "ok" and f["remedy"]]
        for name, remedy in remedies:
            print(f"{name}: {remedy}")

    emit(output, "doctor", {"version": __version__, "findings": findings}, text)


def version(*, output: Output = "text") -> None:
    """Print the version."""
    emit(output, "version", {"version": __version__}, lambda: print(__version__))
