"""VM nodes: an image is built, two VMs boot from it, jobs run on them, and one is moved."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from realworld import SECONDS, RealInstance, eventually, missing_for_vms, real_instance

from names import own_name
from wherry.fabric import file_server
from wherry.lab.study.machine_counters import Machine, card_events, traced
from wherry.lab.study.requirements import no_post_copy

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(900),
]
IMAGE = own_name("tvm")
_LONG = "WHERRY_LONG_TESTS" in os.environ
PAUSE = 10
"""Milliseconds that a rank sleeps in each iteration: ranks that poll all the time load both of the machines' CPUs."""
PROGRAMS = ("qemu-system-x86_64", "libvirtd", "virsh", "busybox", "sqfstar")


def cannot(reason: str) -> NoReturn:
    """Skips long tests unless requested (make test-moves)."""
    if _LONG:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def machines() -> Iterator[RealInstance]:
    """An instance with an image."""
    if reason := missing_for_vms(PROGRAMS):
        cannot(reason)
    with real_instance("tvm", WHERRY_FAULTS="1") as created:
        built = created.build_image(IMAGE)
        if built.returncode and "apt" in built.stderr:
            cannot(f"no kernel for the image: {built.stderr}")
        assert built.returncode == 0, built.stderr
        created.kept.places = False
        created.kept.make(lambda: created.json("fabric", "up", created.file("fabric.yaml", created.kept.fabric)))
        try:
            yield created
        finally:
            created("image", "remove", IMAGE)


@pytest.fixture(scope="module")
def two(machines: RealInstance) -> Iterator[RealInstance]:
    """Two VMs on two hosts; `deck` is a file that is copied to them."""
    with machines.kept.also(lambda: make(machines)):
        yield machines


def make(two: RealInstance) -> None:
    """The cluster, and the file."""
    deck = two.directory / "deck"
    deck.write_text("input of the program\n")
    text = f"kind: vm\nname: two\nnodes: 2\ncpus: 1\nmemory: 192MiB\nimage: {IMAGE}\nneeds: [{deck}]\n"
    up = two("up", two.file("two.yaml", text))
    if up.returncode == 4:
        cannot(up.stderr)
    assert up.returncode == 0, up.stderr


def other(host: str) -> str:
    """A host at the other site."""
    return {"a": "b", "b": "a"}[host[0]] + host[1]


def move_to_other_site(instance: RealInstance, node: str) -> None:
    """Moves a node, and looks at the record."""
    cluster = node.rpartition("-")[0]
    destination = other(instance.hosts_of(cluster)[node])
    record = instance.move(node, destination)
    assert (record["phase"], record["error"]) == ("done", None)
    assert record["bytes"] > 0 and 0 < record["downtime"] <= record["total"]
    assert instance.hosts_of(cluster)[node] == destination


def test_vm_is_moved_under_a_job(two: RealInstance) -> None:
    """The job itself checks every byte of its messages and memory."""
    refused = two("move", "two-1", "--to", other(two.hosts_of("two")["two-1"]), "--dry-run")
    if refused.returncode == 4 and "QEMU" in refused.stderr:
        pytest.skip(refused.stderr)

    two.run_under_ring("two", "mpich", lambda: move_to_other_site(two, "two-1"), ranks=2)


def test_vm_runs_the_other_mpi(two: RealInstance) -> None:
    with two.ring("two", "openmpi", ranks=2, seconds=2) as ring:
        ring.result()


def test_usage_of_ranks_in_a_vm_is_measured(two: RealInstance) -> None:
    """Ranks are measured by the agent, messages at the port, so clusters of VMs are balanced like others."""
    with two.ring("two", "mpich", ranks=2, seconds=25):
        before = two.json("node", "show", "two-1")["usage"]
        (job,) = [job["id"] for job in two.json("job", "list", "two")["jobs"] if job["state"] == "running"]
        has_arrived = two.json("job", "profile", job, "--seconds", "3s", "--outside")
        (verdict,) = two.json("balance", "two", "--seconds", "3s")["plan"]["verdicts"]
        after = two.json("node", "show", "two-1")["usage"]
    assert all(after[key] > before[key] for key in ("cpu", "sent", "received"))
    assert [(load["rank"], load["node"]) for load in has_arrived["ranks"]] == [(0, "two-0"), (1, "two-1")]
    assert all(0 < load["computing"] + load["waiting"] <= 1.01 for load in has_arrived["ranks"])
    assert {(flow["source"], flow["target"]) for flow in has_arrived["flows"]} == {
        ("two-0", "two-1"),
        ("two-1", "two-0"),
    }
    assert verdict["kind"] not in ("idle", "unknown"), verdict


