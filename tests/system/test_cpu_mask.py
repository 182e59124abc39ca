"""A cluster whose ranks do without a feature of the processor moves to a host that lacks it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from realworld import real_instance

from wherry.model.cpu_mask import VARIABLE

FABRIC = """\
kind: fabric
version: 1
name: two
sites: [{{name: a}}]
hosts:
  - {{name: a1, site: a, cores: 1, memory: 512MiB}}
  - {{name: a2, site: a, cores: 1, memory: 512MiB, facts: {{without_cpu_features: [{feature}]}}}}
"""
CLUSTER = "version: 1\nname: {name}\nnodes: 1\ncpus: 0.5\nmemory: 128MiB\nhosts: [a1]\n{more}"
_FEATURES = Path("/proc/cpuinfo").read_text().split()
FEATURE = next((name for name in ("avx2", "fma", "sse4_2") if name in _FEATURES), "")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not FEATURE, reason="this processor has none of the features"),
]


def test_ranks_that_do_without_a_feature_go_where_it_is_lacking() -> None:
    with real_instance("cpu") as world:
        world.json("fabric", "up", world.file("two.yaml", FABRIC.format(feature=FEATURE)))
        mask = f"without_cpu_features: [{FEATURE}]\n"
        for name, more in (("plain", ""), ("masked", mask)):
            world.json("up", world.file(f"{name}.yaml", CLUSTER.format(name=name, more=more)))
        said = world("exec", "masked-0", "--", "sh", "-c", f"echo ${VARIABLE}")
        assert said.stdout.strip() == f"glibc.cpu.hwcaps=-{FEATURE.upper()}", said.stderr
        assert world("exec", "plain-0", "--", "sh", "-c", f"echo ${VARIABLE}").stdout.strip() == ""
        refused = world("move", "plain-0", "--to", "a2")
        assert refused.returncode == 4 and f"its CPU lacks {FEATURE}" in refused.stderr, refused.stderr
        assert world.move("masked-0", "a2")["error"] is None
        changed = world("up", world.file("masked.yaml", CLUSTER.format(name="masked", more="")))
        assert changed.returncode == 5 and "do without cannot be changed" in changed.stderr, changed.stderr
