"""Connections to hosts by SSH: their URIs, hosts that do not answer or answer wrongly, and lost hosts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ssh_world import setup

import waiting
import wherry
from properties import examples
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.hostlink import link as link_module
from wherry.hostlink import ssh as ssh_module
from wherry.hostlink.bundle import DAMAGED, MISSING
from wherry.hostlink.openssh import ssh_command
from wherry.hostlink.ssh import SshLinks
from wherry.model.ssh_uri import SshUri, parse_ssh_uri

_AGENT = """\
import json, sys
def answer(result):
    text = json.dumps({"id": 1, "result": result}).encode()
    sys.stdout.buffer.write(len(text).to_bytes(4, "big") + text)
    sys.stdout.buffer.flush()
sys.stdin.buffer.read(4)
answer({"version": sys.argv[1], "boot": "b"})
sys.stdin.buffer.read()
"""


@pytest.mark.parametrize("text", ["ssh://h1", "ssh://root@10.0.0.1", "ssh://me@h1.example.org:2222"])
def test_uri_is_read_and_written(text: str) -> None:
    assert str(parse_ssh_uri(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "ssh://", "ssh://-oProxyCommand=x", "ssh://-l@h1", "ssh://root@-h1", "ssh://h1:0", "ssh://h1:99999", "h1",
        "ssh://h1/path", "ssh://h1?x=1", "ssh://h 1", "ssh://h1;reboot", "ssh://root@h1:22 x", "qemu+ssh://h1/system",
        "ssh://h1\n", "ssh://ü",
    ],
)  # fmt: skip
def test_uri_that_could_mean_more_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ssh://|port"):
        parse_ssh_uri(text)


@given(st.text(max_size=30))
@settings(max_examples=examples(200))
def test_command_has_no_word_of_an_accepted_uri_that_is_an_option(text: str) -> None:
    try:
        uri = parse_ssh_uri(f"ssh://{text}")
    except ValueError:
        return
    command = ssh_command(uri, ["true"])
    assert command[-3] == "--" and not command[-2].startswith("-") and command[-1] == "true"


@pytest.fixture
def links() -> Iterator[Callable[..., SshLinks]]:
    """Connections by another command than ssh."""
    made = list[SshLinks]()

    def make(*command: str, put: Callable[[SshUri], None] | None = None) -> SshLinks:
        uris = {"h1": "ssh://root@10.0.0.1"}
        made.append(SshLinks(uris, lambda _: setup(), lambda _: list(command), put or (lambda _: None)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_host_is_open_when_its_agent_says_so(links: Callable[..., SshLinks]) -> None:
    known = links(sys.executable, "-c", _AGENT, wherry.__version__)
    link = known.link("h1")
    assert known.answers("h1") and known.link("h1") is link and link.boot == "b"


def test_reason_of_ssh_is_told(links: Callable[..., SshLinks]) -> None:
    known = links("sh", "-c", "echo banner >&2; echo 'Permission denied (publickey).' >&2; exit 255")
    for _ in range(2):
        with pytest.raises(LostContact, match="host h1 cannot be reached by SSH: Permission denied") as lost:
            known.link("h1")
        assert lost.value.next == "ssh ssh://root@10.0.0.1 true"
    assert not known.answers("h1")


def test_other_version_is_refused(links: Callable[..., SshLinks]) -> None:
    with pytest.raises(Refused, match="another version"):
        links(sys.executable, "-c", _AGENT, "0.0.0").link("h1")


def test_silent_host_is_tried_again_in_the_background(
    links: Callable[..., SshLinks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_module, "_PAUSE", 0.0)
    ready = tmp_path / "ready"
    command = f'[ -e {ready} ] || exit 255; exec {sys.executable} -c "$0" {wherry.__version__}'
    known = links("sh", "-c", command, _AGENT)
    assert not known.answers("h1")
    ready.touch()
    assert not known.answers("h1")  # it failed just now
    waiting.until(lambda: known.answers("h1"), "the host")


def test_a_host_that_falls_silent_delays_nobody(
    links: Callable[..., SshLinks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again in the background at once: an attempt to reach it may last half a minute."""
    monkeypatch.setattr(link_module, "_ASK", 0.01)
    monkeypatch.setattr(link_module, "_SILENT", 0.01)
    tried = tmp_path / "tried"
    again = (
        f'[ -e {tried}.1 ] && touch {tried}.2 && exec cat >/dev/null; touch {tried}.1; exec {sys.executable} -c "$0"'
    )
    known = links("sh", "-c", f"{again} {wherry.__version__}", _AGENT)
    link = known.link("h1")
    waiting.until(lambda: not link.alive, "the silence")
    for _ in range(2):
        with pytest.raises(LostContact, match="silent for"):
            known.link("h1")
    waiting.until(Path(f"{tried}.2").exists, "the next attempt")


