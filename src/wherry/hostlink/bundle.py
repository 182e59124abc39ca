"""The bundle of files from which a host's agent runs, by its hash: how it gets there, is checked, started and removed.

    /var/lib/wherry/agent-bundles/HASH/   manifest (lines of sha256sum), bin/python3, lib/, packages/

Invariants: HASH is that of the manifest, which has the hash of every other file; a directory of that name was whole and
on the disk before it got the name. Only the scripts below run at a host, and their only words are HASH and our paths.
"""

from __future__ import annotations

import logging
import subprocess
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.hostlink.openssh import ssh_command
from wherry.model.ssh_uri import SshUri

log = logging.getLogger("wherry.hosts")
DIRECTORY = Path("/var/lib/wherry/agent-bundles")
"""Of bundles, here and at hosts: paths in it are the same everywhere. (No instance can have that name.)"""
MISSING, DAMAGED, IN_USE = 66, 67, 68
"""Exit codes of the scripts."""
_COPY_SECONDS = 1800.0
_SECONDS = 120.0
_SAID = 600
"""Characters of a host's output that an error repeats."""

_WHOLE = """\
whole() {
  printf '%s  manifest\\n' "$1" | sha256sum --check --status - 2>/dev/null || { echo 'another manifest'; return 1; }
  wrong=$(sha256sum --check --quiet manifest 2>/dev/null) || { printf '%s\\n' "$wrong" | head -n 1; return 1; }
  [ "$(find . ! -type d | wc -l)" -eq "$(($(wc -l <manifest) + 1))" ] || { echo 'it has other files'; return 1; }
}
"""
"""Says on its output why the current directory is not the bundle HASH."""
_START = (
    _WHOLE
    + f"""\
cd "$1/$2" 2>/dev/null || exit {MISSING}
why=$(whole "$2") || {{ printf 'its bundle is damaged: %s\\n' "$why" >&2; exit {DAMAGED}; }}
shift 2
[ $# -gt 0 ] || exit 0
exec "$PWD/bin/python3" -I -S -B "$PWD/packages" -m "$@"
"""
)
_PUT = (
    _WHOLE
    + f"""\
umask 022
mkdir -p "$1" && cd "$1" || exit 1
for old in .new-* .old-*; do kill -0 "${{old##*-}}" 2>/dev/null || rm -rf -- "$old"; done
new=.new-$$
trap 'rm -rf -- "$new"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$new" && tar -xz --no-same-owner -C "$new" || exit 1
why=$(cd "$new" && whole "$2") || {{ printf 'what arrived is not the bundle: %s\\n' "$why" >&2; exit {DAMAGED}; }}
sync -f "$new" || exit 1
[ ! -e "$2" ] || {{ mkdir ".old-$$" && mv -- "$2" ".old-$$"; }}
mv -T -- "$new" "$2" || (cd "$2" && whole "$2") || exit 1
touch "$2" && sync -f . && rm -rf -- ".old-$$"
ls -1dt -- [0-9a-f]* | tail -n +4 | while read -r old; do
  ls -l /proc/[0-9]*/exe 2>/dev/null | grep -q -F "/$old/" || rm -rf -- "$old"
done
exit 0
"""
)
"""Two that put the same bundle at the same time do not meet: each has a directory of its own."""
_REMOVE = f"""\
for agent in /run/wherry/*/agent; do
  [ ! -e "$agent" ] || {{ agent=${{agent%/agent}}; printf '%s\\n' "${{agent##*/}}" >&2; exit {IN_USE}; }}
done
rm -rf -- "$1"
cd "${{1%/*}}" 2>/dev/null || exit 0
[ "$(ls -A)" != criu-versions ] || rm -rf criu-versions
cd / && rmdir -- "${{1%/*}}" 2>/dev/null
exit 0
"""
_INSTALL = """\
command -v apt-get >/dev/null || { echo 'there is no apt-get' >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=300 update >&2 &&
apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends -- "$@" >&2
"""


