"""Parsing of users' files, and errors for invalid ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.errors import Code, Refused
from wherry.cli.files import LARGEST_FILE, read_cluster, read_fabric
from wherry.model.spec.base import MOST_HOSTS, MOST_SITES, Spec
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import MAX_DEPTH, MAX_VALUES, load_yaml, parse, parse_yaml
from wherry.store.codec import dump, load

FABRIC: dict[str, Any] = {
    "kind": "fabric",
    "version": 1,
    "name": "two-sites",
    "sites": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
    "hosts": [{"name": "a1", "site": "a", "cores": 2, "memory": "4GiB"}],
    "links": [{"between": ["a", "b"]}, {"between": ["b", "c"]}],
}
CLUSTER: dict[str, Any] = {"name": "hello", "nodes": 4}


def refused(kind: type[Spec], data: Any) -> str:
    """The reason for which `data` is refused."""
    with pytest.raises(Refused) as caught:
        parse(kind, data, "FILE")
    assert caught.value.code == Code.INVALID_FILE and "FILE" in caught.value.what
    return caught.value.why


def test_valid_files_are_parsed() -> None:
    fabric = parse(FabricSpec, FABRIC, "FILE")
    assert fabric.hosts[0].memory == 4 * 2**30 and fabric.driver == "netns"
    text = "kind: container\nversion: 1\nname: hello\nnodes: 4\ncpus: 0.5\nmemory: 256MiB\nplacement: {spread: site}\n"
    cluster = parse_yaml(ClusterSpec, text, "FILE")
    assert (cluster.nodes, cluster.cpus, cluster.memory, cluster.placement.spread) == (4, 0.5, 2**28, "site")


@pytest.mark.parametrize(
    ("tmp", "disk"), [("memory", 0), ("disk", 4 << 29), ("3GiB", 3 << 30)], ids=["memory", "disk", "a size"]
)
def test_the_disk_of_a_node_is_a_size_or_follows_its_memory(tmp: str, disk: int) -> None:
    spec = parse(ClusterSpec, {**CLUSTER, "tmp": tmp}, "FILE")
    assert spec.flavor(0).disk == disk and load(ClusterSpec, dump(spec)) == spec
    groups = [{"count": 1}, {"count": 1, "tmp": tmp}, {"count": 1, "tmp": "memory"}]
    several = parse(ClusterSpec, {"name": "hello", "nodes": groups, "tmp": "16MiB"}, "FILE")
    assert [several.flavor(index).disk for index in range(3)] == [16 << 20, disk, 0]
    assert load(ClusterSpec, dump(several)) == several


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tmp": "floppy"}, "tmp: 'floppy' is no place for /tmp: write memory, disk, or a disk's size such as 200GiB"),
        ({"tmp": 200}, "tmp: 200 is no place for /tmp"),
        ({"tmp": True}, "tmp: "),
        ({"tmp": "1MiB"}, "tmp: a disk needs at least 16MiB"),
        ({"tmp": "disk", "kind": "vm"}, "tmp: only for kind: container"),
        ({"kind": "vm", "nodes": [{"count": 1, "tmp": "1GiB"}]}, "tmp: only for kind: container"),
        ({"node": 4}, "unknown key 'node'; did you mean 'nodes'?"),
        ({"placement": {"spred": "site"}}, "unknown key 'placement.spred'; did you mean 'spread'?"),
        ({"placement": {"spread": "wide"}}, "placement.spread"),
        ({"zzz": 1}, "known: "),
        ({"nodes": 0}, "nodes: "),
        ({"nodes": 251}, "nodes: "),
        ({"nodes": "many"}, "nodes: "),
        ({"cpus": 0}, "cpus: "),
        ({"cpus": float("nan")}, "cpus: "),
        ({"memory": 512}, "512 has no unit; write it as 512MiB"),
        ({"memory": "512"}, "'512' is not a size"),
        ({"memory": "512 apples"}, "is not a size"),
        ({"memory": "-1GiB"}, "is not a size"),
        ({"memory": "1MiB"}, "at least 16MiB"),
        ({"name": "Hello"}, "is not a name"),
        ({"name": "a" * 21}, "is not a name"),
        ({"name": "../etc"}, "is not a name"),
        ({"name": "hello-"}, "is not a name"),
        ({"name": "hello\n"}, "is not a name"),
        ({"kind": "pod"}, "kind: "),
        ({"version": 2}, "version: "),
        ({"needs": ["lib/x"]}, "is not an absolute path"),
        ({"placement": {"max_per_host": 0}}, "max_per_host"),
        ({"nodes": []}, "nodes: a cluster has 1 to 250 nodes, and these are 0"),
        ({"nodes": [{"count": 200}, {"count": 51}]}, "these are 251"),
        ({"nodes": [{"count": 0}]}, "nodes.0.count: "),
        ({"nodes": [{"kind": "pod"}]}, "nodes.0.kind: 'pod' is not allowed: write 'container' or 'vm'"),
        ({"nodes": [{"cout": 2}]}, "unknown key 'nodes.0.cout'; did you mean 'count'?"),
        ({"nodes": [{"kind": "vm", "nic": {"modl": "e1000"}}]}, "did you mean 'model'?"),
        ({"nodes": [{"kind": "vm", "memory": "64MiB"}]}, "a node of kind vm needs at least 128MiB"),
        ({"nodes": [{"image": "other"}, {"kind": "vm"}]}, "image: only for kind: vm"),
        ({"nodes": [{"count": 2}], "nic": {"model": "e1000"}}, "nic: only for kind: vm"),
        ({"nodes": [{"count": 2}], "pinned": [2]}, "there is no node 2; they are 0 to 1"),
        ({"kind": "vm", "image": "images/x.qcow2"}, "is not a name"),
        ({"kind": "vm", "image": "/srv/../etc/x"}, "is not the plain absolute path"),
        ({"kind": "vm", "nic": {"queues": 2}}, "nic.queues: 2 queues are more than 1 CPUs"),
        ({"kind": "vm", "cpus": 2, "nic": {"queues": 2, "model": "e1000"}}, "queues: only for model: virtio"),
        ({"kind": "vm", "nic": {"vhost": True, "model": "rtl8139"}}, "vhost: only for model: virtio"),
    ],
)
def test_invalid_cluster_file_is_refused(change: dict[str, Any], words: str) -> None:
    assert words in refused(ClusterSpec, CLUSTER | change)


def test_groups_of_nodes() -> None:
    """Keys that a group lacks are inherited from the file's top level."""
    groups = [{"count": 2, "cpus": 0.5}, {"kind": "vm", "memory": "1GiB"}]
    spec = parse(ClusterSpec, CLUSTER | {"nodes": groups, "memory": "256MiB", "nic": {"model": "e1000"}}, "FILE")
    assert (spec.size, spec.kinds) == (3, {"container", "vm"})
    made = [(flavor.kind, flavor.cpus, flavor.memory) for flavor in map(spec.flavor, range(3))]
    assert made == [("container", 0.5, 2**28)] * 2 + [("vm", 1.0, 2**30)]
    assert spec.flavor(2).nic.model == "e1000" and spec.flavor(7) == spec.flavor(2)
    assert load(ClusterSpec, dump(spec)) == spec
    number = parse(ClusterSpec, CLUSTER | {"kind": "vm"}, "FILE")
    assert (number.nodes, number.size, number.flavor(3).kind) == (4, 4, "vm")


