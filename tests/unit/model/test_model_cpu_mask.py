"""The processors of a node: features that ranks do without, and the quota."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from wherry.model.cpu_mask import VARIABLE, masked
from wherry.model.cpu_quota import cpu_quota
from wherry.model.spec.cluster import ClusterSpec


def test_glibc_is_told() -> None:
    assert masked({"A": "1"}, ("avx512f", "avx2")) == {"A": "1", VARIABLE: "glibc.cpu.hwcaps=-AVX2,-AVX512F"}


@pytest.mark.parametrize("features", [(), ("avx512_vnni", "amx_tile")])
def test_nothing_is_told_of_what_glibc_does_not_look_for(features: tuple[str, ...]) -> None:
    assert masked({"A": "1"}, features) == {"A": "1"}


def test_what_the_user_sets_stays() -> None:
    env = masked({VARIABLE: "glibc.malloc.check=1"}, ("avx2",))
    assert env == {VARIABLE: "glibc.malloc.check=1:glibc.cpu.hwcaps=-AVX2"}


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text().split(), reason="this processor has no AVX2")
def test_glibc_does_without() -> None:
    """By the output of the dynamic linker itself, of glibc 2.33 or newer."""
    linker = Path("/lib64/ld-linux-x86-64.so.2")
    if not linker.exists():
        pytest.skip("the C library is another one")
    told = [
        subprocess.run([str(linker), "--list-diagnostics"], env=env, capture_output=True, text=True, check=True).stdout
        for env in ({}, masked({}, ("avx2",)))
    ]
    with_it, without = (
        [line for line in text.splitlines() if line.startswith("x86.cpu_features.features")] for text in told
    )
    assert with_it and with_it != without


@pytest.mark.parametrize("name", ["AVX2", "", "a=b", "avx2,fma", "x" * 40])
def test_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        ClusterSpec.model_validate({"name": "c", "nodes": 1, "without_cpu_features": [name]})


@pytest.mark.parametrize(("cpus", "speed", "quota"), [(1, 1, 1.1), (4, 1, 4.4), (1, 0.5, 0.5), (2, 0.25, 0.5)])
def test_a_slower_host_is_exact_and_others_have_head_room(cpus: float, speed: float, quota: float) -> None:
    assert cpu_quota(cpus, speed) == pytest.approx(quota)
