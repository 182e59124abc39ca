"""Containers on hosts that SSH reaches: clusters, jobs, moves, agents that die, removal."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from realworld import RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, FABRIC, SshLab, Tap, rows, temporary_lab

from wherry.node.container.disk import lacking

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[SshLab]:
    with temporary_lab() as created:
        yield created


@pytest.fixture(scope="module")
def world(lab: SshLab, request: pytest.FixtureRequest) -> Iterator[RealInstance]:
    """A cluster of three nodes on the hosts, of which `make test` has two."""
    hosts = list(ADDRESSES)[: 2 if request.config.getoption("--smoke") else 3]
    with real_instance("tsh", lab.namespaces.enter, below=lab.shared, WHERRY_FAULTS="1") as created:
        created.kept.places = False
        created.kept.make(lambda: make(created, hosts))
        yield created
    for host in ADDRESSES:
        assert eventually(lambda h=host: lab.left(h, created.instance.name), []) == []


def make(world: RealInstance, hosts: list[str]) -> None:
    world.json("fabric", "up", world.file("machines.yaml", FABRIC + rows(*hosts)))
    world.up("trio", 3, more="" if lacking() else "tmp: 64MiB\n")


def elsewhere(world: RealInstance, node: str) -> str:
    """A host without the node."""
    where = world.hosts_of("trio")[node]
    return next(host for host in ADDRESSES if host != where)


def test_hosts_say_what_they_are(world: RealInstance) -> None:
    hosts = {host["name"]: host for host in world.json("host", "list")["hosts"]}
    assert hosts.keys() == ADDRESSES.keys()
    for host in hosts.values():
        assert not host["down"] and host["facts"]["kernel"] == os.uname().release
        assert host["facts"]["criu"] and host["facts"]["runtime"]
    assert world("host", "show", "h2").returncode == 0


def test_nodes_are_at_the_hosts_alone(world: RealInstance, lab: SshLab) -> None:
    for node, host in world.hosts_of("trio").items():
        assert any(line.endswith(f"/{node}@{host}") for line in lab.left(host, ""))
    assert not (world.instance.run / "nodes").exists()


@pytest.mark.parametrize("flavour", ["mpich", pytest.param("openmpi", marks=pytest.mark.thorough)])
@pytest.mark.smoke
def test_job_runs_while_a_node_is_moved_there_and_back(world: RealInstance, lab: SshLab, flavour: str) -> None:
    """The job itself checks every byte of its messages and memory."""
    began = world.hosts_of("trio")["trio-1"]

    def move() -> None:
        for host in (elsewhere(world, "trio-1"), began):
            record = world.move("trio-1", host)
            assert (record["phase"], record["error"]) == ("done", None)
            assert record["bytes"] > 0 and 0 < record["downtime"] <= record["total"]
            assert world.hosts_of("trio")["trio-1"] == host
            assert [end for end in ADDRESSES if any("/trio-1@" in line for line in lab.left(end, ""))] == [host]

    world.run_under_ring("trio", flavour, move, ranks=3, pause=2)


@pytest.mark.smoke
def test_hosts_report_the_use_of_their_nodes_and_count_their_frames(world: RealInstance, lab: SshLab) -> None:
    """As the daemon's machine does not see their cgroups."""
    assert "trio-1" not in lab.namespaces.run("find", "/sys/fs/cgroup", "-name", "trio-*")

    def look() -> None:
        for node in ("trio-0", "trio-1", "trio-2"):
            usage = world.json("node", "show", node)["usage"]
            assert all(usage[figure] > 0 for figure in ("memory", "cpu", "sent", "received")), usage
            assert usage["processes"] > 1
        (job,) = (job["id"] for job in world.json("job", "list")["jobs"] if job["state"] == "running")
        ranks = lambda: len(world.json("job", "profile", job, "--outside", "--seconds", "500ms")["ranks"])  # noqa: E731
        assert eventually(ranks, 3) == 3
        found = world.json("job", "profile", job, "--outside", "--seconds", "1s")
        assert found["uncounted"] == "" and all(node["cpu"] > 0 and node["ranks"] == 1 for node in found["nodes"])
        sent = {(flow["source"], flow["target"]): flow["bytes"] for flow in found["flows"]}
        assert all(sent.get((f"trio-{rank}", f"trio-{(rank + 1) % 3}"), 0) > 1000 for rank in range(3)), sent
        (verdict,) = world.json("balance", "trio", "--seconds", "1s")["plan"]["verdicts"]
        assert verdict["kind"] != "unknown", verdict

    world.run_under_ring("trio", "mpich", look, ranks=3, pause=2)
    tables = "for each in $(ip netns list | cut -d' ' -f1); do ip netns exec $each nft list tables; done"
    counted = lambda: [host for host in ADDRESSES if "bridge wherry" in lab.hosts[host].run("sh", "-c", tables)]  # noqa: E731
    assert eventually(counted, []) == [], "frames are counted while somebody asks"