def test_vm_program_finds_its_files(two: RealInstance) -> None:
    """Program, files of the cluster's `needs`, and working directory have the same paths as outside."""
    script = two.directory / "look"
    script.write_text(f'#!/bin/sh\necho "$(hostname) $(pwd) $(cat {two.directory}/deck)"\necho result >written\n')
    script.chmod(0o755)
    done = two("run", "two", "-n", "2", "--mpi", "mpich", "--", "./look")
    assert done.returncode == 0, done.stderr
    if not file_server.obstacle():
        assert Path(two.directory, "written").read_text() == "result\n"


def test_program_missing_in_the_vm_is_refused(two: RealInstance) -> None:
    done = two("run", "two", "-n", "2", "--", "./absent")
    assert done.returncode == 3 and "absent is not there" in done.stderr


def test_image_is_shown(two: RealInstance) -> None:
    (image,) = [listed for listed in two.json("image", "list")["images"] if listed["name"] == IMAGE]
    assert image["mpi"] and image["digest"] == two.json("image", "show", IMAGE)["image"]["digest"]
    assert any(name.startswith("linux-image-") for name in image["packages"])


def test_a_program_on_a_vm_moves_itself(two: RealInstance) -> None:
    """By the same library and address as on a container; where machines cannot be moved it gets an error."""
    if not shutil.which("mpicc.mpich"):
        pytest.skip("no mpicc.mpich on this machine")
    program, source = two.directory / "move_self", Path(__file__).resolve().parents[2] / "examples" / "move_self.c"
    words = ["mpicc.mpich", "-O2", "-o", str(program), str(source), *two("inside", "c").stdout.split()]
    subprocess.run(words, check=True, capture_output=True, timeout=SECONDS)
    before = known(two)
    refused = two("move", "two-0", "--to", other(before["two-0"]), "--dry-run")
    done = two("run", "two", "-n", "2", "--mpi", "mpich", "--", str(program))
    assert done.returncode == 0, done.stderr
    first, *moves, last = done.stdout.splitlines()
    assert (first, last, len(moves)) == ("under Wherry", "sum 1395", 2), done.stdout
    if refused.returncode == 4 and "QEMU" in refused.stderr:
        assert all("stays on" in line and "QEMU" in line for line in moves), moves
        return
    after = known(two)
    assert moves == [f"rank {n} moved from {before[f'two-{n}']} to {after[f'two-{n}']}" for n in range(2)]
    assert all(after[node] != host for node, host in before.items())


