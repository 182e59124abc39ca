"""The scripts that put a bundle at a host, check it and remove it, run here instead of through SSH."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.base.errors import Failed, LostContact, Refused
from wherry.hostlink import bundle as bundles
from wherry.hostlink.bundle import DAMAGED, MISSING, Bundle
from wherry.model.ssh_uri import SshUri, parse_ssh_uri

URI = parse_ssh_uri("ssh://root@10.0.0.1")
_PYTHON = '#!/bin/sh\nprintf "%s\\n" "$@"\n'
"""A Python that prints its arguments."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of bundles at the host."""
    monkeypatch.setattr(bundles, "DIRECTORY", tmp_path / "var/agent-bundles")
    monkeypatch.setattr(bundles, "ssh_command", lambda _uri, words: words)
    monkeypatch.setattr(bundles, "_REMOVE", bundles._REMOVE.replace("/run/wherry", str(tmp_path / "run")))
    yield tmp_path / "var/agent-bundles"


@pytest.fixture
def made(tmp_path: Path, place: Path) -> Bundle:
    return make(tmp_path)


def make(directory: Path, text: str = "content of it\n" * 5000) -> Bundle:
    files = {"bin/python3": _PYTHON, "packages/a b": text}
    manifest = "".join(f"{hashlib.sha256(each.encode()).hexdigest()}  {name}\n" for name, each in files.items())
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    archive = directory / f"{digest}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, each in (*files.items(), ("manifest", manifest)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(each), 0o755
            tar.addfile(member, io.BytesIO(each.encode()))
    return Bundle(digest, archive)


def start(bundle: Bundle, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(bundle.command(*words), capture_output=True, text=True, timeout=60, check=False)


def test_bundle_is_put_once(made: Bundle, place: Path) -> None:
    assert bundles.ensure(URI, made)
    before = (place / made.digest / "manifest").stat().st_mtime_ns
    assert not bundles.ensure(URI, made)
    assert os.listdir(place) == [made.digest]
    assert (place / made.digest / "manifest").stat().st_mtime_ns == before


def test_module_is_run_out_of_it(made: Bundle, place: Path) -> None:
    bundles.put(URI, made)
    said = bundles.run(URI, made, "wherry.agent.report", "--ensure")
    how = ["-I", "-S", "-B", str(place / made.digest / "packages"), "-m"]
    assert said.split() == [*how, "wherry.agent.report", "--ensure"]


def test_host_without_it_says_so(made: Bundle) -> None:
    assert start(made, "wherry.agent").returncode == MISSING


def damage_file(top: Path) -> None:
    (top / "packages/a b").write_text("other")


def damage_manifest(top: Path) -> None:
    (top / "manifest").write_text((top / "manifest").read_text() + "\n")


def damage_by_more(top: Path) -> None:
    (top / "packages/more.py").touch()


def damage_by_less(top: Path) -> None:
    (top / "packages/a b").unlink()


@pytest.mark.parametrize("damage", [damage_file, damage_manifest, damage_by_more, damage_by_less])
def test_bundle_that_is_not_whole_is_not_started_and_is_replaced(made: Bundle, place: Path, damage: object) -> None:
    bundles.put(URI, made)
    assert callable(damage)
    damage(place / made.digest)
    done = start(made, "wherry.agent")
    assert done.returncode == DAMAGED and "its bundle is damaged: " in done.stderr and not done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert bundles.ensure(URI, made)
    assert start(made).returncode == 0 and os.listdir(place) == [made.digest]


@pytest.mark.parametrize("sent", [0, 10, 200])
def test_copy_that_breaks_off_leaves_nothing(made: Bundle, place: Path, sent: int) -> None:
    whole = made.archive.read_bytes()
    made.archive.write_bytes(whole[:sent])
    with pytest.raises(Failed, match="cannot be put there"):
        bundles.put(URI, made)
    assert os.listdir(place) == []
    made.archive.write_bytes(whole)
    bundles.put(URI, made)
    assert start(made).returncode == 0


def test_copy_whose_process_was_killed_is_removed_by_the_next(made: Bundle, place: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (place / f".new-{ended.pid}/bin").mkdir(parents=True)
    (place / f".new-{os.getpid()}").mkdir()  # of a process that copies at this time
    bundles.put(URI, made)
    assert sorted(os.listdir(place)) == [f".new-{os.getpid()}", made.digest]


def test_what_is_not_the_bundle_is_not_taken(made: Bundle, place: Path, tmp_path: Path) -> None:
    other = make(tmp_path, "another text")
    with pytest.raises(Failed, match="another manifest") as failed:
        bundles.put(URI, Bundle(made.digest, other.archive))
    assert os.listdir(place) == [] and f"rm {other.archive}" in failed.value.next


def test_newest_three_stay(place: Path, tmp_path: Path) -> None:
    made = [make(tmp_path, f"text {number}") for number in range(5)]
    for age, each in zip(range(50, 0, -10), made, strict=True):
        bundles.put(URI, each)
        os.utime(place / each.digest, (1_700_000_000 - age,) * 2)
    bundles.put(URI, made[4])
    assert set(os.listdir(place)) == {each.digest for each in made[2:]}


def test_removal(made: Bundle, place: Path) -> None:
    bundles.put(URI, made)
    (place.parent / "criu-versions").mkdir()
    (place.parent / "criu-versions/answers.json").touch()
    bundles.remove(URI)
    assert not place.parent.exists()
    bundles.remove(URI)  # again


def test_removal_leaves_what_an_installation_has(made: Bundle, place: Path) -> None:
    bundles.put(URI, made)
    for name in ("criu-versions", "main"):
        (place.parent / name).mkdir()
    bundles.remove(URI)
    assert sorted(os.listdir(place.parent)) == ["criu-versions", "main"]


def test_removal_in_use_is_refused(made: Bundle, place: Path, tmp_path: Path) -> None:
    (tmp_path / "run/main").mkdir(parents=True)
    (tmp_path / "run/main/agent").touch()
    bundles.put(URI, made)
    with pytest.raises(Refused, match="instance main has its agent"):
        bundles.remove(URI)
    assert os.listdir(place) == [made.digest]


def test_words_of_packages_are_no_script(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apt-get").write_text(f'#!/bin/sh\nprintf "%s|" "$@" >>{tmp_path}/said\n')
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    bundles.install(URI, ("runc", "$(touch x)"))
    assert (tmp_path / "said").read_text().endswith("|--|runc|$(touch x)|")


def test_host_that_ssh_does_not_reach(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(_uri: SshUri, _words: list[str]) -> list[str]:
        return ["sh", "-c", "echo 'No route to host' >&2; exit 255"]

    monkeypatch.setattr(bundles, "ssh_command", command)
    for act in (lambda: bundles.ensure(URI, made), lambda: bundles.remove(URI)):
        with pytest.raises(LostContact, match="cannot be reached by SSH: No route to host"):
            act()


def test_archive_that_is_gone(made: Bundle) -> None:
    made.archive.unlink()
    with pytest.raises(Failed, match="was removed"):
        bundles.put(URI, made)
