"""The store: every record comes back as it went in, also after `kill -9`, also from many threads."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.model.accounts import Quota, Role
from wherry.model.balance import Kind
from wherry.model.ec2 import KeyPair, PlacementGroup, Reservation, Tags
from wherry.model.program import ProgramProfile
from wherry.model.records import (
    Cluster,
    ClusterState,
    Job,
    JobState,
    Move,
    Node,
    NodeState,
    Operation,
    OperationState,
    Phase,
    ProgramKey,
    Round,
)
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.service.operations import Operations
from wherry.store import Store, tables
from wherry.store.address import Address

FABRIC = {
    "kind": "fabric",
    "version": 1,
    "name": "two",
    "sites": [{"name": "a"}, {"name": "b"}],
    "hosts": [
        {"name": "a1", "site": "a", "cores": 1, "memory": "2GiB", "facts": {"memory": "1GiB"}},
        {"name": "b1", "site": "b", "cores": 0.5, "memory": "1536MiB"},
    ],
    "links": [
        {"between": ["a", "b"], "latency": "20ms", "jitter": "1ms", "reverse": {"bandwidth": "1Gbit/s", "loss": "1%"}}
    ],
}


@pytest.fixture
def store(address: Address, tmp_path: Path) -> Iterator[Store]:
    store = Store(address, tmp_path / "secrets.key")
    yield store
    store.close()


def cluster(name: str = "hello") -> Cluster:
    spec = parse(ClusterSpec, {"name": name, "nodes": 2, "memory": "256MiB", "needs": ["/usr/bin/true"]}, "test")
    return Cluster(
        name=name, spec=spec, state=ClusterState.RUNNING, network=1, subnet="10.77.1.0/24", head_host="a1",
        owner_uid=1000, owner_gid=1000, binds=("/home/u",), created=1.5,
    )  # fmt: skip


def node(index: int, cluster: str = "hello") -> Node:
    return Node(
        name=f"{cluster}-{index}", cluster=cluster, index=index, host="a1", address=f"10.77.1.{index + 1}",
        mac=f"02:77:00:00:01:{index:02x}", cpus=0.5, memory=2**28, state=NodeState.RUNNING,
    )  # fmt: skip


def test_the_directory_and_the_file_are_the_owners_alone(tmp_path: Path) -> None:
    Store(tmp_path / "state" / "wherry.db").put_secret("hello", "k")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "state").iterdir()} == {0o600}


REAL_HOST = {"name": "a1", "site": "a", "cores": 1, "memory": "2GiB", "uri": "ssh://root@a1", "address": "127.0.0.1"}
LEASED = {**FABRIC, "driver": "ssh", "lease": "45s", "links": [], "hosts": [REAL_HOST]}


@pytest.mark.parametrize("file", [FABRIC, LEASED])
def test_the_fabric_keeps_its_sizes_and_durations(store: Store, file: dict[str, object]) -> None:
    assert store.fabric() is None
    spec = parse(FabricSpec, file, "test")
    store.put_fabric(spec)
    assert store.fabric() == spec
    store.put_fabric(None)
    assert store.fabric() is None


def test_host_flags(store: Store) -> None:
    assert not store.host_flag("a1", "drained")
    store.set_host_flag("a1", "drained", True)
    assert store.host_flag("a1", "drained") and not store.host_flag("a2", "drained")
    store.set_host_flag("a1", "drain at 9", True)
    store.set_host_flag("b1", "lost", True)
    assert store.host_flags("a1") == ["drain at 9", "drained"]
    assert store.flags_of_hosts() == {"a1": ["drain at 9", "drained"], "b1": ["lost"]}
    store.set_host_flag("a1", "drained", False)
    assert not store.host_flag("a1", "drained")


def test_a_cluster_goes_with_its_nodes(store: Store) -> None:
    store.put_cluster(cluster())
    for index in (10, 2, 1):
        store.put_node(node(index))
    store.put_node(node(0, "other"))
    assert store.cluster("hello") == cluster()
    assert [n.index for n in store.nodes("hello")] == [1, 2, 10]
    moved = node(2).model_copy(update={"host": "b1"})
    store.put_node(moved)
    assert store.node("hello-2") == moved
    store.drop_node("hello-10")
    assert len(store.nodes()) == 3
    store.drop_cluster("hello")
    assert store.clusters() == [] and [n.name for n in store.nodes()] == ["other-0"]


def test_secrets(store: Store) -> None:
    store.put_secret("hello", "one")
    store.put_secret("hello", "two")
    assert store.secret("hello") == "two"
    store.drop_secret("hello")
    with pytest.raises(Refused) as caught:
        store.secret("hello")
    assert caught.value.code is Code.NOT_FOUND


def test_jobs_moves_and_operations(store: Store) -> None:
    job = Job(
        id="job-1", cluster="hello", argv=("./a", "-x"), ranks=4, mpi="openmpi", uid=0, gid=0, cwd="/",
        state=JobState.RUNNING, created=2.0,
    )  # fmt: skip
    store.put_job(job)
    assert store.jobs() == store.jobs("hello") == [job] and store.jobs("x") == []
    others = [job.model_copy(update={"id": f"job-{state}", "state": state}) for state in JobState]
    for other in others:
        store.put_job(other)
    assert store.jobs_under_way() == [job, *(other for other in others if other.state.under_way)]
    store.drop_job("job-1")
    assert store.job("job-1") is None

    move = Move(
        id="mv-1", node="hello-1", cluster="hello", source="a1", destination="b1", phase=Phase.FREEZE, created=1.0,
        rounds=(Round(number=1, bytes=5, seconds=0.5),), phases={"rounds": 0.5},
    )  # fmt: skip
    store.put_move(move)
    assert store.moves(unfinished=True) == [move] and store.move("mv-1") == move
    store.put_move(move.model_copy(update={"phase": Phase.DONE}))
    assert store.moves(unfinished=True) == [] and len(store.moves()) == 1

    operation = Operation(id="op-1", kind="up", target="hello", state=OperationState.RUNNING, created=1.0)
    store.put_operation(operation)
    assert store.operations(running=True) == [operation]
    store.put_operation(operation.model_copy(update={"state": OperationState.DONE, "result": {"a": [1]}}))
    assert store.operations(running=True) == []
    assert store.operation("op-1").result == {"a": [1]}  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["plain", 'a "quoted" one', "caf\u00e9", "50%_\\"])
def test_an_operation_is_found_by_its_idempotency_key(store: Store, key: str) -> None:
    one = Operation(id="op-1", kind="up", target="hello", state=OperationState.DONE, created=1.0, uid=7, key=key)
    store.put_operation(one)
    assert store.operation_with_key(7, key) == one
    assert store.operation_with_key(8, key) is None and store.operation_with_key(7, f"{key}x") is None


def test_events_are_numbered_in_order(store: Store) -> None:
    first = store.add_event("node", "hello-1", "lost", host="a1")
    second = store.add_event("node", "hello-2", "lost")
    assert second.id > first.id > 0
    assert store.events() == [first, second]
    assert store.events(after=first.id) == [second] and store.events(limit=1) == [first]


def test_what_is_old_is_pruned_and_what_runs_is_not(store: Store) -> None:
    running = Operation(id="op-0", kind="up", target="hello", state=OperationState.RUNNING, created=0.5)
    move = Move(
        id="mv-0", node="hello-1", cluster="hello", source="a1", destination="b1", phase=Phase.FREEZE, created=0.5
    )
    for number in range(5):
        told = {"id": f"op-{number}", "created": float(number), "state": OperationState.DONE}
        store.put_operation(running.model_copy(update=told if number else {}))
        done = {"id": f"mv-{number}", "created": float(number), "phase": Phase.DONE}
        store.put_move(move.model_copy(update=done if number else {}))
        last = store.add_event("test", "hello", str(number))
    store.prune(events=3, others=2)
    assert [event.text for event in store.events()] == ["2", "3", "4"]
    assert [found.id for found in store.operations()] == ["op-0", "op-3", "op-4"]
    assert [found.id for found in store.moves()] == ["mv-0", "mv-3", "mv-4"]
    assert store.add_event("test", "hello", "next").id == last.id + 1


def test_no_idempotency_key_is_forgotten_while_its_request_may_be_repeated(store: Store) -> None:
    """However many other operations ended meanwhile."""
    old = Operation(id="old", kind="up", target="hello", state=OperationState.DONE, created=now() - 1000, key="k-old")
    store.put_operation(old)
    for number in range(5):
        change = {"id": f"op-{number}", "created": now(), "key": f"k-{number}"}
        store.put_operation(old.model_copy(update=change))
    store.prune(others=0)
    assert store.operation_with_key(0, "k-0") and store.operation_with_key(0, "k-old") is None


def test_rows_are_in_the_order_of_their_insertion_whatever_the_clock_said(store: Store) -> None:
    """It was set back between each two of them."""
    move = Move(id="", node="hello-1", cluster="hello", source="a1", destination="b1", phase=Phase.DONE, created=0.0)
    operation = Operation(id="", kind="up", target="hello", state=OperationState.DONE, created=0.0)
    assert store.newest_move() == ""
    for number in range(4):
        change = {"id": f"x-{(number * 7) % 4}", "created": 100.0 - number}
        store.put_move(move.model_copy(update=change | {"phase": Phase.FREEZE}))
        store.put_operation(operation.model_copy(update=change))
    for row in store.moves():
        store.put_move(row.model_copy(update={"phase": Phase.DONE}))  # its place stays
    order = ["x-0", "x-3", "x-2", "x-1"]
    assert [row.id for row in store.moves()] == [row.id for row in store.operations()] == order
    assert store.newest_move() == "x-1"
    store.prune(others=2)
    assert [row.id for row in store.moves()] == [row.id for row in store.operations()] == order[2:]


def test_many_threads_write_at_once(store: Store) -> None:
    def write(number: int) -> None:
        for step in range(10):
            store.put_node(node(number))
            store.add_event("test", str(number), str(step))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.nodes()) == 8 and len(store.events()) == 80


def test_what_was_written_survives_kill_9(address: Address, tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\nfrom wherry.store import Store\n"
        "from wherry.store.address import database_url\n"
        "where = database_url(sys.argv[1]) if ':' in sys.argv[1] else pathlib.Path(sys.argv[1])\n"
        "s = Store(where, pathlib.Path(sys.argv[2]))\n"
        "s.put_secret('hello', 'key')\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    where = str(address) if isinstance(address, Path) else address.render_as_string(hide_password=False)
    keys = tmp_path / "secrets.key"
    ended = subprocess.run([sys.executable, "-c", program, where, keys], timeout=60, env=os.environ.copy())
    assert ended.returncode == -signal.SIGKILL
    assert Store(address, keys).secret("hello") == "key"


def test_a_commit_waits_for_the_disk_while_nodes_run_on_other_machines(tmp_path: Path) -> None:
    """The rows after a power cut then: tests/integration/test_power_cut.py."""
    store = Store(tmp_path / "state.db")

    def waits() -> bool:
        with store._write() as connection:
            return connection.scalar(sa.text("PRAGMA synchronous")) == 2

    assert not waits()
    store.put_fabric(fabric := FabricSpec.model_validate(LEASED))
    assert waits()
    store.close()
    store = Store(tmp_path / "state.db")
    assert waits() and store.fabric() == fabric
    store.put_fabric(None)
    assert not waits()


def test_numbers_and_times_are_exact(store: Store) -> None:
    """Values that 32 bits or a decimal would cut."""
    program = ProgramKey(name="a", digest="", arguments=(), ranks=1, uid=2**32 - 2)
    profile = ProgramProfile(
        key="k", program=program, kind=Kind.CPU, reason="", time=0, ran=0, seconds=1, runs=1, job="", imbalance=1,
        ranks=(),
    )  # fmt: skip
    store.put_program(profile)
    assert store.programs(2**32 - 2) == [profile] and store.programs(0) == []
    time = 1_764_217_990.123_456_7
    store.put_operation(Operation(id="op", kind="up", target="a", state=OperationState.DONE, created=time, ended=time))
    assert store.operation("op").created == time  # type: ignore[union-attr]
    with store._read() as connection:
        assert connection.scalar(sa.select(tables.operations.c.created)) == time
        assert connection.scalar(sa.select(tables.programs.c.uid)) == 2**32 - 2
    assert store.events(after=2**53, limit=1) == []


def test_a_name_that_no_text_can_have_is_not_found(store: Store) -> None:
    assert store.node("a\0b") is None and store.operation("\0") is None
    assert store.newest_event("job.end", "job\0", among="jobs.removed") is None
    assert store.add_event("job.end", "job\0", "a\0b").target == "job\\x00"


# A refusal of SQLite reaches the user as an error with a reason and a remedy, not as a mistake of ours.


def test_a_full_disk(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    operations = Operations(store)
    store.close()

    @sa.event.listens_for(store._engine, "connect")
    def _full(connection, _record) -> None:
        connection.execute("PRAGMA max_page_count=1")

    with pytest.raises(Failed) as refused:
        for number in range(1000):
            store.put_setting(f"name {number}", "x" * 10_000)
    assert refused.value.code is Code.FAILED and "full" in refused.value.why and refused.value.next.startswith("df -h ")
    with pytest.raises(Failed, match="cannot be written"):
        operations.start("up", "x" * 10_000, lambda _: None)
    assert operations.conflicting_operation(exclusive=["cluster x"]) is None
    assert store.setting("name 1") in ("", "x" * 10_000)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "wherry.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Failed) as refused:
        Store(tmp_path / "wherry.db")
    assert "not a database" in refused.value.why and str(tmp_path) in refused.value.why


def test_a_newer_database(tmp_path: Path) -> None:
    Store(tmp_path / "wherry.db").close()
    with sqlite3.connect(tmp_path / "wherry.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Refused) as refused:
        Store(tmp_path / "wherry.db")
    assert refused.value.code is Code.VERSION_MISMATCH and "newer" in refused.value.what


def test_a_mistake_of_ours_stays_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    with pytest.raises(sa.exc.IntegrityError), store._write() as connection:
        connection.execute(sa.text("INSERT INTO settings (name, value) VALUES ('a', NULL)"))


def test_a_row_of_another_version(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    with sqlite3.connect(tmp_path / "wherry.db") as connection:
        record = '{"id": "job-1", "of_later": 1}'
        connection.execute("INSERT INTO jobs (id, cluster, created, record) VALUES ('job-1', 'a', 1.0, ?)", [record])
    with pytest.raises(Failed) as refused:
        store.jobs()
    assert refused.value.code is Code.VERSION_MISMATCH and "of_later" in refused.value.why
    assert "wherry down --all" in refused.value.next


# The rows of the EC2 Query API, in either database.


def group(id: str, uid: int, name: str) -> PlacementGroup:
    return PlacementGroup(id=id, uid=uid, created=1.0, name=name, strategy="spread")


def test_objects(address: Address) -> None:
    store = Store(address)
    one = group("pg-1", 7, "near")
    assert store.ec2.add(one)
    assert not store.ec2.add(group("pg-2", 7, "near")), "an owner has a name once"
    assert store.ec2.add(group("pg-3", 8, "near")), "and another owner, too"
    assert store.ec2.add(KeyPair(id="pg-1", uid=7, created=1.0, name="near", type="rsa", fingerprint="", public=""))
    assert store.ec2.named(PlacementGroup, 7, "near") == one == store.ec2.one(PlacementGroup, "pg-1")
    assert store.ec2.named(PlacementGroup, 9, "near") is None is store.ec2.one(Tags, "pg-1")
    assert [found.id for found in store.ec2.all(PlacementGroup)] == ["pg-1", "pg-3"]
    store.ec2.put(one.model_copy(update={"strategy": "cluster"}))
    found = store.ec2.one(PlacementGroup, "pg-1")
    assert found and found.strategy == "cluster"
    assert store.ec2.drop(PlacementGroup, "pg-1") and not store.ec2.drop(PlacementGroup, "pg-1")
    assert len(store.ec2.all(KeyPair)) == 1
    store.close()


def test_a_reservation_is_found_by_its_token(address: Address) -> None:
    store = Store(address)
    made = Reservation(id="r-1", uid=7, created=1.0, cluster="c", count=2, type="w1.nano", image="ami-1", token="t")
    assert store.ec2.add(made) and not store.ec2.add(made.model_copy(update={"id": "r-2"}))
    assert store.ec2.named(Reservation, 7, "token t") == made
    assert store.ec2.add(made.model_copy(update={"id": "r-3", "token": ""}))
    store.close()


def test_they_end_with_their_account(address: Address) -> None:
    store = Store(address)
    ann = store.accounts.add_user("ann", Role.USER, Quota(), "", lambda uid: True)
    bob = store.accounts.add_user("bob", Role.USER, Quota(), "", lambda uid: True)
    for number, uid in enumerate((ann.uid, bob.uid)):
        assert store.ec2.add(group(f"pg-{number}", uid, "near"))
    store.accounts.drop_user("ann")
    assert [found.uid for found in store.ec2.all(PlacementGroup)] == [bob.uid]
    store.close()
