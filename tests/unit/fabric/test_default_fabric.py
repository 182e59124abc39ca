"""The embedded fabric, what the netns driver refuses, and facts from /proc/cpuinfo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wherry.base.errors import Code, Refused
from wherry.fabric import default_fabric, host_facts
from wherry.fabric.netns import check
from wherry.model.spec.fabric import FabricSpec, HostSpec
from wherry.model.spec.parse import parse

EXAMPLE = Path(__file__).parents[3] / "examples" / "two-sites.yaml"


def test_the_embedded_fabric_is_the_example() -> None:
    assert EXAMPLE.read_text() == default_fabric.TEXT
    spec = default_fabric.default_fabric()
    check(spec)
    assert [host.name for host in spec.hosts] == ["a1", "a2", "b1", "b2"]


def fabric(**changes: Any) -> FabricSpec:
    data: dict[str, Any] = {
        "kind": "fabric",
        "version": 1,
        "name": "t",
        "sites": [{"name": "a"}, {"name": "b"}],
        "hosts": [{"name": "a1", "site": "a", "cores": 1, "memory": "1GiB"}],
    }
    return parse(FabricSpec, data | changes, "the test")


def test_an_overlay_that_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for overlay, program in (("openvpn", "openvpn"), ("wireguard", "wg"), ("softether", "vpnserver")):
        with pytest.raises(Refused) as error:
            check(fabric(links=[{"between": ["a", "b"], "overlay": overlay}]))
        assert error.value.code == Code.UNSUPPORTED and f"not installed: {program}" in error.value.why
        assert "apt-get install" in error.value.next
    assert error.value.next.startswith("systemctl mask softether-vpnserver && "), "or Debian would start it"


@pytest.mark.parametrize("names", [["a", "a-x"], ["site"], ["site-a"]])
def test_host_names_that_could_be_mistaken_are_refused(names: list[str]) -> None:
    hosts = [{"name": name, "site": "a", "cores": 1, "memory": "1GiB"} for name in names]
    with pytest.raises(Refused, match="begins with"):
        check(fabric(hosts=hosts))


def test_facts_can_only_be_taken_away() -> None:
    limits = {"memory": "1GiB", "without_cpu_features": ["avx2"], "without_files": ["/etc/hostname"]}
    data = {"name": "a1", "site": "a", "cores": 1, "memory": "2GiB", "facts": limits}
    host = parse(HostSpec, data, "the test")
    found = host_facts.gather(host, "4.2.1")
    assert found.memory == 2**30 and found.criu == "4.2.1" and "avx2" not in found.cpu_features
    assert host_facts.missing_files(host, ["/etc/passwd", "/etc/hostname", "/no/such"]) == ["/etc/hostname", "/no/such"]


def test_processor() -> None:
    text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert host_facts.processor(text) == ("Some CPU", frozenset({"fpu", "sse2"}))
    assert host_facts.processor("CPU part\t: 0xd0c\nFeatures\t: fp asimd\n") == ("0xd0c", frozenset({"fp", "asimd"}))
