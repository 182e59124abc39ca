"""nftables in the network namespace of a host."""

from __future__ import annotations

import subprocess

from wherry.base.errors import Code, Failed, Refused
from wherry.base.remedies import setup
from wherry.fabric import named_netns

_SECONDS = 60


def nft(netns: str, *words: str, text: str = "") -> str:
    """The output of `nft WORDS` with `text` as its input. UNSUPPORTED when nft is missing or the kernel refuses."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nft", *words], input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
        )

    try:
        done = named_netns.inside(netns, run)
    except FileNotFoundError:
        raise _unsupported("the program nft is not installed") from None
    except subprocess.TimeoutExpired:
        why = f"it did not end within {_SECONDS} s in {netns}"
        raise Failed(Code.TIMED_OUT, "nft was stopped", why, "wherry doctor") from None
    if done.returncode:
        raise _unsupported(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit {done.returncode}")
    return done.stdout


def _unsupported(why: str) -> Refused:
    return Refused(Code.UNSUPPORTED, "this machine has no nftables for bridges", why, setup())