HOST = FABRIC["hosts"][0]
LINK = {"between": ["a", "b"]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [HOST, HOST]}, "two hosts are named 'a1'"),
        ({"sites": [{"name": "a"}, {"name": "a"}]}, "two sites are named 'a'"),
        ({"hosts": []}, "hosts: "),
        ({"hosts": [HOST | {"site": "aa"}]}, "which is not declared; did you mean 'a'?"),
        ({"hosts": [HOST | {"core": 2}]}, "unknown key 'hosts.0.core'; did you mean 'cores'?"),
        ({"hosts": [HOST | {"memory": "4Gib"}]}, "is not a size"),
        ({"hosts": [HOST | {"cores": -1}]}, "cores"),
        ({"hosts": [HOST | {"speed": 2}]}, "speed"),
        ({"hosts": [HOST | {"facts": {"memry": "1GiB"}}]}, "did you mean 'memory'?"),
        ({"links": [{"between": ["a", "x"]}]}, "a link ends at site 'x'"),
        ({"links": [{"between": ["a", "a"]}]}, "joins site 'a' with itself"),
        ({"links": [{"between": ["a", "b"]}, {"between": ["b", "a"]}]}, "two links join the same pair"),
        ({"links": [{"between": pair} for pair in (["a", "b"], ["b", "c"], ["c", "a"])]}, "loop"),
        ({"links": [{"between": ["a", "b"], "latency": 20}]}, "20 has no unit; write it as 30s"),
        ({"links": [{"between": ["a", "b"], "latency": "20 parsecs"}]}, "is not a duration"),
        ({"links": [LINK | {"bandwidth": "0Mbit/s"}]}, "0 bit/s is impossible"),
        ({"links": [LINK | {"bandwidth": "-1Mbit/s"}]}, "is not a rate"),
        ({"links": [LINK | {"bandwidth": "41Gbit/s"}]}, "41 Gbit/s is impossible: more than 0, at most 40Gbit/s"),
        ({"links": [LINK | {"bandwidth": 100}]}, "100 has no unit; write it as 100Mbit/s"),
        ({"links": [LINK | {"reverse": {"bandwidth": "0bit/s"}}]}, "is impossible"),
        ({"links": [LINK | {"loss": 5}]}, "loss: 5 is no share: write 0.01 or 1%"),
        ({"links": [LINK | {"loss": "101%"}]}, "is no share"),
        ({"links": [LINK | {"latency": "61s"}]}, "61s is more than 60s"),
        ({"links": [LINK | {"latency": "1ms", "jitter": "2ms"}]}, "jitter: it is larger than the latency"),
        ({"links": [LINK | {"latancy": "1ms"}]}, "unknown key 'links.0.latancy'; did you mean 'latency'?"),
        ({"links": [LINK | {"reverse": {"lost": "1%"}}]}, "did you mean 'loss'?"),
        ({"links": [LINK | {"overlay": "ipsec"}]}, "'openvpn'"),
        ({"pool": "8.8.0.0/16"}, "is not a private IPv4 network"),
        ({"pool": "10.77.0.0/24"}, "/16 or larger"),
        ({"pool": "10.77.0.1/16"}, "pool: "),
        ({"pool": "10.76.0.0/16"}, "overlap"),
        ({"pool": "10.0.0.0/8"}, "overlap"),
        ({"pool": "127.0.0.0/8"}, "is loopback, link-local or reserved"),
        ({"underlay": "100.64.0.0/16"}, "is not a private IPv4 network"),  # overlaps the gateways' addresses
        ({"kind": "cluster"}, "kind: "),
        ({"driver": "kubernetes"}, "driver: "),
    ],
)
def test_invalid_fabric_file_is_refused(change: dict[str, Any], words: str) -> None:
    assert words in refused(FabricSpec, FABRIC | change)


