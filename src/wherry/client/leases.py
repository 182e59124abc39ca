"""Leases of clusters, and the queue, as JSON."""

from __future__ import annotations

from typing import Any

from wherry.client.requests import Requests

Json = dict[str, Any]


class LeaseRequests(Requests):
    """Requests of a client about leases and the queue. A lease has `ends` (seconds since the epoch), `length` and
    `warned`."""

    def extend_lease(self, cluster: str, seconds: float) -> Json:
        """Has a cluster's lease end so much later."""
        found: Json = self._lease(cluster, {"more": seconds})
        return found

    def set_lease(self, cluster: str, seconds: float | None) -> Json | None:
        """Has it end so long from now; None: never."""
        found: Json | None = self._lease(cluster, {"seconds": seconds})
        return found

    def lease_limits(self) -> Json:
        """The instance's limits: `usual` and `longest` in seconds, each of them None for none."""
        found: Json = self.get("/v1/leases/limits")
        return found

    def set_lease_limits(self, limits: Json) -> Json:
        """Changes them."""
        found: Json = self._transport.ask("PUT", "/v1/leases/limits", body=limits)
        return found

    def queue(self) -> list[Json]:
        """The clusters that wait for room, the first one first: `cluster`, `operation`, `position`, `why`, …"""
        found: list[Json] = self.get("/v1/queue")
        return found

    def _lease(self, cluster: str, body: Json) -> Any:
        return self._transport.ask("PUT", f"/v1/clusters/{cluster}/lease", body=body)["lease"]