@dataclass(frozen=True)
class Bundle:
    """A bundle on this machine: its hash, and the file with all of it (tar, compressed by gzip)."""

    digest: str
    archive: Path

    @property
    def directory(self) -> Path:
        """Where it is, here and at each host that has it."""
        return DIRECTORY / self.digest

    def command(self, *module: str) -> list[str]:
        """The command that checks the bundle at a host, and then runs one of its modules with arguments."""
        return ["sh", "-c", _START, "sh", str(DIRECTORY), self.digest, *module]

    @property
    def agent(self) -> list[str]:
        """The command that starts the agent at a host; it ends with MISSING or DAMAGED when the bundle is not there."""
        return self.command("wherry.agent")


def ensure(uri: SshUri, bundle: Bundle) -> bool:
    """Puts the bundle at a host, unless it is there and whole. Returns whether it was copied. LostContact, Failed."""
    checked = _run(uri, bundle.command())
    if checked.returncode not in (MISSING, DAMAGED):
        _require(uri, checked, "its bundle cannot be checked")
        return False
    put(uri, bundle)
    return True


def put(uri: SshUri, bundle: Bundle) -> None:
    """Copies the bundle to a host, in place of one of that name. A partial copy leaves none. LostContact, Failed."""
    try:
        archive = open(bundle.archive, "rb")
    except FileNotFoundError:
        what, why = f"host {uri} gets no bundle", f"{bundle.archive} was removed"
        raise Failed(Code.NOT_FOUND, what, why, "wherry daemon stop; then the same command again") from None
    with archive:
        words = ["sh", "-c", _PUT, "sh", str(DIRECTORY), bundle.digest]
        done = _run(uri, words, archive.fileno(), _COPY_SECONDS)
    if done.returncode == DAMAGED:  # SSH itself changes nothing on the way
        why = f"{bundle.archive}: {done.stderr.strip()[-_SAID:]}"
        remedy = f"wherry daemon stop; rm {bundle.archive}; then the same command again"
        raise Failed(Code.FAILED, f"host {uri}: the bundle cannot be put there", why, remedy)
    _require(uri, done, "the bundle cannot be put there")
    log.info("the bundle %s is at %s", bundle.digest[:12], uri)


def run(uri: SshUri, bundle: Bundle, *module: str, seconds: float = _SECONDS) -> str:
    """The output of a module of the bundle at a host. LostContact, Failed."""
    done = _run(uri, bundle.command(*module), seconds=seconds)
    _require(uri, done, f"{module[0]} does not run there")
    return done.stdout


def install(uri: SshUri, packages: tuple[str, ...]) -> None:
    """Installs Debian packages at a host. Failed with the last output of apt-get."""
    done = _run(uri, ["sh", "-c", _INSTALL, "sh", *packages], seconds=_COPY_SECONDS)
    _require(uri, done, f"{', '.join(packages)} cannot be installed there")


def remove(uri: SshUri) -> None:
    """Removes all bundles of a host, and files of CRIU's search there. Refused while an instance uses the host."""
    done = _run(uri, ["sh", "-c", _REMOVE, "sh", str(DIRECTORY)])
    if done.returncode == IN_USE:
        why = f"instance {done.stderr.split()[-1]} has its agent or nodes there"
        raise Refused(Code.WRONG_STATE, f"Wherry stays at {uri}", why, "wherry fabric down, in that instance")
    _require(uri, done, "the files of Wherry there cannot be removed")


def _run(
    uri: SshUri, words: list[str], given: int = subprocess.DEVNULL, seconds: float = _SECONDS
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ssh_command(uri, words), stdin=given, capture_output=True, text=True, errors="replace", timeout=seconds,
            start_new_session=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why = f"it did not end within {seconds:g} s"
        raise LostContact(Code.UNREACHABLE, f"host {uri} does not answer", why, f"ssh {uri} true") from None


def _require(uri: SshUri, done: subprocess.CompletedProcess[str], what: str) -> None:
    said = done.stderr.strip()[-_SAID:]
    if done.returncode == 255:  # ssh's own
        text = f"host {uri} cannot be reached by SSH"
        raise LostContact(Code.UNREACHABLE, text, said, f"ssh {uri} true")
    if done.returncode:
        remedy = f"wherry host add {uri}" if done.returncode in (MISSING, DAMAGED) else f"ssh {uri} df -h /var/lib"
        raise Failed(Code.FAILED, f"host {uri}: {what}", said or f"exit code {done.returncode}", remedy)
