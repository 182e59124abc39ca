"""`wherry demo`."""

from __future__ import annotations

from pathlib import Path

from wherry.base.interrupts import signals_as_interrupt


def demo(out: Path = Path("demo-report"), *, reps: int = 3, n: int = 1000, keep: bool = False) -> None:
    """HPL natively, on a virtual cluster, and with a live move; writes report.html and the raw samples.

    Parameters
    ----------
    out
        Directory for report.html, samples.jsonl and the runs' files.
    reps
        How often each variant is run; at least 3.
    n
        Order of HPL's matrix, at most 1500.
    keep
        Leave the cluster up at the end.
    """
    from wherry.lab import demo as lab

    with signals_as_interrupt():
        lab.run(out, reps, n, keep)