def test_unreachable_site_is_named() -> None:
    links = [{"between": ["a", "c"]}]
    assert "no way leads from site 'a' to site 'b'" in refused(FabricSpec, FABRIC | {"links": links})


def test_loop_of_links_is_refused_beside_an_isolated_site() -> None:
    sites = [{"name": name} for name in "abcd"]
    links = [{"between": pair} for pair in (["a", "b"], ["b", "c"], ["c", "a"])]
    assert "loop" in refused(FabricSpec, FABRIC | {"sites": sites, "links": links})


def test_reverse_overrides_only_its_own_keys() -> None:
    link = LINK | {"latency": "10ms", "bandwidth": "1Gbit/s", "loss": "1%", "reverse": {"bandwidth": "10Mbit/s"}}
    spec = parse(FabricSpec, FABRIC | {"sites": FABRIC["sites"][:2], "links": [link]}, "FILE")
    forth, back = spec.effective_links()[0].directions()
    assert (forth.latency, forth.bandwidth, forth.loss) == (0.01, 10**9, 0.01)
    assert (back.latency, back.bandwidth, back.loss) == (0.01, 10**7, 0.01)


def test_sites_without_links_are_joined_in_a_line() -> None:
    spec = parse(FabricSpec, FABRIC | {"sites": [{"name": name} for name in "abc"], "links": []}, "FILE")
    assert [link.between for link in spec.effective_links()] == [("a", "b"), ("b", "c")]
    changed = spec.with_link(spec.effective_links()[1].model_copy(update={"overlay": "openvpn"}))
    assert [link.overlay for link in changed.links] == ["none", "openvpn"]
    with pytest.raises(Refused) as error:
        spec.with_link(spec.effective_links()[0].model_copy(update={"between": ("a", "c")}))
    assert error.value.code == Code.NOT_FOUND and "a - b, b - c" in error.value.why


