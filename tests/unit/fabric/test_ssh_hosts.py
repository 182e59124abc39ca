"""Hosts by SSH: their URIs and files, connections that fail, who works at a host, directories that are not shared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError
from ssh_world import setup, spec

import waiting
import wherry
from properties import examples
from wherry.agent import takeover
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.paths import Instance
from wherry.base.two_kernels import SWITCH
from wherry.fabric import ssh_hosts
from wherry.hostlink import link as link_module
from wherry.hostlink import ssh as ssh_module
from wherry.hostlink.bundle import DAMAGED, MISSING
from wherry.hostlink.entrance import HostSetup
from wherry.hostlink.interface import Arguments, Method
from wherry.hostlink.link import HostLink
from wherry.hostlink.openssh import ssh_command
from wherry.hostlink.ssh import SshLinks
from wherry.hostlink.values import to_plain
from wherry.manycore.launch import check_hosts
from wherry.model.records import Node
from wherry.model.spec.fabric import FabricSpec
from wherry.model.ssh_uri import SshUri, parse_ssh_uri
from wherry.node.container.host import Uses
from wherry.node.container.remote_host import RemoteHosts
from wherry.node.protocol import Placement

_COMMAND = [sys.executable, "-m", "wherry.agent"]
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


def test_file_with_hosts_by_ssh() -> None:
    known = spec()
    assert [host.wire for host in known.hosts] == ["127.0.0.1", "127.0.0.2"] and known.hypervisor == ""
    ssh_hosts.check(known)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"uri": ""}, "no uri by which SSH"),
        ({"uri": "qemu+ssh://h1/system"}, "no uri by which SSH"),
        ({"uri": "ssh://h1"}, "name its IPv4 address"),
        ({"address": "fe80::1"}, "address"),
        ({"address": "127.0.0.2"}, "same address"),
        ({"speed": 0.5}, "speed"),
        ({"bridge": "br0"}, "bridge"),
        ({"facts": {"without_files": ["/x"]}}, "facts"),
    ],
)
def test_file_that_says_what_such_hosts_do_not_have_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        spec(**change)


def test_address_is_for_hosts_by_ssh_alone() -> None:
    host = {"name": "h1", "site": "a", "cores": 2, "memory": "1GiB", "address": "10.0.0.1"}
    file = {"kind": "fabric", "version": 1, "name": "f", "sites": [{"name": "a"}], "hosts": [host]}
    with pytest.raises(ValidationError, match="only for driver: ssh"):
        FabricSpec.model_validate(file)


def test_name_of_the_gateway_is_refused() -> None:
    with pytest.raises(Refused, match="gateway"):
        ssh_hosts.check(spec(name="gateway"))


def test_tiles_are_refused() -> None:
    with pytest.raises(Refused, match="tiles do not run"):
        check_hosts("ssh")


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


def test_agent_ends_with_its_input() -> None:
    agent = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert agent.stdin
    agent.stdin.write(b"\0\0\0\x0a" + b'{"ping":1}')
    out, err = agent.communicate(timeout=60)
    assert json.loads(out[4:])["pong"] > 0 and agent.returncode == 0, err


def test_agent_ends_when_what_it_reads_is_malformed() -> None:
    agent = subprocess.run(_COMMAND, input=b"\xff\xff\xff\xff", capture_output=True, timeout=60, check=False)
    assert b"malformed" in agent.stderr and agent.stdout == b""


class Here:
    """An instance whose directory is the test's."""

    prefix = "wherry-none"

    def __init__(self, run: Path) -> None:
        self.run = run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(takeover, "Instance", lambda _: Here(tmp_path))
    return tmp_path


def test_host_that_nobody_has_is_taken(here: Path) -> None:
    lock = takeover.take_over(setup())
    assert json.loads((here / "agent").read_text())["host"] == "h1"
    os.close(lock)


