"""Installs Debian's newest CRIU in a private prefix, with its own C library.

Invariant: no package of the system is installed, upgraded or replaced. apt works in a private root (own lists, cache
and an empty package status, so that it resolves all dependencies down to libc6); archive and key ring are those of the
machine, the suite is `sid`. The packages are unpacked into a new directory, which is renamed when it is complete.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import tempfile
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.remedies import setup

SUITE = "sid"
_BY_HAND = "build CRIU 4.2 or later yourself and name it: export WHERRY_CRIU=/path/to/criu"


def install_private(prefixes: Path, sources: Path = Path("/etc/apt")) -> Path:
    """Creates PREFIXES/VERSION if it is missing, and returns it. Needs root and the network (about 25 MB)."""
    archive, options = debian_archive(sources)
    prefixes.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=prefixes) as temporary:
        root = Path(temporary)
        packages = _download(root, f"deb {options}{archive} {SUITE} main\n")
        new = root / "prefix"
        for package in packages:
            _run(["dpkg-deb", "-x", str(package), str(new)])
        main = next(package for package in packages if package.name.startswith("criu_"))
        final = prefixes / _run(["dpkg-deb", "-f", str(main), "Version"]).strip().replace(":", "_")
        _write_starter(new, final)
        new.chmod(0o755)
        _publish(new, final)
    return final


def _publish(new: Path, final: Path) -> None:
    """Renames `new` to `final`, unless another installer did that first: a prefix is complete when it has its name."""
    try:
        os.rename(new, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def command(prefix: Path) -> tuple[str, ...]:
    """The command of a private prefix's CRIU: its own dynamic linker with its own libraries."""
    libraries = prefix / "usr/lib/x86_64-linux-gnu"
    return (
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
        str(prefix / "usr/sbin/criu"),
    )


def starter(prefix: Path) -> Path:
    """The command as a single executable, for programs that take a path (runc)."""
    return prefix / "bin/criu"


def debian_archive(sources: Path) -> tuple[str, str]:
    """Archive and options (signed-by) of a Debian archive among the machine's apt sources, in both of their formats."""
    files = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
    for file in files:
        if file.suffix == ".sources":
            found = _in_deb822(file.read_text())
        elif file.suffix == ".list" and file.is_file():
            found = _in_one_line(file.read_text())
        else:
            continue
        if found:
            return found
    raise Refused(
        Code.UNSUPPORTED,
        "a newer CRIU cannot be fetched",
        f"no Debian archive (…/debian, component main) is among the apt sources in {sources}",
        _BY_HAND,
    )


def _is_debian(uri: str) -> bool:
    return re.fullmatch(r"https?://\S+/debian/?", uri) is not None


def _in_one_line(text: str) -> tuple[str, str] | None:
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+\S+\s+(.*)", line.split("#")[0].strip())
        if match and _is_debian(match[2]) and "main" in match[3].split():
            key = re.search(r"signed-by=\S+", match[1] or "")
            return match[2], f"[{key[0]}] " if key else ""
    return None


def _in_deb822(text: str) -> tuple[str, str] | None:
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", plain):
        pairs = re.findall(r"(?m)^([\w-]+):(.*(?:\n[ \t].*)*)", stanza)
        fields = {key.lower(): value.strip() for key, value in pairs}
        archive = next((uri for uri in fields.get("uris", "").split() if _is_debian(uri)), "")
        usable = "deb" in fields.get("types", "").split() and "main" in fields.get("components", "").split()
        if archive and usable and fields.get("enabled", "yes") != "no":
            key = fields.get("signed-by", "")
            return archive, f"[signed-by={key}] " if key.startswith("/") else ""
    return None


def _download(root: Path, source: str) -> list[Path]:
    """CRIU and everything it needs as package files below `root`."""
    for directory in ("state/lists/partial", "cache/archives/partial"):
        (root / directory).mkdir(parents=True)
    (root / "state/status").touch()
    (root / "sources.list").write_text(source)
    settings = {
        "Dir::State": root / "state",
        "Dir::State::status": root / "state/status",
        "Dir::Cache": root / "cache",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Log": root,
        "Acquire::Check-Valid-Until": "false",  # a mirror's snapshot of sid may be old
        "Acquire::Languages": "none",
        "Acquire::Retries": 3,
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "APT::Default-Release": "",
        "APT::Sandbox::User": "root",  # the private root is readable by root only
        "APT::Update::Error-Mode": "any",
    }
    apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in settings.items())]
    _run([*apt, "update"])
    _run([*apt, "--no-install-recommends", "--download-only", "--yes", "install", "criu"])
    return sorted((root / "cache/archives").glob("*.deb"))


def _write_starter(new: Path, final: Path) -> None:
    if not Path(command(new)[0]).exists():
        raise Failed(Code.FAILED, "Debian's newest CRIU cannot be started", "its loader is missing", _BY_HAND)
    words = " ".join(f"'{word}'" for word in command(final))
    path = starter(new)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)


def _run(words: list[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        run = subprocess.run(
            words, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, env=environment, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        remedy = f"check the network, then: {setup()}"
        if "NO_PUBKEY" in output or "not signed" in output:
            remedy = f"apt-get install --only-upgrade debian-archive-keyring; then: {setup()}"
        why = f"{words[0]}: {output.strip()[-600:]}"
        raise Failed(Code.FAILED, "a newer CRIU could not be fetched", why, remedy) from error
    return run.stdout
