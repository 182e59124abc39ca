"""Two users on one machine over TLS, with the command line and the Python client: neither sees the other; and the
restrictions of their containers, before a move and after it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import forked
import pytest
from realworld import SECONDS, WHERRY, Completed, RealInstance, real_instance, ring_program

from ports import reserved
from wherry.base.errors import Code, Refused
from wherry.client import Client
from wherry.fabric.cgroup import Cgroup
from wherry.model.records import CONTROL_PORT
from wherry.node.container import seccomp

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

MOVES_OF_USERS = bool(int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16) >> 24 & 1)
"""Whether this process has CAP_SYS_RESOURCE."""
PASSWORD = "four words are long"
CLUSTER = "name: {}\nnodes: 2\ncpus: 0.25\nmemory: 128MiB\n"
LOOK = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    return ctypes.get_errno() if libc.syscall(*map(ctypes.c_long, words)) < 0 else 0
def family(number):
    try:
        socket.socket(number, socket.SOCK_DGRAM).close()
    except OSError as error:
        return error.errno
    return 0
def of(pid):
    return dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines())
calls = {"unshare": call(272, 0x10000000), "ptrace": call(101, 0, 0, 0, 0), "mount": call(165, 0, 0, 0, 0, 0)}
families = {"alg": family(38), "vsock": family(40), "inet": family(2)}
closed = ("/etc/shadow", "/run/wherry/key", "/proc/kcore", "/home/.", "/root/.", "/var/log/.")
readable = [path for path in closed if os.access(path, os.R_OK) and not (path.endswith("/.") and not os.listdir(path))]
print(json.dumps({"self": of("self"), "first": of(1), "calls": calls, "families": families, "readable": readable,
                  "uid": os.getuid(), "groups": os.getgroups(), "cwd": os.getcwd()}))
"""
HOSTILE = """
import ctypes, json, os, socket, sys
sys.stdout = sys.stderr
own, other, port, url = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def connects(*address):
    try:
        socket.create_connection(address, 2).close()
    except OSError:
        return False
    return True
lines = {pid: open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()}
marks = ("wherry.service", "wherry-launch", "/run/wherry/init", "runc")
status = open("/proc/self/status").read()
libc = ctypes.CDLL(None, use_errno=True)
print("LOOKED " + json.dumps({
    "others": [line for pid, line in lines.items() if any(mark in line for mark in marks)], "processes": len(lines),
    "own node": connects(own, port), "other node": connects(other, port), "daemon": connects("127.0.0.1", url),
    "hidden": [path for path in ("/home", "/srv", "/var/log") if os.access(path, os.R_OK) and os.listdir(path)],
    "run": os.access("/run/wherry", os.R_OK), "uid": os.getuid(), "mark": os.environ.get("ODD", ""),
    "confined": "NoNewPrivs:\\t1" in status and "CapBnd:\\t0000000000000000" in status,
    "mounts": libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0, "unshares": libc.unshare(0x10000000) == 0}))
if os.fork() == 0:
    os.setsid()
    os.execv("/bin/sleep", ["sleep", "987"])
sys.exit(1)
"""


@dataclass
class Site:
    """The daemon with its listener, as root has it, and how users reach it."""

    root: RealInstance
    url: str
    ca: str
    homes: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def words(self, *words: str, text: str = "", **environment: str) -> Completed:
        """A command as its own process, with `text` on its standard input."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
        return subprocess.run(
            [str(WHERRY), *words], cwd="/", env={**kept, **environment}, input=text, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip

    def asked(self, who: str, *words: str) -> Completed:
        """A command of a user who has signed in; there is no instance of that user's on this machine."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
        own = {"XDG_CONFIG_HOME": str(self.homes / who), "WHERRY_INSTANCE": "nowhere"}
        return forked.run(words, Path("/"), {**kept, **own}, SECONDS)

    def started(self, who: str, *words: str) -> subprocess.Popen[str]:
        """A command of a user in the background, its streams in pipes."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [str(WHERRY), *words], cwd="/", env={**kept, "XDG_CONFIG_HOME": str(self.homes / who)}, text=True,
            stdin=pipe, stdout=pipe, stderr=pipe,
        )  # fmt: skip

    def json(self, who: str, *words: str) -> dict[str, object]:
        done = self.asked(who, *words, "-o", "json")
        assert done.returncode == 0, (words, done.stderr)
        found: dict[str, object] = json.loads(done.stdout)
        return found

    def client(self, who: str) -> Client:
        kept = json.loads((self.homes / who / "wherry" / "client.json").read_text())
        return Client.at(self.url, kept["token"], self.ca)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Two users, each with a cluster of two nodes."""
    with (
        reserved() as port,
        real_instance("tusr", below=Path("/var/tmp")) as root,
        tempfile.TemporaryDirectory() as homes,
    ):
        root.json("daemon", "start")
        state = root.json("daemon", "listen", f"127.0.0.1:{port}")
        site = Site(root, state["url"], state["ca"], Path(homes))
        environment = {"WHERRY_INSTANCE": root.instance.name}
        for name in ("ann", "bob"):
            added = site.words("user", "add", name, text=f"{PASSWORD}\n", **environment)
            assert added.returncode == 0, added.stderr
            words = ("login", site.url, "--user", name, "--ca", site.ca)
            signed = site.words(*words, text=f"{PASSWORD}\n", XDG_CONFIG_HOME=str(site.homes / name))
            assert signed.returncode == 0, signed.stderr
            assert PASSWORD not in signed.stdout + signed.stderr
        file = root.directory / "early.yaml"
        file.write_text(CLUSTER.format("early"))
        early = site.asked("ann", "up", str(file))
        assert early.returncode == 4 and "an admin has allowed: off" in early.stderr, early.stderr
        root.json("user", "allow", "jobs")
        for who, name in (("ann", "hers"), ("bob", "his")):
            file = root.directory / f"{name}.yaml"
            file.write_text(CLUSTER.format(name))
            site.json(who, "up", str(file))
        yield site


