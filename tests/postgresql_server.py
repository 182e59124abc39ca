"""Debian's PostgreSQL server for tests: as an unprivileged user, on a Unix socket in a directory that is removed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg

import waiting

PASSWORD = "pass:word@1/2"
"""It has letters that a URL has for itself."""
QUOTED = "pass%3Aword%401%2F2"
_USER = "nobody"
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB", "listen_addresses=")


def programs() -> Path | None:
    """The directory of the newest server's programs; None without the package postgresql."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class Server:
    """A running server. Each test has a database of its own."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory, self.process = directory, process
        self._numbers = count(1)

    def url(self, database: str) -> str:
        """The URL of a database, with the password."""
        return f"postgresql://wherry:{QUOTED}@/{database}?host={self.directory}"

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test{next(self._numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def new_schema(self) -> str:
        """The URL of a new, empty schema: to a store the same as a database, and made faster."""
        name = f"schema{next(self._numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}&options=-csearch_path%3D{name}"

    def connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        """A connection of the server's superuser, each statement a transaction."""
        place = {"host": str(self.directory), "user": "wherry", "password": PASSWORD}
        return psycopg.connect(dbname=database, autocommit=True, connect_timeout=10, **place)


@contextmanager
def postgresql_server() -> Iterator[Server]:
    """A server until the end of the block."""
    found = programs()
    assert found, "the package postgresql is not installed: scripts/setup-test"
    user = {}
    top = Path(tempfile.mkdtemp(prefix="wherry-pg-"))
    try:
        if os.geteuid() == 0:  # which the server refuses to run as
            entry = pwd.getpwnam(_USER)
            user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            shutil.chown(top, entry.pw_uid, entry.pw_gid)
        (top / "password").write_text(PASSWORD)
        (top / "password").chmod(0o644)
        data, words = top / "data", ["--no-sync", "--auth=scram-sha-256", "--username=wherry", "--encoding=UTF8"]
        made = subprocess.run(
            [found / "initdb", *words, "--locale=C.UTF-8", f"--pwfile={top / 'password'}", "-D", data],
            capture_output=True, text=True, cwd="/", **user,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        options = [word for option in _FAST for word in ("-c", option)]
        with open(top / "log", "wb") as log:
            process = subprocess.Popen(
                [found / "postgres", "-D", data, "-k", top, *options], stdout=log, stderr=log, cwd="/", **user
            )
        server = Server(top, process)
        try:
            _await(server)
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(waiting.bound())
    finally:
        shutil.rmtree(top)


def _await(server: Server) -> None:
    def answers() -> bool:
        try:
            server.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    log = (server.directory / "log").read_text
    waiting.until(lambda: server.process.poll() is not None or answers(), log)
    assert server.process.poll() is None, log()
