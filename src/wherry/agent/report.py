"""`python -m wherry.agent.report`: reports what this host has and lacks, as a `HostReport` in JSON.

With `--ensure` it first fetches a CRIU that works, when none here does (the search of `make setup`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from wherry.agent.bundled import bundle_digest
from wherry.base.errors import WherryError
from wherry.fabric import host_facts
from wherry.fabric.cgroup import machine_layout
from wherry.hostlink.host_report import HostReport
from wherry.model.spec.fabric import HostSpec
from wherry.node.container.criu import probe as criu_probe

_PACKAGES = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux"}
_NETWORK = {"bridge": "", "veth": "peer name wherry1", "vxlan": "id 1 dstport 4789"}
_SECONDS = 60
_RELEASE = Path("/etc/os-release")


def report(fetch_criu: bool = False) -> HostReport:
    """The report on this machine. With `fetch_criu` one is downloaded when none here works."""
    lacking = [package for program, package in _PACKAGES.items() if not shutil.which(program)]
    if not host_facts.runtime():
        lacking.append("runc")
    why, version = "", ""
    if lacking:
        why = "it is tried when these packages are there"
    else:
        try:
            found = criu_probe.ensure() if fetch_criu else criu_probe.find()
            why, version = "" if found.works else found.reason, found.version if found.works else ""
        except WherryError as error:
            why = str(error)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = HostSpec.model_construct(name="host", site="wire", cores=float(os.cpu_count() or 1), memory=memory)
    facts = host_facts.gather(machine, version).model_copy(update={"bundle": bundle_digest()})
    return HostReport(
        facts=facts, packages=tuple(lacking), problems=tuple(_problems(lacking)), criu=why, release=_release()
    )


def _problems(lacking: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return ["it is reached as a user other than root"]
    try:
        missing = machine_layout().missing()
        found = [f"it has no cgroup controller {', '.join(missing)}"] if missing else []
    except WherryError as error:
        found = [str(error)]
    if "iproute2" not in lacking and "util-linux" not in lacking:
        found += [f"{kind} devices cannot be made" for kind, words in _NETWORK.items() if not _can_make(kind, words)]
    return found


def _can_make(kind: str, words: str) -> bool:
    command = ["unshare", "--net", "--", "ip", "link", "add", "wherry0", "type", kind, *words.split()]
    return subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False).returncode == 0


def _release() -> str:
    """`Debian GNU/Linux 12 (bookworm)`; empty when unknown."""
    try:
        lines = _RELEASE.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME=")), "")


if __name__ == "__main__":
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin".strip(":")
    print(report("--ensure" in sys.argv[1:]).model_dump_json())
