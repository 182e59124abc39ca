"""The lease of a PostgreSQL database: one daemon writes, whatever another that was stopped does when it continues."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import waiting
from postgresql_server import Server
from wherry.base.errors import Failed, Refused
from wherry.store import Store
from wherry.store import lease as leases
from wherry.store.address import database_url
from wherry.store.database import IDLE_SECONDS, Database
from wherry.store.lease import LEASE_SECONDS, Lease
from wherry.store.tables import leadership

WRITER = """
import os, signal, sys
from wherry.store import Store, database, tables
from wherry.store.address import database_url
from wherry.store.lease import Lease
store = Store(database_url(sys.argv[1]))
lease = Lease(store.database, lambda: print("lost", flush=True))
assert lease.take("place", "writer", certain=True)
store.put_setting("before", "x")
try:
    with store.database.write() as connection:
        connection.execute(tables.settings.insert().values(name="half", value="x"))
        bound = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()
        assert bound == f"{database.IDLE_SECONDS}s", bound
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 1")  # a millisecond
        print("waits", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        connection.execute(tables.settings.insert().values(name="other half", value="x"))
except Exception as error:
    print("failed:", error, flush=True)
try:
    store.put_setting("after", "x")
except Exception as error:
    print("failed:", error, flush=True)
"""


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.new_schema()


@pytest.fixture
def stores(url: str) -> Iterator[list[Store]]:
    found = [Store(database_url(url)) for _ in range(2)]
    yield found
    for store in found:
        store.close()


def test_a_lease_that_is_renewed_cannot_be_taken(stores: list[Store]) -> None:
    one, other = (Lease(store.database) for store in stores)
    assert one.take("place", "one")
    assert not other.take("place", "other")
    assert one.renew() and one.read() == (1, "place", "one", True)


def test_who_lost_the_lease_writes_nothing(stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    lost = list[str]()
    one, other = Lease(stores[0].database, lambda: lost.append("one")), Lease(stores[1].database)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.05)
    assert one.take("place", "one")
    stores[0].put_setting("a", "one")
    waiting.until(lambda: not one.read().valid, "the end of the lease")
    stores[0].put_setting("b", "one")  # nobody else leads
    assert other.take("place", "other") and other.read().epoch == 2
    for write in (lambda: stores[0].put_setting("a", "late"), lambda: stores[0].add_event("a", "b", "c")):
        with pytest.raises(Refused, match="does not lead any more"):
            write()
    assert not one.renew() and lost == ["one"] * 3
    assert stores[0].setting("a") == "one" and stores[1].events() == []
    stores[1].put_setting("a", "other")


def test_taking_waits_for_a_writer_and_renewing_does_not(stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_TAKING_SECONDS", 0.1)
    one, other = (Lease(store.database) for store in stores)
    assert one.take("place", "one")
    began, go = threading.Event(), threading.Event()

    def write() -> None:
        with stores[0].database.write():
            began.set()
            go.wait()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    began.wait()
    assert one.renew()
    with pytest.raises(Failed, match="cannot be written"):
        other.take("place", "other", certain=True)
    go.set()
    writer.join()
    assert other.take("place", "other", certain=True)


def test_a_writer_that_was_stopped_in_a_transaction_writes_nothing(url: str) -> None:
    """The server ends its session after a moment, for half a minute; the test ends its lease."""
    assert IDLE_SECONDS < LEASE_SECONDS
    process = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "waits\n"
        store = Store(database_url(url))
        lease = Lease(store.database)
        assert not lease.take("place", "other"), "its lease is valid"
        with store.database.write_unasked() as connection:
            connection.execute(leadership.update().values(expires=0.0))

        def taken() -> bool:
            try:
                return lease.take("place", "other")
            except Failed:  # it holds the row until the server ends its session
                return False

        waiting.until(taken, "the end of its session")
        process.send_signal(signal.SIGCONT)
        said = process.communicate()[0]
    finally:
        process.kill()
        process.wait()
    assert [line.partition(":")[0] for line in said.splitlines()].count("failed") == 2  # the server's text may have it
    assert "does not lead any more" in said and "lost" in said
    assert store.setting("before") == "x"
    assert not any(store.setting(name) for name in ("half", "other half", "after"))
    store.put_setting("mine", "x")


def test_a_restart_of_the_server_ends_no_leadership(stores: list[Store], postgresql: Server) -> None:
    """Its connections are gone, its rows are not."""
    lease = Lease(stores[0].database)
    assert lease.take("place", "one")
    name = str(stores[0].database.shown).rpartition("/")[2]
    with postgresql.connect("postgres") as connection:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = %s"
        connection.execute(ended, [name])
    assert lease.renew()
    stores[0].put_setting("a", "b")


def test_another_state_directory_is_refused(stores: list[Store], url: str) -> None:
    lease = Lease(stores[0].database)
    assert lease.take("place", "one")
    with pytest.raises(Refused, match="belongs to another instance"):
        Lease(stores[1].database).take("other place", "two", certain=True)
    lease.require_own("place")
    Lease(Database(database_url(url))).require_own("place")
    assert lease.read().epoch == 1