@pytest.mark.parametrize(
    ("other", "what"),
    [(setup(name="h2"), "hosts h2 and h1 are the same machine"), (setup(identity="f" * 32), "another daemon")],
)
def test_host_of_another_is_refused(here: Path, other: HostSetup, what: str) -> None:
    lock = takeover.take_over(other)
    with pytest.raises(Refused, match=what):
        takeover.take_over(setup())
    os.close(lock)
    os.close(takeover.take_over(setup()))  # nothing of it is left, so it is free


def test_host_with_another_daemons_nodes_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(takeover.take_over(setup(identity="f" * 32)))
    monkeypatch.setattr(takeover.named_netns, "exists", lambda name: name == "wherry-none-h1")
    with pytest.raises(Refused, match="another daemon"):
        takeover.take_over(setup())


def test_earlier_agent_is_killed(here: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from wherry.agent import takeover\n"
        "class Here: prefix = 'wherry-none'; run = Path(sys.argv[1])\n"
        "takeover.Instance = lambda _: Here\n"
        "from wherry.hostlink.entrance import HostSetup\n"
        "takeover.take_over(HostSetup.model_validate_json(sys.argv[2])); print('taken', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(here), setup().model_dump_json(), "wherry.agent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as earlier:
        assert earlier.stdout and earlier.stdout.readline() == b"taken\n"
        os.close(takeover.take_over(setup()))
        assert earlier.wait(60) == -9


def test_process_that_is_no_agent_is_not_killed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_ENDS", 0.1)
    with subprocess.Popen(["sleep", "60"]) as other:
        lock = takeover.take_over(setup())
        (here / "agent").write_text(json.dumps({"identity": "0" * 32, "host": "h1", "pid": other.pid}))
        with pytest.raises(Failed, match="has an agent already"):
            takeover.take_over(setup())
        assert other.poll() is None
        other.kill()
    os.close(lock)


class Link:
    """A stream to a host with these mounts."""

    def __init__(self, boot: str, mounts: list[str]) -> None:
        self.boot, self._mounts = boot, mounts

        self.kernel_obstacle, self.lack = "", ""

    def call(self, target: str, method: Method, arguments: Arguments) -> Any:
        assert target == "containers"
        if method.name == "uses":
            return to_plain(Uses(process=77))
        if method.name == "lacks":
            assert arguments.plain == {"used": to_plain(Uses(process=77))}
            return self.lack
        assert (arguments.plain, method.name in ("mount_points", "kernel_obstacle")) == ({}, True)
        return self._mounts if method.name == "mount_points" else self.kernel_obstacle


class Files:
    """A fabric whose hosts have `boots`, and see the files below `seen`."""

    def __init__(self, boots: dict[str, str], seen: Path | None = None) -> None:
        self.lost, self.boots, self.seen = set[str](), boots, seen
        self.asked = list[str]()
        self.mounts = dict[str, list[str]]()
        self.said = dict[str, tuple[str, str]]()
        """By host: `kernel_obstacle` and `lack` for nodes of another kernel."""
        self.connections = self

    def link(self, host: str) -> HostLink:
        if host not in self.boots:
            raise LostContact(Code.UNREACHABLE, f"host {host} does not answer")
        made = Link(self.boots[host], self.mounts.get(host, []))
        made.kernel_obstacle, made.lack = self.said.get(host, ("", ""))
        return cast(HostLink, made)

    def unseen_files(self, host: str, paths: list[str]) -> list[str]:
        self.asked += paths
        return [path for path in paths if self.seen is None or not Path(path).is_relative_to(self.seen)]


def test_nodes_move_between_hosts_with_one_kernel_alone() -> None:
    hosts = RemoteHosts(Files({"h1": "x", "h2": "x", "h3": "y"}))
    assert hosts.pair_obstacle("h1", "h2") == ""
    assert "two machines" in hosts.pair_obstacle("h1", "h3")
    assert hosts.pair_obstacle("h1", "h9") == ""  # the next request reports that it is silent


def test_nodes_move_between_two_kernels_when_the_daemon_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    files = Files({"h1": "x", "h2": "x", "h3": "y"})
    hosts, here = RemoteHosts(files), place(Path("/home"))
    there = {host: here.model_copy(update={"host": host}) for host in files.boots}
    assert hosts.pair_obstacle("h1", "h3") == ""
    assert hosts.node_obstacle(there["h1"], there["h3"]) == ""
    files.said["h3"] = "its kernel is too old", "libc.so.6 has another content there"
    assert hosts.pair_obstacle("h1", "h3").endswith("two machines: at host h3 its kernel is too old")
    assert hosts.pair_obstacle("h3", "h1") == ""  # the destination makes the clocks
    assert hosts.node_obstacle(there["h1"], there["h3"]) == "at host h3: libc.so.6 has another content there"
    assert hosts.node_obstacle(there["h1"], there["h2"]) == ""  # one kernel, so nothing is asked
    monkeypatch.delenv(SWITCH)
    assert SWITCH in hosts.pair_obstacle("h1", "h3")


def test_destination_has_the_mounts_that_nodes_see() -> None:
    files = Files({"h1": "x", "h2": "x"})
    files.mounts = {"h1": ["/home", "/scratch"], "h2": ["/home", "/opt"]}
    hosts = RemoteHosts(files)
    assert hosts.pair_obstacle("h1", "h2") == "host h2 has nothing mounted at /scratch, which nodes see at h1"
    assert "mounted at /opt" in hosts.pair_obstacle("h2", "h1")


def test_what_nodes_see_of_their_memory_does_not_change_with_a_move() -> None:
    files, shown = Files({"h1": "x", "h2": "x"}), ["/proc/meminfo", "/proc/cpuinfo"]
    for mounts in ({"h1": shown}, {"h2": shown}, {"h1": shown, "h2": shown}):
        files.mounts = mounts
        refused = "apt-get install lxcfs" in RemoteHosts(files).pair_obstacle("h1", "h2")
        assert refused == (len(mounts) == 1)


def place(directory: Path) -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, kind="container", host="h1", address="10.77.1.1", mac="02:77:0a:4d:01:00",
        cpus=1, memory=1 << 27, state="running",
    )  # fmt: skip
    user = f"{os.getuid()}:{os.getgid()}:"
    return Placement(
        node=node, host="h1", netns="/n", cgroup="g", key=SecretStr("k"), user=user, binds=(str(directory),)
    )