@pytest.mark.smoke
def test_each_sees_what_is_its_own(site: Site) -> None:
    for who, own, other in (("ann", "hers", "his"), ("bob", "his", "hers")):
        listed = site.json(who, "status")["clusters"]
        assert [cluster["name"] for cluster in listed] == [own]  # type: ignore[index,union-attr]
        for words in (
            ("down", other), ("move", f"{other}-0", "--to", "a1"), ("exec", f"{other}-0", "--", "true"),
            ("node", "show", f"{other}-0"), ("run", other, "-n", "1", "--", "/bin/true"),
        ):  # fmt: skip
            done = site.asked(who, *words)
            assert done.returncode == 3 and "NOT_FOUND" in done.stderr, (words, done.stderr)
        with site.client(who) as client:
            assert [cluster["name"] for cluster in client.clusters()] == [own]
            assert {node.cluster for node in client.nodes()} == {own}
            with pytest.raises(Refused) as caught:
                client.down(other)
            assert caught.value.code is Code.NOT_FOUND
            assert {event.target.split("-")[0].split(" ")[0] for event in client.events()} <= {own}
            assert [host["host"] for host in client.capacity()] == ["a1", "a2", "b1", "b2"]
    everything = site.root.json("status")["clusters"]
    assert sorted(cluster["name"] for cluster in everything) == ["hers", "his"]


def look(site: Site, who: str, node: str) -> dict[str, object]:
    done = site.asked(who, "exec", node, "--", "/usr/bin/python3", "-c", LOOK)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def groups_of(uid: int) -> list[str]:
    """The cgroups of all processes of a uid on this machine, one text for each."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == uid:
                found.append((entry / "cgroup").read_text())
        except OSError:  # it has ended
            continue
    return found


def processes_of(uid: int, words: str) -> list[str]:
    """The processes of a uid on this machine with these words in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == uid and words in (entry / "cmdline").read_text():
                found.append(entry.name)
        except OSError:  # it has ended
            continue
    return found


def move(site: Site, who: str, node: str) -> None:
    """To another site and back would do as well."""
    here = site.json(who, "node", "show", node)["node"]["host"]  # type: ignore[index]
    site.json(who, "move", node, "--to", "b2" if here != "b2" else "a1")


def test_containers_of_accounts_may_little_before_a_move_and_after_it(site: Site) -> None:
    before = look(site, "ann", "hers-0")
    move(site, "ann", "hers-0")
    after = look(site, "ann", "hers-0")
    for found in (before, after):
        own, first = found["self"], found["first"]
        assert isinstance(own, dict) and isinstance(first, dict)
        assert found["uid"] >= 1_900_000_000 and found["groups"] in ([], [found["uid"]]) and found["cwd"] == "/"
        for key in ("CapEff", "CapPrm", "CapAmb", "CapInh"):
            assert int(own[key], 16) == 0, key
        assert int(first["CapEff"], 16) == int(first["CapBnd"], 16) == (1 << 5) | (1 << 6) | (1 << 7)
        assert own["NoNewPrivs"].strip() == first["NoNewPrivs"].strip() == "1"
        assert found["readable"] == []
        if seccomp.profile(True):
            assert own["Seccomp"].strip() == first["Seccomp"].strip() == "2"
            assert found["calls"] == {"unshare": 1, "ptrace": 1, "mount": 1}
            assert found["families"] == {"alg": 97, "vsock": 97, "inet": 0}


