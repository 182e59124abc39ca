"""`wherry lease`, `wherry queue`, `wherry up --wait`, and quotas of leases and hours, with a service in memory."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import yaml
from command_line import Wherry
from rest_service import CLUSTER, Service

import waiting
from wherry.cli.main import _run
from wherry.service.cluster_queue import ClusterQueue


@pytest.fixture
def service(service: Service, tmp_path: Path) -> Service:
    """The service, with files of two clusters."""
    (tmp_path / "hello.yaml").write_text(yaml.safe_dump({**CLUSTER, "cpus": 2}))
    (tmp_path / "more.yaml").write_text(yaml.safe_dump({**CLUSTER, "name": "more"}))
    return service


def test_a_lease_is_given_shown_and_changed(service: Service, wherry_: Wherry) -> None:
    assert "No cluster has one" in wherry_("lease", "list")[1]
    code, out, _ = wherry_("up", "hello.yaml", "--lease", "8h")
    assert code == 0 and "when its lease ends: wherry lease extend hello --by 4h" in out
    assert "8h" in wherry_("status")[1] and "hello" in wherry_("lease", "list")[1]
    assert "The lease of hello ends at" in wherry_("lease", "extend", "hello", "--by", "4h")[1]
    (lease,) = json.loads(wherry_("lease", "list", "-o", "json")[1])["leases"]
    assert lease["cluster"] == "hello" and lease["length"] == pytest.approx(12 * 3600, abs=600)
    service.context.store.leases.put(
        "hello",
        service.context.store.leases.of("hello").model_copy(update={"warned": 1.0}),  # type: ignore[union-attr]
    )
    assert "it is removed soon: wherry lease extend hello" in wherry_("status")[1]
    assert "hello has no end" in wherry_("lease", "set", "hello", "none")[1]
    for words in (("up", "hello.yaml", "--lease", "soon"), ("lease", "set", "hello", "soon")):
        code, _, err = wherry_(*words)
        assert code == 2 and "soon" in err, err


def test_limits_and_quotas(service: Service, wherry_: Wherry) -> None:
    assert "a lease of none, at most none" in wherry_("lease", "limits")[1]
    assert "a lease of 8h, at most 3d" in wherry_("lease", "limits", "--lease", "8h", "--longest", "3d")[1]
    assert "a lease of 8h, at most none" in wherry_("lease", "limits", "--longest", "none")[1]
    assert wherry_("user", "add", "ann", "--no-password", "--hours", "500")[0] == 0
    words = ("--lease", "1d", "--longest-lease", "none", "--hours", "9")
    out = wherry_("user", "quota", "ann", *words)[1]
    assert "9 node-hours; lease: 1d; longest lease: none" in out
    assert "0.0 of 9" in (out := wherry_("user", "show", "ann")[1]) and "1d, at most none" in out
    assert "lease" not in wherry_("user", "quota", "ann", "--lease", "instance", "--longest-lease", "instance")[1]
    assert wherry_("project", "add", "team", "--owner", "ann", "--hours", "3", "--lease", "1h")[0] == 0
    assert "hours" in wherry_("project", "show", "team")[1] and "HOURS" in wherry_("project", "list")[1]
    assert wherry_("user", "quota", "ann", "--hours", "x")[0] == 2


def test_a_cluster_waits_and_is_cancelled(service: Service, wherry_: Wherry) -> None:
    queue = ClusterQueue(service.context)
    assert "No cluster waits" in wherry_("queue", "list")[1]
    assert wherry_("up", "hello.yaml")[0] == 0
    code, out, _ = wherry_("up", "more.yaml", "--wait", "--priority", "2", "--detach")
    assert code == 0 and out.startswith("op-")
    queue.run_once()
    out = wherry_("queue", "list")[1]
    assert "more" in out and "no lease gives the time when there is room" in out
    assert "position 1 of 1" in wherry_("op", "list", "--running")[1]
    assert "does not wait any more" in wherry_("queue", "cancel", "more")[1]
    waiting.until(lambda: "cancelled" in wherry_("op", "list")[1], "the end of the operation")
    assert wherry_("queue", "cancel", "more")[0] == 3
    queue.run_once()
    assert wherry_("up", "more.yaml", "--priority", "2")[0] == 2


def test_up_ends_when_the_cluster_is_up(service: Service, wherry_: Wherry) -> None:
    queue = ClusterQueue(service.context)
    assert wherry_("up", "hello.yaml")[0] == 0
    done: list[int] = []
    client = threading.Thread(target=lambda: done.append(_run(["up", "more.yaml", "--wait"])))
    client.start()
    waiting.until(service.context.store.queue.all, "the cluster in the queue")
    queue.run_once()
    assert done == [] and wherry_("down", "hello")[0] == 0
    waiting.until(lambda: queue.run_once() or service.context.store.node("more-2"), "the cluster")
    client.join(waiting.bound())
    code, out, _ = wherry_("status", "more")
    assert done == [0] and code == 0 and "running" in out
