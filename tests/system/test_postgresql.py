"""An instance whose records are in PostgreSQL: jobs, moves, a daemon that is killed or stopped, its standby."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from realworld import RealInstance, eventually, real_instance

from postgresql_server import PASSWORD, QUOTED, Server
from wherry.client import Client, daemon_process
from wherry.client.transport import send
from wherry.model.records import OperationState
from wherry.service.database_choice import note_of
from wherry.store.address import database_url
from wherry.store.database import Database
from wherry.store.lease import Lease

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

NODE, SOURCE, DESTINATION = "two-1", "a2", "b1"
DEATHS = 4
TAKE_OVER, FROM_STANDING = 10.0, 40.0
"""Seconds within which the standby leads: after a daemon's death, and after it is stopped."""
LOOSE = "10 s for recovery on a machine of two idle cores, and 30 for which a leader may be stopped"


@pytest.fixture(scope="module")
def two(postgresql: Server) -> Iterator[RealInstance]:
    """Two nodes on a1 and a2, of which the second is moved. At the end the database is as empty as the machine."""
    url = postgresql.new_database()
    with real_instance("tpgs", WHERRY_FAULTS="1", WHERRY_DATABASE_URL=url) as created:
        created.up("two", 2)
        del created.environment["WHERRY_DATABASE_URL"]  # later shells lack it
        yield created
    with postgresql.connect(url.partition("?")[0].rpartition("/")[2]) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert tables == [("alembic_version",)]


@pytest.fixture
def standby(two: RealInstance) -> int:
    """Process id of a standby beside the daemon."""
    two.start_daemon()
    status = two.json("daemon", "start", "--standby")
    assert status["standby"] not in (None, status["process"])
    return int(status["standby"])


def leads(two: RealInstance, pid: int) -> bool:
    """Whether this process answers as the daemon. Starts none."""
    if daemon_process.holder(two.instance) != pid or not two.instance.socket.exists():
        return False
    try:
        return send(str(two.instance.socket), "GET", "/healthz", None, {}).body == b'{"status":"ok"}'
    except OSError:
        return False


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to learn of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def seconds_until_it_leads(two: RealInstance, pid: int) -> float:
    began = time.monotonic()
    assert eventually(lambda: leads(two, pid), True, pause=0.05)
    return time.monotonic() - began


