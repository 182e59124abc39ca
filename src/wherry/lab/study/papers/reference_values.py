"""What the papers published, and how our number stands beside it.

Only numbers in the papers' text are here: their figures' bars were not readable. `X` marks what depends on hardware and
may only be quoted; what may be compared is a ratio or a direction, and each row says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wherry.lab.report.figures import Published
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate
from wherry.lab.study import analysis

XEN = "Neves, Righi, Maillard, Navaux: Xen on Pentium III nodes with Fast Ethernet"
KVM = "private cloud: KVM and Eucalyptus on Dell R610 with Gigabit Ethernet"
WIDE = "Tatezono, Maruyama, Matsuoka: wide-area MPI on Xen, dual Opterons with Gigabit Ethernet, NIST Net"
RATIOS = {
    "hpl6": {"nodes": 1.09},
    "hpl3": {"nodes": 1.011, "moved": 1.011 * 1.284},
    "sp": {"nodes": 1.04, "moved": 1409 / 1267},
}
"""Of the paper on Xen, Figures 5 to 8: times as multiples of the native one."""
_NETPIPE_MEGABIT = 2**20 * 1e-6
"""Mbit in what NetPIPE prints as Mbps."""
ON_ONE_HOST = (
    Published(6 << 20, 1200 * _NETPIPE_MEGABIT, "paper: native, 1200 x 2^20 bit/s"),
    Published(6 << 20, 180 * _NETPIPE_MEGABIT, "paper: two machines, 180 x 2^20 bit/s"),
)
"""Of its Figure 4: Mbit/s at 6 MB on one host, which NetPIPE counts in 2^20 bits and our axes in 10^6."""
STARS = "Stars are the paper's 1200 and 180 Mbps at 6 MB, taken as NetPIPE's of 2^20 bits: 1258 and 189 Mbit/s of 10^6."
"""What a figure with them says."""


@dataclass(frozen=True)
class PaperComparison:
    """A published value, ours (None: not measured), and what may and may not be compared.

    `test` says whether what ours compares differs beyond chance, where it compares two samples.
    """

    quantity: str
    published: str
    location: str
    ours: Estimate | str | None
    comparable: str
    test: str = ""


def ratio(
    quantity: str, published: str, location: str, samples: Sequence[float], baseline: Sequence[float], comparable: str
) -> PaperComparison:
    """A published ratio with ours of two samples, and its test."""
    found = analysis.ratio_or_none(samples, baseline)
    return PaperComparison(
        quantity, published, location, found, comparable, analysis.significance_text(samples, baseline) if found else ""
    )


def table(rows: Sequence[PaperComparison], source: str = "") -> Table:
    """The table of published values that have one of ours beside them; `source` is what all of them are from."""
    ours = [(row, row.ours if isinstance(row.ours, str) else row.ours.text()) for row in rows if row.ours is not None]
    tested = any(row.test for row in rows)
    shown = [
        (row.quantity, row.published, row.location, text, *([row.test] if tested else []), row.comparable)
        for row, text in ours
    ]
    if len(ours) < len(rows):
        shown.append((f"and {len(rows) - len(ours)} more", "", "", "not measured", *([""] if tested else []), ""))
    return Table(
        f"Beside the published values{f' ({source})' if source else ''}",
        ("quantity", "published", "where", "here", *(["test"] if tested else []), "what may be compared"),
        shown,
        main=True,
    )