def test_ranks_load_the_libraries_of_the_bundle(world: RealInstance, lab: SshLab) -> None:
    """At the path that they have at each host, where the checkout is not."""
    loaded = "cat /proc/$(pgrep -f wherry-ring | head -n 1)/maps | grep -o '/.*libwherry-.*' | sort -u"

    def look() -> None:
        for host in world.hosts_of("trio").values():
            found = lab.hosts[host].run("sh", "-c", loaded).split()
            assert found and all(name.startswith("/var/lib/wherry/agent-bundles/") for name in found)

    world.run_under_ring("trio", "mpich", look, ranks=3, pause=2)


def test_nothing_of_a_node_is_read_on_the_wire(world: RealInstance, lab: SshLab) -> None:
    """Neither of its memory nor of its files, in a move with compression and in one without."""
    secret, clear = "a word that nobody on the wire may read", "a word that anybody may read"
    write = f"yes '{secret}' | head -c 4000000 >/tmp/words; words=$(cat /tmp/words); echo; while sleep 1; do :; done"
    keeping = world.start("exec", "trio-1", "--", "sh", "-c", write)
    assert keeping.stdout and keeping.stdout.readline() == "\n"
    tap = Tap(lab.namespaces, (secret.encode(), clear.encode()))
    try:
        lab.hosts["h1"].run("bash", "-c", f"echo {clear} > /dev/udp/{ADDRESSES['h2']}/9")
        for compress, least in (("off", 8_000_000), ("on", 100_000)):
            before = tap.count
            record = world.json("move", "trio-1", "--to", elsewhere(world, "trio-1"), "--compress", compress)
            assert record["error"] is None and record["carriage"]["encrypted"]
            assert tap.count - before > least and (record["bytes"] < 8_000_000) == (compress == "on"), record
    finally:
        tap.close()
        keeping.kill()
        keeping.communicate()
    assert tap.heard == {clear.encode()}


def test_job_survives_the_death_of_agents(world: RealInstance, lab: SshLab) -> None:
    """And of an agent that hangs, which the next one ends."""

    def strike() -> None:
        for host in ADDRESSES:
            lab.hosts[host].run("pkill", "-9", "-f", "[-]m wherry.agent")
        assert eventually(lambda: down(world), []) == []
        hung = set(lab.agents("h1"))
        lab.hosts["h1"].run("pkill", "-STOP", "-f", "[-]m wherry.agent")
        replaced = lambda: (hung & set(lab.agents("h1")), len(lab.agents("h1")), down(world))  # noqa: E731
        assert eventually(replaced, (set(), 1, [])) == (set(), 1, [])
        assert world.move("trio-1", elsewhere(world, "trio-1"))["error"] is None

    world.run_under_ring("trio", "mpich", strike, ranks=3, pause=2)


@pytest.mark.parametrize("phase", ["prepare", "freeze", "transfer", "restore", "commit"])
@pytest.mark.parametrize("end", ["source", "destination"])
def test_one_copy_runs_when_an_agent_is_killed_in_a_move(
    world: RealInstance, lab: SshLab, phase: str, end: str
) -> None:
    """Before the commit it runs where it was, or is rolled back to it by the next look; after it at the destination."""
    began = world.hosts_of("trio")["trio-1"]
    to = elsewhere(world, "trio-1")

    def strike() -> None:
        with world.held_move("trio-1", to, phase) as move:
            lab.hosts[began if end == "source" else to].run("pkill", "-9", "-f", "[-]m wherry.agent")
        assert eventually(lambda: world.ended(move.operation), True)
        assert eventually(lambda: states(world), {"running"}) == {"running"}
        where = world.hosts_of("trio")["trio-1"]
        assert where == (to if phase == "commit" else began)
        copies = lambda: [host for host in ADDRESSES if any("/trio-1@" in line for line in lab.left(host, ""))]  # noqa: E731
        assert eventually(copies, [where]) == [where]

    world.run_under_ring("trio", "mpich", strike, ranks=3, pause=2)