def said(two: RealInstance) -> str:
    """All that others may see of an instance: command lines, its log, the doctor's findings."""
    texts = [two("doctor").stdout, two("daemon", "status").stdout, (two.instance.state / "log").read_text()]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(entry.read_text(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(texts)


def test_a_killed_daemon_is_followed_by_one_that_knows_all(two: RealInstance) -> None:
    """Under a job: a move, then one at whose commit the daemon dies."""
    assert not two.instance.database_file.exists()

    def move_and_die() -> None:
        two.move(NODE, DESTINATION)
        first = daemon_process.holder(two.instance)
        operation = two.begin_move(NODE, SOURCE, fault="commit:kill")
        assert eventually(lambda: daemon_process.holder(two.instance) != first, True)
        two.start_daemon()
        assert two.assert_one_copy("two")[NODE] == SOURCE
        with Client(two.instance) as client:
            assert client.wait(operation).state == OperationState.DONE

    two.run_under_ring("two", "openmpi", move_and_die, ranks=2, pause=4)
    told = said(two)
    assert "PostgreSQL" in told and not any(word in told for word in (PASSWORD, QUOTED))


def test_a_standby_says_who_leads_and_ends_with_the_daemon(two: RealInstance, standby: int) -> None:
    path = str(two.instance.standby_socket)
    answer = send(path, "GET", "/v1/clusters", None, {})
    leader = daemon_process.holder(two.instance)
    assert answer.status == 503 and f"process {leader} leads" in json.loads(answer.body)["detail"]
    assert send(path, "POST", "/v1/clusters", b"{}", {}).status == 503
    assert json.loads(send(path, "GET", "/healthz", None, {}).body) == {"status": "standby"}
    second = two("daemon", "start", "--standby")
    assert second.returncode == 5 and "standby runs already" in second.stderr
    assert two.json("daemon", "stop")["stopped"] == leader
    assert daemon_process.holder(two.instance, "standby") is None and has_ended(standby)


@pytest.mark.measures(LOOSE)
def test_a_standby_takes_over_from_a_dead_daemon(two: RealInstance, standby: int) -> None:
    """A job, and a move that the dead daemon was at, continue or are rolled back; no client starts a third daemon."""
    with two.ring("two", "openmpi", ranks=2, pause=4) as ring:
        source = two.hosts_of("two")[NODE]
        with two.held_move(NODE, {SOURCE: DESTINATION, DESTINATION: SOURCE}[source], "restore") as move:
            two.kill_daemon()
        seconds = seconds_until_it_leads(two, standby)
        assert two.assert_one_copy("two")[NODE] == source
        with Client(two.instance, start=False) as client:
            ended = client.operation(move.operation)
            assert ended.state == OperationState.FAILED and "the daemon was stopped" in str(ended.error)
        assert ring.running()
        ring.result()
    print(f"\nfrom a dead daemon: {seconds:.1f} s")
    assert seconds < TAKE_OVER


@pytest.mark.measures(LOOSE)
def test_a_standby_takes_over_from_a_daemon_that_stands_still(two: RealInstance, standby: int) -> None:
    leader = daemon_process.holder(two.instance)
    assert leader
    os.kill(leader, signal.SIGSTOP)
    try:
        seconds = seconds_until_it_leads(two, standby)
    finally:
        if not has_ended(leader):
            os.kill(leader, signal.SIGCONT)
    assert has_ended(leader)
    two.move(NODE, DESTINATION if two.hosts_of("two")[NODE] == SOURCE else SOURCE)
    two.assert_one_copy("two")
    print(f"\nfrom a stopped daemon: {seconds:.1f} s")
    assert seconds < FROM_STANDING


def test_a_client_that_finds_the_daemon_dead_waits_for_the_standby(two: RealInstance, standby: int) -> None:
    two.kill_daemon()
    assert eventually(lambda: two("status").returncode, 0) == 0
    assert daemon_process.holder(two.instance) == standby


def test_a_daemon_whose_lease_was_taken_ends_itself(two: RealInstance) -> None:
    """As a daemon would that was stopped, when nobody could end it."""
    two.start_daemon()
    leader, note = daemon_process.holder(two.instance), note_of(two.instance)
    assert leader and note
    database = Database(database_url(note.url))
    assert Lease(database).take(note.id, "another", certain=True)
    database.close()
    assert eventually(lambda: has_ended(leader), True)
    assert "another daemon has taken over" in (two.instance.state / "log").read_text()
    two.start_daemon()
    two.assert_one_copy("two")


def test_deaths_at_random_moments_lose_no_operation(two: RealInstance) -> None:
    """Each leader dies at some moment of a move; each standby that follows has all operations begun before."""
    random, begun = Random(DEATHS), list[str]()
    for _ in range(DEATHS):
        two.start_daemon()
        two.json("daemon", "start", "--standby")
        here = two.assert_one_copy("two")[NODE]
        begun.append(two.begin_move(NODE, DESTINATION if here == SOURCE else SOURCE))
        time.sleep(random.uniform(0.0, 1.0))
        two.kill_daemon()
        assert eventually(lambda: two("status").returncode, 0) == 0
    with Client(two.instance, start=False) as client:
        for id in begun:
            assert client.operation(id).state in (OperationState.DONE, OperationState.FAILED)
        kept = {operation.id for operation in client.operations()}
        assert kept >= set(begun)
    two.assert_one_copy("two")


def test_a_backup_of_the_running_instance_fills_another(two: RealInstance, tmp_path: Path) -> None:
    file = str(tmp_path / "backup")
    two.start_daemon()
    told = two.json("daemon", "backup", file)
    refused = two("daemon", "restore", file)
    assert refused.returncode == 5 and "wherry daemon stop" in refused.stderr
    with real_instance("tpgc") as copy:
        assert copy.json("daemon", "restore", file)["rows"] == told["rows"]
        copy.start_daemon()
        with Client(two.instance, start=False) as client, Client(copy.instance, start=False) as other:
            before = [operation.id for operation in client.operations()]
            assert [operation.id for operation in other.operations()][: len(before)] == before
        assert eventually(lambda: "lost" in copy("status").stdout, True), "as after a reboot"
        copy.up("two", 2)
        copy.assert_one_copy("two")


def test_a_server_that_is_gone_is_told_and_its_records_are_not_forgotten(tmp_path: Path) -> None:
    """No daemon begins with an empty database instead, and `down --all` keeps the note of records that it left."""
    url = f"postgresql://wherry:{QUOTED}@/records?host={tmp_path}"
    with real_instance("tpgn", WHERRY_DATABASE_URL=url) as created:
        refused = created("daemon", "start")
        assert refused.returncode == 7 and "the instance's database cannot be" in refused.stderr
        note = created.instance.database_note
        assert not note.exists() and not created.instance.database_file.exists()
        created.environment.pop("WHERRY_DATABASE_URL")
        created.instance.state.mkdir(exist_ok=True)
        note.write_text(json.dumps({"url": url, "id": "ours"}))
        started, down = created("up", created.cluster_file("two", 2)), created("down", "--all", "--yes")
        assert started.returncode == 7 and not created.instance.database_file.exists()
        assert down.returncode == 6 and f"postgresql://wherry@{tmp_path}/records" in down.stderr and note.exists()
        texts = refused.stderr + started.stderr + down.stderr
        assert not any(word in texts for word in (PASSWORD, QUOTED))
        note.unlink()
