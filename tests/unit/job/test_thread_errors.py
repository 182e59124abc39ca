"""Errors of the daemon's threads: they are in its log, and the next steps are done all the same."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from rest_service import Here

from wherry.base.clock import now
from wherry.job import cleanup
from wherry.job.jobs import Jobs
from wherry.model.records import Job, JobState, Node
from wherry.service.log import log_to_file
from wherry.store import Store


def test_what_ends_a_thread_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    try:
        log_to_file(Here("test", tmp_path))

        def fail() -> None:
            raise OSError("no space left")

        thread = threading.Thread(target=fail, name="watch-job-1")
        thread.start()
        thread.join()
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:], root.level = handlers, level
    text = (tmp_path / "state" / "log").read_text()
    assert "the thread watch-job-1 ended" in text and "OSError: no space left" in text


def test_a_job_ends_with_its_node_though_the_loss_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, store, ended = Here("test", tmp_path), Store(tmp_path / "wherry.db"), threading.Event()
    jobs = Jobs(store, cast(Any, None), cast(Any, None), place, {})
    job = Job(
        id="job-1", cluster="a", argv=("x",), ranks=1, mpi="m", uid=0, gid=0, cwd="/", state=JobState.RUNNING,
        created=now(),
    )  # fmt: skip
    store.put_job(job)
    (jobs.directory("job-1") / "lost").mkdir(parents=True)  # no file can be written there
    monkeypatch.setattr(cleanup, "end_agents", lambda *_: True)
    monkeypatch.setattr(jobs._losses, "_end", lambda _id: ended.set())
    node = Node(name="a-0", cluster="a", index=0, host="a1", address="10.0.0.1", mac="", cpus=1, memory=1)
    jobs.node_lost("job-1", node)
    assert ended.wait(10)
