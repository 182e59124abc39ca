"""The list of studies, those of components at its end."""

from __future__ import annotations

import difflib

from wherry.base.components import parts
from wherry.base.errors import Code, Refused
from wherry.lab.study.experiment import Study
from wherry.lab.study.papers.cloud_overhead import CloudOverhead
from wherry.lab.study.papers.colocated import Colocated
from wherry.lab.study.papers.migration_cost import MigrationCost
from wherry.lab.study.papers.mixed import Mixed
from wherry.lab.study.papers.multi_site import MultiSite
from wherry.lab.study.papers.nic_degradation import NicDegradation
from wherry.lab.study.papers.packing import Packing
from wherry.lab.study.papers.topology import Topology
from wherry.lab.study.papers.xen_migration import XenMigration

STUDIES: tuple[type[Study], ...] = (
    Colocated,
    NicDegradation,
    CloudOverhead,
    MigrationCost,
    XenMigration,
    MultiSite,
    Packing,
    Topology,
    Mixed,
    *(study for _, studies in parts("studies") for study in studies),
)


def find(name: str) -> type[Study]:
    """Finds a study by its name. Raises NOT_FOUND with the nearest name."""
    names = {study.name: study for study in STUDIES}
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, 1)
    why = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
    raise Refused(Code.NOT_FOUND, f"there is no study {name}", why, "wherry study list")
