"""The waits of benchmarks for their jobs, and when a run counts."""

from __future__ import annotations

import time

from wherry.base.errors import Code, Failed
from wherry.client import Client
from wherry.model.records import Job


def await_output(client: Client, job: str, text: bytes, seconds: float) -> None:
    """Returns when the job has written `text`. Raises TIMED_OUT after `seconds`."""
    deadline = time.monotonic() + seconds
    while text not in b"".join(data for _, _, data in client.output(job, follow=False)):
        if time.monotonic() > deadline:
            raise Failed(Code.TIMED_OUT, f"the job did not write {text.decode()!r}", f"{seconds:.0f} s went by")
        time.sleep(0.1)


def await_end(client: Client, job: Job) -> Job:
    """Waits for the job's end and returns its final record."""
    for _ in client.output(job.id):
        continue
    return client.job(job.id)


def why_invalid(client: Client, job: Job) -> str:
    """Why an ended run does not count; empty when the program verified its result."""
    text = b"".join(data for stream, _, data in client.output(job.id, follow=False) if stream == "stdout").decode()
    return "" if job.exit_code == 0 and "SUCCESSFUL" in text else f"exit code {job.exit_code}: {text[-200:]}"