def test_next_daemon_knows_the_nodes(world: RealInstance, lab: SshLab) -> None:
    def strike() -> None:
        world.kill_daemon()
        world.start_daemon()
        assert down(world) == []
        assert world.move("trio-1", elsewhere(world, "trio-1"))["error"] is None

    world.run_under_ring("trio", "mpich", strike, ranks=3, pause=2)


def test_host_that_is_cut_off_keeps_its_nodes_until_it_is_declared_lost(world: RealInstance, lab: SshLab) -> None:
    host = world.hosts_of("trio")["trio-2"]
    lab.namespaces.run("ip", "link", "set", host, "down")
    try:
        assert eventually(lambda: down(world), [host]) == [host]
        assert states(world) == {"running"}
        refused = world("move", "trio-2", "--to", elsewhere(world, "trio-2"))
        assert refused.returncode == 7 and host in refused.stderr, refused.stderr
        assert world("host", "lost", host).returncode == 0
        assert eventually(lambda: "lost" in states(world), True)
        world.json("up", "trio.yaml")
        assert world.hosts_of("trio")["trio-2"] != host
        assert any("/trio-2@" in line for line in lab.left(host, ""))
    finally:
        lab.namespaces.run("ip", "link", "set", host, "up")
    restored = lambda: world("host", "restore", host).returncode  # noqa: E731
    assert eventually(restored, 0) == 0
    assert not any("/trio-2@" in line or "-trio-2" in line for line in lab.left(host, ""))
    world.run_under_ring("trio", "mpich", lambda: None, ranks=3, pause=2)


def test_host_is_drained(world: RealInstance) -> None:
    host = world.hosts_of("trio")["trio-0"]
    moves = world.json("host", "drain", host)["moves"]
    assert moves and all((record["phase"], record["error"]) == ("done", None) for record in moves)
    assert host not in world.hosts_of("trio").values()
    world.json("host", "restore", host)


def test_what_such_hosts_cannot_do_is_refused(world: RealInstance) -> None:
    machine = world.file("machine.yaml", "kind: vm\nversion: 1\nname: vm\nnodes: 1\ncpus: 1\nmemory: 128MiB\n")
    done = world("up", machine)
    assert done.returncode and "cannot run nodes of kind 'vm'" in done.stderr, done.stderr


def test_fabric_file_with_a_wrong_address_can_be_corrected(lab: SshLab) -> None:
    with real_instance("tsw", lab.namespaces.enter, below=lab.shared) as other:
        row = "  - {{name: {0}, site: lab, cores: 1, memory: 256MiB, uri: 'ssh://root@{1}', address: {2}}}\n"
        for uri, address, code, why in (
            ("10.80.0.99", "10.80.0.99", 7, "cannot be reached by SSH"),
            (ADDRESSES["h1"], "10.80.0.98", 2, "does not have the address"),
            (ADDRESSES["h1"], ADDRESSES["h1"], 0, ""),
        ):
            done = other("fabric", "up", other.file("one.yaml", FABRIC + row.format("h1", uri, address)))
            assert done.returncode == code and why in done.stderr, done.stderr
        assert down(other) == []
        assert lab.left("h1", other.instance.name)
        assert other("fabric", "down").returncode == 0
        assert eventually(lambda: lab.left("h1", other.instance.name), []) == []


def test_host_that_is_silent_at_the_removal_is_remembered(lab: SshLab) -> None:
    with real_instance("tsr", lab.namespaces.enter, below=lab.shared) as other:
        other.json("fabric", "up", other.file("one.yaml", FABRIC + rows("h1", cores=1, memory="256MiB")))
        other.up("one", 1)
        lab.namespaces.run("ip", "link", "set", "h1", "down")
        try:
            refused = other("down", "--all", "--yes")
        finally:
            lab.namespaces.run("ip", "link", "set", "h1", "up")
        assert refused.returncode == 6 and "h1 (ssh://" in refused.stderr, refused.stderr
        assert lab.left("h1", other.instance.name)
        assert other("down", "--all", "--yes").returncode == 0
        assert eventually(lambda: lab.left("h1", other.instance.name), []) == []


def down(world: RealInstance) -> list[str]:
    """Hosts that do not answer."""
    return [host["name"] for host in world.json("host", "list")["hosts"] if host["down"]]


def states(world: RealInstance, cluster: str = "trio") -> set[str]:
    return {node["state"] for node in world.json("status", cluster)["nodes"]}