def test_missing_keys_are_named() -> None:
    why = refused(ClusterSpec, {})
    assert "name: " in why and "nodes: " in why


@pytest.mark.parametrize("data", [None, [], "text", 4])
def test_file_that_is_no_mapping_is_refused(data: Any) -> None:
    with pytest.raises(Refused) as caught:
        parse(ClusterSpec, data, "FILE")
    assert "is not a mapping" in caught.value.what


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "FILE is not YAML"),
        ("name: a\nname: b\n", "the key 'name' is given twice (line 2)"),
        ("name: !!python/object:os.system x\n", "FILE is not YAML"),
        ("", "is not a mapping"),
        ("? [a, b]\n: 1\n", "FILE is not"),
        ("name: 2001-99-99\n", "FILE is not YAML"),
        ("[" * 1000, "nested more than 32 deep"),
        ("1: 2\n", "FILE is not valid"),
        ("&a name: x\n*a : y\n", "FILE is not"),
    ],
)
def test_invalid_yaml_is_refused(text: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_yaml(ClusterSpec, text, "FILE")
    assert caught.value.code == Code.INVALID_FILE
    assert words in f"{caught.value.what}: {caught.value.why}"


@given(st.text(max_size=200))
def test_any_text_is_a_spec_or_refused(text: str) -> None:
    try:
        parse_yaml(ClusterSpec, text, "FILE")
    except Refused as error:
        assert error.code == Code.INVALID_FILE


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*FabricSpec.model_fields, "x"]), values))
def test_any_mapping_is_a_fabric_or_refused(data: dict[str, Any]) -> None:
    try:
        parse(FabricSpec, FABRIC | data, "FILE")
    except Refused as error:
        assert error.code == Code.INVALID_FILE


def test_short_forms_of_placement_are_parsed() -> None:
    text = "name: x\nnodes: 4\nsites: [a, b]\nplacement: {}\npinned: [0, 3]\n"
    spread = parse_yaml(ClusterSpec, text.replace("{}", "spread"), "file")
    assert spread.placement.spread == "site" and [spread.is_pinned(i) for i in range(4)] == [True, False, False, True]
    assert parse_yaml(ClusterSpec, text.replace("{}", "pack"), "file").placement.spread == "pack"
    assert parse(ClusterSpec, spread.model_dump(mode="json") | {"memory": "1GiB"}, "file").placement == spread.placement
    with pytest.raises(Refused, match="not valid") as caught:
        parse_yaml(ClusterSpec, text.replace("{}", "near"), "file")
    assert "'near' is no placement: write spread, pack" in caught.value.why
    with pytest.raises(Refused) as caught:
        parse_yaml(ClusterSpec, text.replace("{}", "pack").replace("3]", "4]"), "file")
    assert "there is no node 4" in caught.value.why


# Files and specs are bounded: whatever a file holds, it is refused soon, with the bound.


