"""`wherry doctor`, `wherry version`: facts of this machine and this Wherry."""

from __future__ import annotations

from wherry.base.version import __version__
from wherry.cli.output import Output, emit, table
from wherry.client import daemon_process


def doctor(*, install: bool = False, output: Output = "text") -> None:
    """Show what this machine supports, with a remedy for each missing feature. Needs no daemon.

    Parameters
    ----------
    install
        First have apt-get install the Debian packages that Wherry runs, and fetch a CRIU when none works. Root's.
    """
    added = daemon_process.install() if install else None
    findings = daemon_process.examine()

    def text() -> None:
        if added:
            print(f"Installed: {', '.join(added['packages']) or 'nothing, all packages are there'}.")
        table(("WHAT", "STATE", "FOUND"), [(f["name"], f["health"], f["text"]) for f in findings], "")
        remedies = [(f["name"], f["remedy"]) for f in findings if f["health"] != "ok" and f["remedy"]]
        for name, remedy in remedies:
            print(f"{name}: {remedy}")

    document = {"version": __version__, "findings": findings, **({"installed": added} if added else {})}
    emit(output, "doctor", document, text)


def version(*, output: Output = "text") -> None:
    """Print the version."""
    emit(output, "version", {"version": __version__}, lambda: print(__version__))
