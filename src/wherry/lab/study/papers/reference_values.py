"""Published values of the papers and their comparison with ours. Only numbers from the papers' text are included,
because values could not be read off their figures. `X` marks values that depend on hardware and are quoted only; ratios
and directions may be compared, and each row states which.
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
"""The paper on Xen, Figures 5 to 8: times relative to native."""
_NETPIPE_MEGABIT = 2**20 * 1e-6
"""Factor from NetPIPE's Mbps (2^20 bits) to Mbit/s (10^6)."""
ON_ONE_HOST = (
    Published(6 << 20, 1200 * _NETPIPE_MEGABIT, "paper: native, 1200 x 2^20 bit/s"),
    Published(6 << 20, 180 * _NETPIPE_MEGABIT, "paper: two machines, 180 x 2^20 bit/s"),
)
"""The paper on Xen, Figure 4: bandwidth at 6 MB on one host, converted to Mbit/s of 10^6 bits."""
STARS = "Stars are the paper's 1200 and 180 Mbps at 6 MB, taken as NetPIPE's of 2^20 bits: 1258 and 189 Mbit/s of 10^6."
"""Caption for figures with these marks."""


@dataclass(frozen=True)
class PaperComparison:
    """A published value, our value (None: not measured), and which comparison is valid. `test`: significance of our
    ratio if it compares two samples.
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
    """A published ratio beside our ratio of two samples, with its significance."""
    estimate = analysis.ratio_or_none(samples, baseline)
    return PaperComparison(
        quantity,
        published,
        location,
        estimate,
        comparable,
        analysis.significance_text(samples, baseline) if estimate else "",
    )


def table(rows: Sequence[PaperComparison], source: str = "") -> Table:
    """Table of published values that have a measured counterpart; `source` names the paper of all rows."""
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
        ("quantity", "published", "where", "here", *(["test"] if tested else []), "comparable"),
        shown,
        main=True,
    )
