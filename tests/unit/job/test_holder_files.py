"""Files of a job that a power cut left empty, or that are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.job import holder_files


@pytest.mark.parametrize("left", [b"", b" " * 160, b"exit 7\n", b"ended 5\n", b"7", b"a b", b"\xff\0\xff"])
def test_a_damaged_file_of_a_job_is_as_none(tmp_path: Path, left: bytes) -> None:
    """Else each look at the job would fail, and it would run for ever."""
    for name in ("exit", "pid"):
        (tmp_path / name).write_bytes(left)
    assert holder_files.read_exit(tmp_path) is None and holder_files.read_holder(tmp_path) is None
    holder_files.end_holder(tmp_path)