def test_what_an_agent_needs_is_put_at_a_host_that_lacks_it(links: Callable[..., SshLinks], tmp_path: Path) -> None:
    command = f'[ -e {tmp_path}/there ] || exit {MISSING}; exec {sys.executable} -c "$0" {wherry.__version__}'
    known = links("sh", "-c", command, _AGENT, put=lambda _: (tmp_path / "there").touch())
    assert known.link("h1").boot == "b"


def test_what_could_not_be_put_is_not_tried_again_at_once(
    links: Callable[..., SshLinks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_module, "_PAUSE", 0.0)
    tried = list[SshUri]()

    def put(uri: SshUri) -> None:
        tried.append(uri)
        raise Failed(Code.FAILED, "the disk is full")

    known = links("sh", "-c", f"exit {MISSING}", put=put)
    for _ in range(3):
        with pytest.raises(Failed, match="the disk is full"):
            known.link("h1")
        for thread in threading.enumerate():
            if thread.name == "retry-h1":
                thread.join()
    assert len(tried) == 1


def test_damaged_bundle_is_refused(links: Callable[..., SshLinks]) -> None:
    known = links("sh", "-c", f"echo 'its bundle is damaged: lib/x: FAILED' >&2; exit {DAMAGED}")
    with pytest.raises(Refused, match="lib/x") as refused:
        known.link("h1")
    assert refused.value.next == "wherry host add ssh://root@10.0.0.1"


def test_lost_host_is_not_contacted(links: Callable[..., SshLinks], tmp_path: Path) -> None:
    known = links("touch", str(tmp_path / "called"))
    known.lost.add("h1")
    with pytest.raises(LostContact, match="declared lost"):
        known.link("h1")
    assert not (tmp_path / "called").exists()


def test_host_is_lost_when_its_agent_may_act_no_more(
    links: Callable[..., SshLinks], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept, over = list[float](), threading.Event()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert over.wait(60)

    known = links(sys.executable, "-c", _AGENT, wherry.__version__)
    link, lost = known.link("h1"), threading.Thread(target=known.lose, args=("h1",))
    now = link.heard + 5
    monkeypatch.setattr(ssh_module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    lost.start()
    waiting.until(lambda: slept, "the wait for the lease's end")
    assert not link.alive
    with pytest.raises(LostContact, match="declared lost"):  # from the beginning
        known.link("h1")
    assert "h1" not in known.lost
    over.set()
    lost.join()
    assert "h1" in known.lost and now + slept[0] >= link.heard + ssh_module.LEASE and len(slept) == 1
    assert known.reach("h1").alive  # to remove its objects
    known.end("h1")


def test_host_that_was_never_tried_is_lost_at_once(
    links: Callable[..., SshLinks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the start of a daemon that has it in its database."""
    monkeypatch.setattr(ssh_module, "time", SimpleNamespace(sleep=lambda _seconds: pytest.fail("it waits")))
    known = links("false")
    known.lose("h1")
    assert known.lost == {"h1"}