def test_directory_that_the_host_does_not_share_is_refused(tmp_path: Path) -> None:
    """The file that was made there to find out is removed."""
    with pytest.raises(Refused, match=r"would not see your files.*not the same directory"):
        RemoteHosts(Files({})).of("h1").start(place(tmp_path), lambda: None)
    assert not list(tmp_path.iterdir())


def test_directory_that_the_host_shares_is_not(tmp_path: Path) -> None:
    files = Files({}, tmp_path)
    with pytest.raises(LostContact):  # the next step asks the host itself
        RemoteHosts(files).of("h1").start(place(tmp_path), lambda: None)
    assert len(files.asked) == 1 and not list(tmp_path.iterdir())


def test_silent_host_has_not_lost_its_nodes_and_a_lost_one_has(tmp_path: Path) -> None:
    files = Files({})
    assert RemoteHosts(files).of("h1").alive(place(tmp_path))
    files.lost.add("h1")
    assert not RemoteHosts(files).of("h1").alive(place(tmp_path))
    RemoteHosts(files).of("h1").stop(place(tmp_path))


def test_identity_and_note_of_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    instance = Instance("main")
    word = ssh_hosts.identity(instance)
    assert len(word) == 32 and ssh_hosts.identity(instance) == word
    assert ssh_hosts.noted(instance) == {}
    ssh_hosts.remember(instance, spec())
    noted = ssh_hosts.noted(instance)
    assert noted["h2"].uri == "ssh://h2:22" and noted["h1"].setup.peers == ("127.0.0.2",)
    assert noted["h1"].setup.memory == 1 << 30 and noted["h1"].setup.head.startswith("127.")
    ssh_hosts.forget(instance)
    assert ssh_hosts.noted(instance) == {}
