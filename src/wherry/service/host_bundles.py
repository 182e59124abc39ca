"""The commands that make a machine fit to be a host by SSH, and that remove the files that they put there.

Invariant: without `install` nothing is changed at the host but in the bundles' directory. Packages are named by us.
"""

from __future__ import annotations

import re
import time
from typing import Any

from pydantic import ValidationError

from wherry.base.errors import Bug, Code, Refused
from wherry.hostlink import bundle as bundles
from wherry.hostlink.host_report import HostReport
from wherry.model.records import Operation
from wherry.model.ssh_uri import SshUri, parse_ssh_uri
from wherry.service import wiring
from wherry.service.context import ServiceContext
from wherry.service.task import Task

_SECONDS = 300.0
"""For a report, which tries every CRIU of the host."""
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


class HostBundles:
    """The commands of root on machines that are, or will be, hosts by SSH."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def add(self, uri: str, install: bool) -> Operation:
        """Puts the bundle at a machine, and looks whether it can be a host. With `install` Debian packages that it
        lacks are installed there. USAGE."""
        host = _parsed(uri)

        def body(task: Task) -> dict[str, Any]:
            began = time.monotonic()
            task.progress("looking for the bundle")
            bundle = wiring.agent_bundle()
            task.check()
            size = bundle.archive.stat().st_size
            task.progress(f"checking the bundle {bundle.digest[:12]} ({size >> 20} MB) at {host}, or copying it there")
            copied = bundles.ensure(host, bundle)
            task.check()
            report, installed = _report(host, bundle), tuple[str, ...]()
            if report.packages and install:
                task.progress(f"installing at {host} by apt-get: {' '.join(report.packages)}")
                bundles.install(host, report.packages)
                installed, report = report.packages, _report(host, bundle)
            if not report.packages and report.criu and install:
                task.progress(f"fetching a CRIU that works for {host}")
                report = _report(host, bundle, "--ensure")
            _require_fit(host, report)
            text = f"{host} has the bundle {bundle.digest[:12]}"
            self._context.store.add_event("host.add", host.host, text)
            return {
                "uri": str(host), "bundle": bundle.digest, "copied": copied, "installed": list(installed),
                "seconds": time.monotonic() - began, **report.model_dump(mode="json", exclude={"packages", "problems"}),
            }  # fmt: skip

        return self._context.operations.start("host add", str(host), body, exclusive={_claim(host)})

    def remove(self, uri: str) -> Operation:
        """Removes the files of Wherry at a machine. WRONG_STATE while an instance uses it. USAGE."""
        host = _parsed(uri)

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"removing Wherry's files from {host}")
            bundles.remove(host)
            self._context.store.add_event("host.remove", host.host, f"{host} has nothing of Wherry any more")
            return {"uri": str(host)}

        return self._context.operations.start("host remove", str(host), body, exclusive={_claim(host)})


def _parsed(uri: str) -> SshUri:
    try:
        return parse_ssh_uri(uri)
    except ValueError as error:
        what = "a machine is named by how SSH reaches it"
        raise Refused(Code.USAGE, what, str(error), "wherry host add ssh://root@HOST") from None


def _claim(host: SshUri) -> str:
    return f"machine {host}"


def _report(host: SshUri, bundle: bundles.Bundle, *words: str) -> HostReport:
    text = bundles.run(host, bundle, "wherry.agent.report", *words, seconds=_SECONDS)
    try:
        report = HostReport.model_validate_json(text)
    except ValidationError as error:
        raise Bug(f"{host} reports what it should not", str(error.errors(include_input=False)[:3])) from None
    if wrong := [name for name in report.packages if not _PACKAGE.fullmatch(name)]:
        raise Bug(f"{host} reports what it should not", f"{wrong[0]!r} is no package")
    return report


def _require_fit(host: SshUri, report: HostReport) -> None:
    if report.packages:
        what = f"{host} has the bundle, and lacks Debian packages"
        why = ", ".join(report.packages)
        raise Refused(Code.INCOMPATIBLE_HOST, what, why, f"wherry host add {host} --install")
    if report.problems:
        what = f"{host} cannot be a host"
        raise Refused(Code.INCOMPATIBLE_HOST, what, "; ".join(report.problems), "docs/hosts.md has the requirements")
