"""Reads that are not repeated while nobody writes: never an old result, also when another process wrote."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from wherry.model.queue import WaitingCluster
from wherry.model.records import Cluster, ClusterState
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.parse import parse
from wherry.store import Store
from wherry.store.unchanged import UnchangedReads


def cluster(name: str) -> Cluster:
    spec = parse(ClusterSpec, {"name": name, "nodes": 1, "memory": "256MiB"}, "test")
    return Cluster(
        name=name, spec=spec, state=ClusterState.RUNNING, network=1, subnet="10.77.1.0/24", head_host="a1",
        owner_uid=0, owner_gid=0, created=1.5,
    )  # fmt: skip


def statements(store: Store) -> list[str]:
    found: list[str] = []

    def note(_connection: object, _cursor: object, text: str, *_: object) -> None:
        found.append(text)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    return found


def test_a_second_read_asks_the_database_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    store.put_cluster(cluster("one"))
    store.put_secret("key", "hidden")

    def read() -> list[object]:
        some = [store.clusters(), store.cluster("one"), store.cluster("none"), store.nodes(), store.nodes("one")]
        more = [store.node("one-0"), store.jobs_under_way(), store.setting("auto"), store.secret("key")]
        return [*some, *more, store.flags_of_hosts(), store.leases.all(), store.queue.all()]

    first, made = read(), statements(store)
    assert read() == first
    assert made == []
    store.put_setting("auto", "on")
    made.clear()
    assert read() != first
    assert made
    store.close()


def test_a_caller_may_change_its_own_result(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    store.put_cluster(cluster("one"))
    store.set_host_flag("a1", "drained", True)
    for _ in range(2):
        clusters, flags, leases, queue = store.clusters(), store.flags_of_hosts(), store.leases.all(), store.queue.all()
        assert (len(clusters), flags, leases, queue) == (1, {"a1": ["drained"]}, {}, [])
        clusters.clear()
        flags["a1"].clear()
        leases["one"] = object()  # type: ignore[assignment]
        queue.append(WaitingCluster.model_construct())
    store.close()


def test_the_write_of_another_process_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(path)
    assert store.setting("auto") == ""
    write = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])"
    for value in ("on", "off"):
        text = f"INSERT OR REPLACE INTO settings (name, value) VALUES ('auto', '{value}')"
        subprocess.run([sys.executable, "-c", write, path, text], check=True)
        assert store.setting("auto") == value
    store.close()


def test_no_thread_reads_what_was_there_before_its_own_write(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    wrong: list[str] = []

    def count(name: str) -> None:
        for number in range(60):
            store.put_setting(name, str(number))
            if (found := store.setting(name)) != str(number):
                wrong.append(f"{name} is {found}, not {number}")

    threads = [threading.Thread(target=count, args=(f"setting-{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    store.close()


def test_a_result_read_while_another_connection_wrote_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE t (x)")
    reads = UnchangedReads(path)

    def while_written() -> str:
        writer.execute("INSERT INTO t VALUES (1)")
        return "before"

    assert reads.read("x", while_written) == "before"
    assert reads.read("x", lambda: "after") == "after"
    assert reads.read("x", lambda: "not read") == "after"
    reads.close()
    assert reads.read("x", lambda: "anew") == "anew"
    reads.close()
    writer.close()


def test_an_error_is_not_kept_and_without_a_file_nothing_is(tmp_path: Path) -> None:
    def failing() -> str:
        raise ValueError

    path = tmp_path / "some.db"
    sqlite3.connect(path).close()
    reads = UnchangedReads(path)
    with pytest.raises(ValueError):
        reads.read("x", failing)
    assert reads.read("x", lambda: "read") == "read"
    reads.close()
    for file in (None, tmp_path / "missing.db"):
        nothing = UnchangedReads(file)
        assert nothing.read("x", lambda: "once") == "once"
        assert nothing.read("x", lambda: "again") == "again"
        nothing.close()
