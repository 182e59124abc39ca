"""Files and specs are bounded: whatever a file holds, it is refused soon, with the bound."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from wherry.base.errors import Code, Refused
from wherry.cli.files import LARGEST_FILE, read_cluster, read_fabric, read_tiles
from wherry.model.spec.base import MOST_HOSTS, MOST_SITES
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import DEEPEST, MOST_VALUES, load_yaml, parse, parse_yaml


@pytest.mark.parametrize("read", [read_cluster, read_fabric, read_tiles])
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
        (_bomb(), f"more than {MOST_VALUES} values, aliases counted"),
        ("a: [" + "1," * MOST_VALUES + "]", f"more than {MOST_VALUES} values"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), f"nested more than {DEEPEST} deep (line 1)"),
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