@pytest.mark.parametrize("read", [read_cluster, read_fabric])
def test_large_file_is_refused_unread(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"name: hello\nnodes: 4\n# " + b"x" * (9 << 20))
    began = time.process_time()
    with pytest.raises(Refused) as caught:
        read(path)
    assert caught.value.code == Code.INVALID_FILE and "too large" in caught.value.what
    assert "at most 1.0 MiB" in caught.value.why and time.process_time() - began < 1


def test_endless_file_is_refused() -> None:
    with pytest.raises(Refused, match="too large"):
        read_cluster(Path("/dev/zero"))


def test_largest_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    text = "name: hello\nnodes: 4\n"
    path.write_text(text + "#" * (LARGEST_FILE - len(text)))
    assert read_cluster(path) == {"name": "hello", "nodes": 4}


def _bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_bomb(), f"more than {MAX_VALUES} values, aliases counted"),
        ("a: [" + "1," * MAX_VALUES + "]", f"more than {MAX_VALUES} values"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} deep (line 1)"),
        ("name: x\nnodes: &a [*a]\n", "a value contains itself (line 2)"),
        ("nodes: 1" + ":01" * 100_000, "more than 4096 characters (line 1)"),
    ],
    ids=["aliases", "values", "depth", "cycle", "sexagesimal"],
)
def test_yaml_that_is_more_than_a_spec_is_refused_soon(text: str, words: str) -> None:
    began = time.process_time()
    with pytest.raises(Refused) as caught:
        parse_yaml(ClusterSpec, text, "FILE")
    assert words in caught.value.why and time.process_time() - began < 20  # unbounded: minutes, or no memory


def test_aliases_and_merged_keys_are_read() -> None:
    text = "a: &a {site: a, cores: 2}\nhosts: [{<<: *a, name: a1}, {<<: *a, name: a2}]\nsame: *a\n"
    data = load_yaml(text, "FILE")
    assert data["hosts"] == [{"site": "a", "cores": 2, "name": f"a{n}"} for n in (1, 2)] and data["same"] == data["a"]


def _fabric(sites: int, hosts: int) -> dict[str, Any]:
    return {
        "kind": "fabric",
        "version": 1,
        "name": "large",
        "sites": [{"name": f"s{n}"} for n in range(sites)],
        "hosts": [{"name": f"h{n}", "site": "s0", "cores": 1, "memory": "1GiB"} for n in range(hosts)],
    }


def test_largest_fabric_is_a_spec() -> None:
    assert len(parse(FabricSpec, _fabric(MOST_SITES, MOST_HOSTS), "FILE").effective_links()) == MOST_SITES - 1


@pytest.mark.parametrize(
    ("kind", "data", "key", "most"),
    [
        (FabricSpec, _fabric(MOST_SITES + 1, 1), "sites", 512),
        (FabricSpec, _fabric(1, MOST_HOSTS + 1), "hosts", 1024),
        (FabricSpec, _fabric(2, 1) | {"links": [{"between": ["s0", "s1"]}] * 512}, "links", 511),
        (ClusterSpec, {"name": "x", "nodes": [{}] * 251}, "nodes", 250),
        (ClusterSpec, {"name": "x", "nodes": 1, "sites": ["a"] * 513}, "sites", 512),
        (ClusterSpec, {"name": "x", "nodes": 1, "hosts": ["a"] * 1025}, "hosts", 1024),
        (ClusterSpec, {"name": "x", "nodes": 1, "pinned": [0] * 251}, "pinned", 250),
        (ClusterSpec, {"name": "x", "nodes": 1, "needs": ["/x"] * 257}, "needs", 256),
    ],
)
def test_numbers_of_things_have_limits(kind: Any, data: dict[str, Any], key: str, most: int) -> None:
    with pytest.raises(Refused) as caught:
        parse(kind, data, "FILE")
    assert key in caught.value.why and f"at most {most}" in caught.value.why
    assert len(caught.value.why) < 1000


def test_errors_are_listed_up_to_a_few() -> None:
    with pytest.raises(Refused) as caught:
        parse(FabricSpec, _fabric(2, 1) | {"hosts": [{"nme": "x"}] * 100}, "FILE")
    assert len(caught.value.why) < 1000 and "more" in caught.value.why
