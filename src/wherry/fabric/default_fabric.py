"""The default fabric: two sites of two emulated hosts.

Invariant: the text equals examples/two-sites.yaml (a test compares them), so users read there the fabric that runs.
"""

from __future__ import annotations

from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse_yaml

TEXT = """\
# Two sites of two hosts each, all emulated on this machine: the default of `wherry up` when no fabric is up.
kind: fabric
version: 1
name: two-sites
pool: 10.77.0.0/16 # each cluster takes a /24 of it
underlay: 10.76.0.0/16 # the hosts' own addresses
sites:
  - name: a
  - name: b
hosts:
  - {name: a1, site: a, cores: 2, memory: 4GiB}
  - {name: a2, site: a, cores: 2, memory: 4GiB}
  - {name: b1, site: b, cores: 2, memory: 4GiB}
  - {name: b2, site: b, cores: 2, memory: 4GiB}
links:
  - between: [a, b]
"""


def default_fabric() -> FabricSpec:
    """The embedded default."""
    return parse_yaml(FabricSpec, TEXT, "the embedded fabric")
