"""A user's nodes by OpenSSH's own programs: shell, terminal, files, and the end of all when the key is gone."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from realworld import SECONDS, WHERRY, RealInstance, real_instance

import waiting
from ports import reserved

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
MOVES_OF_USERS = bool(int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16) >> 24 & 1)
"""Whether this process has CAP_SYS_RESOURCE."""
PASSWORD = "four words are long"
CLUSTER = "name: {}\nnodes: 1\ncpus: 0.5\nmemory: 128MiB\n"


@dataclass
class Home:
    """A user's directory with the sign-in, a key of SSH, and the configuration of OpenSSH."""

    root: RealInstance
    path: Path

    def words(self, *words: str, text: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        """A command of the user, for whom there is no instance on this machine."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_", "SSH_"))}
        own = {"XDG_CONFIG_HOME": str(self.path), "WHERRY_INSTANCE": "nowhere"}
        done = subprocess.run(
            words, cwd=self.path, env={**kept, **own}, input=text, capture_output=True, text=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done

    def wherry(self, *words: str, text: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.words(str(WHERRY), *words, text=text, code=code)

    @property
    def config(self) -> str:
        return str(self.path / "config")


@pytest.fixture(scope="module")
def homes() -> Iterator[tuple[Home, Home]]:
    """Two users with a cluster each."""
    with (
        reserved() as port,
        real_instance("tssh", below=Path("/var/tmp")) as root,
        tempfile.TemporaryDirectory() as directory,
    ):
        root.json("daemon", "start")
        state = root.json("daemon", "listen", f"127.0.0.1:{port}", "--ssh")
        root.json("user", "allow", "nodes")
        homes = [Home(root, Path(directory) / name) for name in ("ann", "bob")]
        for home in homes:
            home.path.mkdir()
            name, file = home.path.name, home.path / "cluster.yaml"
            added = subprocess.run(
                [str(WHERRY), "user", "add", name], env={**os.environ, "WHERRY_INSTANCE": root.instance.name},
                input=f"{PASSWORD}\n", text=True, capture_output=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            assert added.returncode == 0, added.stderr
            home.wherry("login", state["url"], "--user", name, "--ca", state["ca"], text=f"{PASSWORD}\n")
            file.write_text(CLUSTER.format(f"of-{name}"))
            home.wherry("up", str(file))
            home.words("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home.path / "key"))
            home.wherry("ssh-key", "add", "laptop", str(home.path / "key.pub"))
            config = home.wherry("ssh-config", "--identity", str(home.path / "key")).stdout
            Path(home.config).write_text(config)
        yield homes[0], homes[1]


@pytest.mark.smoke
def test_a_user_works_on_a_node_by_openssh(homes: tuple[Home, Home]) -> None:
    ann, bob = homes
    key = str(ann.path / "key")
    done = ann.wherry("ssh", "of-ann-0", "-i", key, "--", 'whoami; pwd; echo "a  b" >&2; exit 7', code=7)
    assert (done.stdout, done.stderr) == ("user\n/tmp\n", "a  b\n")
    done = ann.words("ssh", "-F", ann.config, "of-ann-0", "wc -c", text="x" * 3_000_000)
    assert done.stdout == "3000000\n", "input, and its end"
    (ann.path / "file").write_bytes(os.urandom(5_000_000))
    ann.words("scp", "-F", ann.config, "file", "of-ann-0:there")
    ann.words("scp", "-F", ann.config, "of-ann-0:/tmp/there", "back")
    assert (ann.path / "back").read_bytes() == (ann.path / "file").read_bytes()
    lines = 'test -t 0 && echo "terminal $((6*7))"; stty size; exit 5\n'
    done = ann.words("ssh", "-F", ann.config, "-tt", "of-ann-0", text=lines, code=5)
    assert "terminal 42\n" in done.stdout and "24 80\n" in done.stdout
    server = (
        "import socket; s = socket.create_server(('127.0.0.1', 8123)); print('ready', flush=True);"
        "c = s.accept()[0]; c.sendall(c.recv(99).upper())"
    )
    with subprocess.Popen(
        ["ssh", "-F", ann.config, "of-ann-0", f'exec /usr/bin/python3 -c "{server}"'], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True,
    ) as served:  # fmt: skip
        assert served.stdout and served.stdout.readline() == "ready\n"
        assert ann.words("ssh", "-F", ann.config, "-W", "localhost:8123", "of-ann-0", text="word").stdout == "WORD"
    refused = ann.words("ssh", "-F", ann.config, "-W", "localhost:8123", "of-ann-0", code=255)
    assert "Connection refused" in refused.stderr
    # Another's node is not there, and another's key no key.
    other = bob.words("ssh", "-F", bob.config, "-o", "User=bob+of-ann-0", "of-bob-0", "true", code=255)
    assert "no node is named 'of-ann-0'" in other.stderr
    other = bob.words("ssh", "-F", bob.config, "-o", "User=ann+of-ann-0", "of-bob-0", "true", code=255)
    assert "Permission denied (publickey)" in other.stderr
    assert bob.wherry("ssh", "of-ann-0", "--", "true", code=3).stderr.startswith("error NOT_FOUND")
    assert not [job for job in ann.root.json("job", "list")["jobs"] if job["kind"] == "exec"], "none is kept"


@pytest.mark.skipif(not MOVES_OF_USERS, reason="CRIU dumps no other users' processes without CAP_SYS_RESOURCE")
def test_a_session_continues_while_its_node_moves(homes: tuple[Home, Home]) -> None:
    ann = homes[0]
    with subprocess.Popen(
        ["ssh", "-F", ann.config, "of-ann-0", "echo began; read word; echo $word"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        assert client.stdin and client.stdout and client.stdout.readline() == "began\n"
        for host in ("b1", "a2"):
            ann.wherry("move", "of-ann-0", "--to", host)
        assert client.communicate("word\n", timeout=SECONDS)[0] == "word\n"
        assert client.returncode == 0


def running(text: str) -> list[str]:
    """Processes of this machine with this word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if text.encode() in path.read_bytes().split(b"\0") else []
        except OSError:
            pass
    return found


def test_programs_end_with_their_connection(homes: tuple[Home, Home]) -> None:
    ann = homes[0]
    for ending in ("client", "daemon"):
        length = {"client": "98761", "daemon": "98762"}[ending]
        client = subprocess.Popen(
            ["ssh", "-F", ann.config, "of-ann-0", f"exec /bin/sleep {length}"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        waiting.until(lambda length=length: running(length), "the program")  # type: ignore[misc]
        if ending == "client":
            client.kill()
        else:
            ann.root.kill_daemon()
        client.wait(SECONDS)
        waiting.until(lambda length=length: not running(length), "the program's end")  # type: ignore[misc]
    ann.root.start_daemon()
    assert ann.words("ssh", "-F", ann.config, "of-ann-0", "echo again").stdout == "again\n"


def test_the_end_of_a_key(homes: tuple[Home, Home]) -> None:
    bob = homes[1]
    assert "laptop" in bob.wherry("ssh-key", "list").stdout
    private = bob.wherry("ssh-key", "add", "other", str(bob.path / "key"), code=2).stderr
    assert "is a private key" in private
    bob.wherry("ssh-key", "remove", "laptop")
    gone = bob.words("ssh", "-F", bob.config, "of-bob-0", "true", code=255)
    assert "Permission denied (publickey)" in gone.stderr
