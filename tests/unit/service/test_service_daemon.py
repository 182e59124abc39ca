"""SIGTERM ends the daemon whenever it comes, also while it takes over from the one before."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_during_the_recovery_is_kept(tmp_path: Path, name: str) -> None:
    program = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from rest_service import Here
        from wherry.service import context, daemon

        def recover(self):
            os.kill(os.getpid(), signal.{name})

        context.ServiceContext.recover = recover
        place = Here("test", Path({str(tmp_path)!r}))
        place.run.mkdir()
        daemon._run(place, None)
        assert not place.socket.exists()
        print("ended")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ended\n", done.stderr