@pytest.mark.skipif(not MOVES_OF_USERS, reason="CRIU dumps no other users' processes without CAP_SYS_RESOURCE")
def test_a_program_of_an_account_goes_on_while_its_node_moves(site: Site) -> None:
    script = "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)"
    echo = site.started("ann", "exec", "hers-0", "--", "/usr/bin/python3", "-c", script)
    assert echo.stdin and echo.stdout
    echo.stdin.write("one\n")
    echo.stdin.flush()
    assert echo.stdout.readline() == "one\n"
    move(site, "ann", "hers-0")
    assert echo.communicate("two\n", timeout=60)[0] == "two\n" and echo.returncode == 0


def test_jobs_run_as_the_account(site: Site) -> None:
    """And outlive a move, where processes of users can be moved."""
    program = ring_program("openmpi", site.root.directory)
    options = ("--seconds", "6", "--memory", "2", "--size", "4096", "--pause", "5")
    job = site.started("bob", "run", "his", "-n", "2", "--", program, *options)
    assert job.stdout
    assert job.stdout.readline().startswith("iteration")
    with site.client("bob") as client:
        if MOVES_OF_USERS:
            move(site, "bob", "his-1")
        (running,) = client.jobs("his")
        assert running.uid == client.me()["uid"]
        prefix, groups = f"/{site.root.instance.prefix}/", groups_of(running.uid)
        assert any(".launcher-" in group for group in groups), "beside the nodes its launcher runs"
        assert all(prefix in group for group in groups), "nothing of it is without a limit"
        with pytest.raises(Refused):
            site.client("ann").job(running.id)
    out, err = job.communicate(timeout=SECONDS)
    assert job.returncode == 0, (out[-500:], err)
    assert json.loads(out.splitlines()[-1])["errors"] == 0
    assert groups_of(running.uid) == [] and Cgroup(site.root.instance.prefix).children() != []
    assert not [child for child in Cgroup(site.root.instance.prefix).children() if ".launcher-" in child.name]


@pytest.mark.smoke
def test_programs_that_a_launcher_executes_are_as_confined_as_on_a_node(site: Site) -> None:
    """They see the cluster's own nodes, and nothing else; and none outlives the job."""
    with site.client("ann") as ann, site.client("bob") as bob:
        own, other = (client.nodes(name)[0].address for client, name in ((ann, "hers"), (bob, "his")))
        uid = ann.me()["uid"]
    look = site.root.directory / "look"
    words = [own, other, str(CONTROL_PORT), site.url.rpartition(":")[2]]
    look.write_text(f"#!/usr/bin/python3\nimport sys\nsys.argv[1:] = {words}\n{HOSTILE}")
    look.chmod(0o755)
    options = ("--mca", "plm_rsh_agent", str(look))  # hydra refuses a second agent
    args = [word for option in options for word in ("--launcher-args", option)]
    done = site.asked("ann", "run", "hers", "-n", "1", "--env", "ODD=1", *args, "--", "/bin/true")
    assert done.returncode != 0 and "LOOKED " in done.stderr, (done.stdout, done.stderr)
    found = json.loads(done.stderr.partition("LOOKED ")[2].splitlines()[0])
    assert found.pop("processes") < 20 and found.pop("uid") == uid
    expected = {"others": [], "hidden": [], "own node": True, "confined": True, "mark": "1"}
    if not seccomp.profile(True):
        found = found | {"unshares": False}
    assert found == expected | dict.fromkeys(("other node", "daemon", "run", "mounts", "unshares"), False)
    assert processes_of(uid, "sleep\0987") == []


def test_nothing_of_the_machine_is_bound_or_named(site: Site) -> None:
    clusters = site.root.json("status")["clusters"]
    assert all(cluster["binds"] == [] for cluster in clusters)
    file = site.root.directory / "needs.yaml"
    file.write_text(CLUSTER.format("needs") + "needs: [/etc/shadow]\n")
    done = site.asked("ann", "up", str(file))
    assert done.returncode == 4 and "names none there" in done.stderr
    done = site.asked("ann", "exec", "hers-0", "--wdir", "/etc", "--", "pwd")
    assert done.returncode == 2 and "--wdir" in done.stderr


def test_root_sees_who_did_what(site: Site) -> None:
    entries = site.root.json("audit", "--user", "ann")["entries"]
    made = next(entry for entry in entries if entry["what"] == "POST /v1/clusters" and entry["status"] == 202)
    assert made["address"] == "127.0.0.1"
    operation = site.root.json("op", "show", made["operation"])
    assert (operation["by"], operation["target"]) == ("ann", "hers")