def virsh(two: RealInstance, host: str, *words: str) -> str:
    """Output of virsh for the libvirtd of a host; empty if it fails."""
    socket = two.instance.run / "vm" / host / "run/libvirt/libvirt-sock"
    command = ["virsh", "-q", "-c", f"qemu+unix:///system?socket={socket}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False).stdout


def known(two: RealInstance) -> dict[str, str]:
    """Node -> host by Wherry's records, which must agree with the libvirtds."""
    where = two.hosts_of("two")
    domains = eventually(lambda: domains_of(two), where)
    assert domains == where
    return where


def states(two: RealInstance) -> dict[str, str]:
    """States of the nodes by Wherry's records."""
    return {node["name"]: node["state"] for node in two.json("status", "two")["nodes"]}


def domains_of(two: RealInstance) -> dict[str, str]:
    return {name: host for host in two.hosts() for name in virsh(two, host, "list", "--all", "--name").split()}


def state(two: RealInstance, host: str, node: str) -> str:
    return virsh(two, host, "domstate", "--reason", node)


def kill(two: RealInstance, host: str, file: str) -> None:
    """Kills the process of a PID file on a host by SIGKILL."""
    os.kill(int((two.instance.run / "vm" / host / "run" / file).read_text()), signal.SIGKILL)


def moving(two: RealInstance, *options: str) -> tuple[str, str, subprocess.Popen[str]]:
    """Starts a move of the second node: source, destination, command. Skips if it cannot be moved."""
    source = known(two)["two-1"]
    refused = two("move", "two-1", "--to", other(source), "--dry-run")
    if refused.returncode == 4 and "QEMU" in refused.stderr:
        pytest.skip(refused.stderr)
    return source, other(source), two.start("move", "two-1", "--to", other(source), *options)


def switched(two: RealInstance, host: str, command: subprocess.Popen[str]) -> None:
    """Waits until the node runs at the destination and fetches memory by post-copy."""

    def has_arrived() -> bool:
        return command.poll() is not None or "post-copy" in state(two, host, "two-1")

    assert eventually(has_arrived, True, SECONDS, 0.02)
    if command.poll() is not None:
        err = command.communicate()[1]
        if "userfaultfd" in err.lower():
            pytest.skip(err)
        pytest.fail(f"it was over before it was seen: {err}")


NEEDS_POST_COPY = pytest.mark.skipif(bool(no_post_copy()), reason=no_post_copy())
FETCH_SLOWLY = ("--mode", "post-copy", "--max-rounds", "0", "--bandwidth", "64Mbit/s")


@NEEDS_POST_COPY
def test_vm_is_moved_by_post_copy(two: RealInstance) -> None:
    """The node runs at the destination before its memory has arrived, and its job's result is correct."""

    def fetched() -> None:
        source, destination, command = moving(two, *FETCH_SLOWLY)
        switched(two, destination, command)
        assert "post-copy" in state(two, source, "two-1")
        _, err = command.communicate(timeout=SECONDS)
        assert command.returncode == 0, err
        assert known(two)["two-1"] == destination and "running" in state(two, destination, "two-1")

    two.run_under_ring("two", "mpich", fetched, ranks=2, pause=PAUSE)


@NEEDS_POST_COPY
def test_hybrid_mode_follows_the_precopy_policy(two: RealInstance) -> None:
    """A node with a low dirty rate is frozen, because its rounds converge."""
    source = known(two)["two-1"]
    record = two.json("move", "two-1", "--to", other(source), "--mode", "hybrid")
    assert (record["phase"], record["error"]) == ("done", None) and record["rounds"]
    assert known(two)["two-1"] == other(source)
    with two.ring("two", "openmpi", ranks=2, seconds=2) as ring:
        ring.result()


@NEEDS_POST_COPY
@pytest.mark.skipif(not _LONG, reason="it takes minutes (make test-moves)")
def test_hybrid_mode_switches_when_a_node_outruns_its_rounds(two: RealInstance) -> None:
    """A node whose dirty rate exceeds the link's bandwidth is switched to post-copy."""
    with two.ring("two", "mpich", ranks=2, seconds=140, memory=32) as ring:
        _, destination, command = moving(two, "--mode", "hybrid", "--bandwidth", "24Mbit/s")
        switched(two, destination, command)
        _, err = command.communicate(timeout=SECONDS)
        assert command.returncode == 0, err
        record = two.json("node", "show", "two-1")["moves"][-1]
        last = record["rounds"][-1]
        assert last["dirty"] >= 0.9 * last["bytes"], record["rounds"]
        assert known(two)["two-1"] == destination and "running" in state(two, destination, "two-1")
        ring.result()


@pytest.mark.parametrize("end", ["source", "destination"])
def test_vm_move_survives_a_killed_libvirtd(two: RealInstance, end: str) -> None:
    """The node stays at the source, its job's result is correct, and nothing is left of the move."""

    def killed() -> None:
        source, destination, command = moving(two, "--bandwidth", "16Mbit/s")
        assert eventually(lambda: "paused" in state(two, destination, "two-1"), True, SECONDS)
        kill(two, source if end == "source" else destination, "libvirtd.pid")
        _, err = command.communicate(timeout=SECONDS)
        assert command.returncode == 1 and "was not moved" in err, err
        assert eventually(lambda: set(states(two).values()), {"running"}) == {"running"}
        assert known(two)["two-1"] == source

    two.run_under_ring("two", "openmpi", killed, ranks=2, pause=PAUSE)


def test_vm_move_survives_a_killed_daemon(two: RealInstance) -> None:
    """The next daemon rolls the move back, or finishes it if libvirt had switched or the move was committed."""

    def killed() -> None:
        for phase in ("prepare", "freeze", "commit"):
            source = known(two)["two-1"]
            operation = two.begin_move("two-1", other(source), f"{phase}:kill")
            two("op", "wait", operation)
            assert eventually(lambda: set(states(two).values()), {"running"}) == {"running"}
            ends = {"prepare": {source}, "freeze": {source, other(source)}, "commit": {other(source)}}
            assert known(two)["two-1"] in ends[phase], phase

    two.run_under_ring("two", "mpich", killed, ranks=2, pause=PAUSE)


def test_kernel_panic_of_a_vm_is_reported(two: RealInstance) -> None:
    """The event has the end of the console, the console is kept, and `up` repairs the cluster."""
    ends = two("run", "two", "-n", "1", "--mpi", "mpich", "--", "/bin/sh", "-c", "echo c >/proc/sysrq-trigger")
    assert ends.returncode != 0
    assert states(two)["two-0"] == "lost"
    (event,) = [event for event in two.json("event", "list")["events"] if event["kind"] == "node.lost"][-1:]
    assert "Kernel panic - not syncing" in event["text"] and "wherry logs --node two-0" in event["text"]
    (job,) = two.json("job", "list", "two")["jobs"][-1:]
    assert job["state"] == "failed" and "node two-0 was lost" in job["reason"]
    assert "Kernel panic" in two("logs", "--node", "two-0").stdout
    two.json("up", "two.yaml")
    assert set(states(two).values()) == {"running"} and "Kernel panic" in two("logs", "--node", "two-0").stdout


@pytest.mark.skipif(not _LONG, reason="it takes minutes (make test-moves)")
def test_post_copy_that_breaks_is_reported(two: RealInstance) -> None:
    """The source's QEMU dies with memory that was not fetched yet: the node is lost, nothing is left, `up` repairs."""
    source, destination, command = moving(two, *FETCH_SLOWLY)
    switched(two, destination, command)
    kill(two, source, "libvirt/qemu/two-1.pid")
    _, err = command.communicate(timeout=SECONDS)
    assert command.returncode == 1 and "lost the part of its memory" in err and "wherry up" in err, err
    assert states(two) == {"two-0": "running", "two-1": "lost"} and "two-1" not in domains_of(two)
    console = two("logs", "--node", "two-1").stdout
    two.json("up", "two.yaml")
    assert set(known(two)) == {"two-0", "two-1"}
    assert two("logs", "--node", "two-1").stdout.startswith(console) and console
    with two.ring("two", "mpich", ranks=2, seconds=2) as ring:
        ring.result()


@pytest.fixture
def mixed(machines: RealInstance) -> RealInstance:
    """The instance with a cluster of a node of each kind."""
    machine = f"{{kind: vm, image: {IMAGE}, memory: 192MiB, nic: {{model: e1000e}}}}"
    nodes = f"nodes:\n  - {{kind: container, memory: 128MiB}}\n  - {machine}\n"
    file = machines.file("mixed.yaml", f"name: mixed\ncpus: 1\nhosts: [a1, a2]\n{nodes}")
    planned = machines("up", file, "--dry-run").stdout
    assert "create mixed-0 on " in planned and "(container, 1 CPU" in planned and "(vm, 1 CPU" in planned
    machines.json("up", file)
    kinds = {node["name"]: node["kind"] for node in machines.json("status", "mixed")["nodes"]}
    assert kinds == {"mixed-0": "container", "mixed-1": "vm"}
    if machines("move", "mixed-1", "--to", other(machines.hosts_of("mixed")["mixed-1"]), "--dry-run").returncode == 4:
        pytest.skip("this QEMU does not move emulated machines")
    return machines


@pytest.mark.smoke
def test_a_machine_moves_under_a_job_that_it_has_with_a_container(mixed: RealInstance) -> None:
    """The job checks every byte of its messages and memory."""

    mixed.run_under_ring("mixed", "mpich", lambda: move_to_other_site(mixed, "mixed-1"), ranks=2, pause=PAUSE)


def test_containers_and_vms_run_one_job(mixed: RealInstance) -> None:
    """One node of each kind is moved while the job checks every message, and a host is drained."""

    def moves() -> None:
        for node, host in mixed.hosts_of("mixed").items():
            record = mixed.move(node, other(host))
            assert (record["phase"], record["error"]) == ("done", None)
        hosts = mixed.hosts_of("mixed")
        drained = mixed.json("host", "drain", hosts["mixed-1"])["moves"]
        assert "mixed-1" in {record["node"] for record in drained}
        assert mixed.hosts_of("mixed")["mixed-1"] != hosts["mixed-1"]
        mixed.json("host", "restore", hosts["mixed-1"])
        assert mixed.hosts_of("mixed") == hosts

    mixed.run_under_ring("mixed", "openmpi", moves, ranks=2, pause=PAUSE)
    done = mixed("run", "mixed", "-n", "2", "--mpi", "mpich", "--", "/bin/hostname")
    assert sorted(done.stdout.split()) == ["mixed-0", "mixed-1"], done.stderr


@pytest.mark.skipif(not _LONG, reason="it takes minutes (make test-moves)")
@pytest.mark.parametrize("model", ["virtio", "e1000"])
def test_twenty_moves_of_a_vm(two: RealInstance, model: str) -> None:
    """Moves a VM back and forth under a job that checks its memory and every message."""
    text = f"kind: vm\nname: many\nnodes: 2\ncpus: 1\nmemory: 192MiB\nimage: {IMAGE}\nnic: {{model: {model}}}\n"
    two.json("up", two.file("many.yaml", text))
    records = list[dict[str, Any]]()

    def moves() -> None:
        for _ in range(20):
            records.append(two.move("many-1", other(two.hosts_of("many")["many-1"])))
            assert (records[-1]["phase"], records[-1]["error"]) == ("done", None)

    try:
        two.run_under_ring("many", "mpich", moves, ranks=2)
    finally:
        two("down", "many")
    for measure in ("total", "downtime"):
        print(f"{model}: {measure} {sorted(round(record[measure], 3) for record in records)} s")


@pytest.mark.skipif(not _LONG, reason="it takes a minute (make test-moves)")
def test_a_move_whose_destination_outruns_all_patience_is_taken_back(two: RealInstance) -> None:
    """The destination's QEMU is stopped: no byte is sent any more, which QEMU itself would bear for ever."""
    before = two.hosts_of("two")
    destination = other(before["two-1"])
    pid = two.instance.run / "vm" / destination / "run" / "libvirt" / "qemu" / "two-1.pid"
    with two.ring("two", "mpich", ranks=2) as ring:
        with two.start("move", "two-1", "--to", destination, "--bandwidth", "64Mbit/s") as move:
            assert move.stderr and any("round 1" in line and "MiB left" in line for line in move.stderr)
            os.kill(int(pid.read_text()), signal.SIGSTOP)
            error = move.stderr.read()
        assert move.returncode != 0 and "no memory was sent for 30 s" in error, error
        assert ring.running() and two.hosts_of("two") == before
        ring.result()
    assert not pid.exists()


def test_guest_sees_the_declared_network_adapter(two: RealInstance) -> None:
    """Feature bits of a virtio adapter (VIRTIO 1.2): 0 and 1 checksum offload, 22 multiqueue."""
    look = ("/bin/sh", "-c", "cat /sys/class/net/eth0/device/features; echo /sys/class/net/eth0/queues/tx-*")

    def has_arrived(cluster: str) -> tuple[tuple[str, ...], int]:
        done = two("run", cluster, "-n", "1", "--mpi", "mpich", "--", *look)
        assert done.returncode == 0, done.stderr
        bits, queues = done.stdout.splitlines()
        return (bits[0], bits[1], bits[22]), len(queues.split())

    text = f"kind: vm\nname: nic\nnodes: 1\ncpus: 2\nmemory: 192MiB\nimage: {IMAGE}\nnic: {{%s}}\n"
    refused = two("up", two.file("nic.yaml", text % "vhost: true"))
    assert (refused.returncode == 4 and "nic.vhost" in refused.stderr) or Path("/dev/vhost-net").exists()
    two("down", "nic")
    two.json("up", two.file("nic.yaml", text % "queues: 2, checksum_offload: false"))
    try:
        assert has_arrived("two") == (("1", "1", "0"), 1)
        assert has_arrived("nic") == (("0", "0", "1"), 2)
    finally:
        two("down", "nic")


def test_other_adapters_carry_a_job(two: RealInstance) -> None:
    """Those of QEMU that the image's kernel drives; each message is checked."""
    known = two.json("image", "show", IMAGE)["image"]["adapters"]
    assert {"virtio", "e1000", "pcnet", "ne2k_pci"} <= set(known)
    groups = "".join(f"  - {{nic: {{model: {model}}}}}\n" for model in ("pcnet", "ne2k_pci"))
    text = f"kind: vm\nname: old\ncpus: 1\nmemory: 192MiB\nhosts: [a1, a2]\nimage: {IMAGE}\nnodes:\n{groups}"
    two.json("up", two.file("old.yaml", text))
    try:
        with two.ring("old", "openmpi", ranks=2, seconds=2) as ring:
            ring.result()
    finally:
        two("down", "old")


def test_what_qemu_does_for_messages_is_counted(two: RealInstance) -> None:
    """By its process's counters and its trace points, which leave its log as it was."""
    (host,) = [node["host"] for node in two.json("status", "two")["nodes"] if node["name"] == "two-0"]
    place = two.instance.run / "vm" / host
    pid = int((place / "run" / "libvirt" / "qemu" / "two-0.pid").read_text())
    machine = Machine("two-0", place, pid)
    length = machine.log.stat().st_size
    with two.ring("two", "openmpi", ranks=2, seconds=8, pause=PAUSE):
        before = machine.read()
        with traced([machine]):
            assert eventually(lambda: card_events(machine.log.read_text())["kicks"] > 10, True)
            counted = card_events(machine.log.read_text())
        after = machine.read()
    assert counted["notified"] > 0, counted
    assert all(after[name] > before[name] for name in ("system_calls", "copied", "qemu_switches", "qemu_seconds"))
    assert machine.log.stat().st_size == length
