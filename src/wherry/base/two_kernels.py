"""Whether containers may move between machines with two kernels, which has been tried too little to be on."""

from __future__ import annotations

import os

SWITCH = "WHERRY_TWO_KERNELS"
"""Variable of the daemon's environment: `1` lets them."""


def may_differ() -> bool:
    """True when the daemon's environment allows moves between two kernels."""
    return os.environ.get(SWITCH) == "1"
