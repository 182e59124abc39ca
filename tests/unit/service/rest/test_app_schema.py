"""The REST interface keeps to its own description: schemathesis asks what that allows, and much that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from accounts_world import Accounts
from rest_service import CLUSTER, running
from schemathesis.specs.openapi.checks import positive_data_acceptance

from properties import examples
from wherry.model.accounts import Allowed, Role
from wherry.service.balance_sampling import BalanceSampling

LEFT_OUT = {
    ("GET", "/v1/events/stream"): "it does not end",
    ("GET", "/v1/doctor"): "it looks at this machine",
    ("DELETE", "/v1/session"): "the token ends with it",
    ("DELETE", "/v1/fabric"): "nothing would be there for the others",
    ("PUT", "/v1/fabric"): "nor then",
}
STRICTER = positive_data_acceptance
"""Not checked: sizes, durations, names and related fields have closer checks than a JSON schema can have."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    """An admin over the network, and a cluster. Routes for the socket alone are refused."""
    with running(tmp_path_factory.mktemp("rest")) as service:
        accounts = Accounts(service)
        accounts.add("boss", Role.ADMIN)
        accounts.allow(Allowed.JOBS)
        accounts.done("boss", "POST", "/v1/clusters", {"spec": CLUSTER})
        yield accounts


def test_every_answer_is_as_described(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = BalanceSampling.measure
    monkeypatch.setattr(BalanceSampling, "measure", lambda view, _, *more: measure(view, 0.01, *more))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        state = {"network": world.address} if scope["type"] == "http" else {}
        await world.app({**scope, "state": state}, receive, send)

    headers = {"Authorization": f"Bearer {world.tokens['boss']}"}
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app, headers=headers)
    found, asked = list[str](), set[tuple[str, str]]()
    for result in schema.get_all_operations():
        operation = result.ok()
        name = (operation.method.upper(), operation.path)
        asked.add(name)
        if name in LEFT_OUT:
            continue

        @hypothesis.settings(
            max_examples=examples(8),
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            _hurry(case)
            case.call_and_validate(headers=headers, excluded_checks=[STRICTER], timeout=60)

        try:
            ask()
        except schemathesis.errors.FailureGroup as error:
            found.append(f"{' '.join(name)}: {error}")
    assert not found, "\n\n".join(found)
    assert asked > LEFT_OUT.keys() and len(asked) > 80


def _hurry(case: schemathesis.Case) -> None:
    """Waits and measurements take no time."""
    for part in (case.query, case.body):
        if isinstance(part, dict):
            for name in ("wait", "gather"):
                part.pop(name, None)
            if isinstance(part.get("seconds"), int | float) and 0 < part["seconds"]:
                part["seconds"] = min(part["seconds"], 0.01)