def test_root_administers_users_projects_and_quotas(site: Site) -> None:
    root = site.root
    for words, said in (
        (("user", "list"), "ann "),
        (("project", "add", "team", "--owner", "ann", "--nodes", "3"), "project member team USER"),
        (("project", "member", "team", "bob"), "ann, bob"),
        (("project", "quota", "team", "--memory", "1GiB"), "3 nodes, 8 cores and 1.0 GiB of memory"),
        (("project", "list"), "ann, bob"),
        (("project", "show", "team"), "owner "),
        (("user", "quota", "bob", "--cores", "none"), "any cores"),
        (("user", "show", "bob"), "project  team"),
        (("user", "role", "bob", "viewer"), "role viewer"),
        (("user", "role", "bob", "user"), "role user"),
        (("user", "me"), "role admin"),
        (("user", "allow"), "jobs"),
        (("token", "list"), "wherry login"),
        (("host", "capacity"), " of 4.0 GiB"),
        (("daemon", "listen"), site.url),
        (("event", "list"), "(by ann)"),
        (("project", "member", "team", "bob", "--remove"), "Members of team: ann."),
        (("project", "remove", "team"), "removed"),
    ):
        done = root(*words)
        assert done.returncode == 0 and said in done.stdout, (words, done.stdout, done.stderr)
    for words, code in (
        (("user", "quota", "bob", "--nodes", "many"), 2),
        (("user", "show", "nobody"), 3),
        (("project", "show", "team"), 3),
        (("project", "member", "team", "ann", "--owner", "--remove"), 2),
        (("token", "revoke", "wt-none"), 3),
        (("token", "create", "x"), 2),
        (("daemon", "listen", "nowhere"), 2),
        (("daemon", "listen", "127.0.0.1:1", "--off"), 2),
        (("user", "remove", "ann"), 5),
    ):
        assert root(*words).returncode == code, words
    changed = site.words("user", "password", "bob", text="another long one\n", WHERRY_INSTANCE=root.instance.name)
    assert changed.returncode == 0, changed.stderr
    assert site.asked("bob", "user", "me").returncode == 4, "its tokens have ended"
    words = ("login", site.url, "--user", "bob", "--ca", site.ca)
    again = site.words(*words, text="another long one\n", XDG_CONFIG_HOME=str(site.homes / "bob"))
    assert again.returncode == 0, again.stderr


def test_the_end_of_an_account_is_the_end_of_its_token(site: Site) -> None:
    added = site.root.json("user", "add", "eve", "--no-password", "--role", "viewer")
    assert added["role"] == "viewer"
    text = site.root.json("token", "create", "x", "--user", "eve")["text"]
    with Client.at(site.url, text, site.ca) as client:
        assert client.clusters() == []
        site.root.json("user", "remove", "eve")
        with pytest.raises(Refused) as caught:
            client.clusters()
    assert caught.value.code is Code.UNAUTHENTICATED
    done = site.words("status", WHERRY_URL=site.url, WHERRY_TOKEN=text, WHERRY_CA=site.ca)
    assert done.returncode == 4 and text not in done.stderr


def test_the_job_of_an_account_outlives_the_daemon(site: Site) -> None:
    """Its launcher's sandbox is kept by the holder, and removed by the next daemon."""
    script = "while ! test -e /tmp/go; do sleep 0.1; done; echo continued; exit 6"
    started = site.asked("bob", "run", "his", "-n", "1", "--hosts", "his-0", "--detach", "--", "/bin/sh", "-c", script)
    assert started.returncode == 0, started.stderr
    site.root.kill_daemon()
    site.root.start_daemon()
    assert site.asked("bob", "exec", "his-0", "--", "touch", "/tmp/go").returncode == 0
    logs = site.asked("bob", "logs", "his", "--job", started.stdout.strip(), "--follow")
    assert (logs.stdout, logs.returncode) == ("continued\n", 6), logs.stderr
    assert os.listdir(site.root.instance.run / "launchers") == [".runtime"]
    assert os.listdir(site.root.instance.run / "launchers" / ".runtime") == []


def test_a_restarted_daemon_listens_again(site: Site) -> None:
    site.root.kill_daemon()
    site.root.start_daemon()
    assert site.client("ann").me()["name"] == "ann"
    out = site.asked("bob", "logout")
    assert out.returncode == 0, out.stderr
    assert not (site.homes / "bob" / "wherry" / "client.json").exists()
