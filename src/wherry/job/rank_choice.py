"""The nodes of a job's ranks where its user leaves them open: by the speed that hosts leave, and by the profile of the
program's last run.

Invariant: changes nothing; a layout in the user's words is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wherry.cluster.host_loads import HostLoads
from wherry.fabric.protocol import Fabric
from wherry.job.program_key import program_key
from wherry.job.validation import JobPlan
from wherry.model.job_request import Layout
from wherry.model.records import Node
from wherry.node.as_user import as_user
from wherry.schedule.host_speed import described, speed_left
from wherry.schedule.rank_placement import Seat, by_profile, even
from wherry.schedule.routes import Routes
from wherry.store.store import Store


class RankChoice:
    """Chooses for the jobs of an instance."""

    def __init__(self, store: Store, fabric: Fabric) -> None:
        self._store = store
        self._fabric = fabric
        self._loads = HostLoads(fabric)

    def applied(self, plan: JobPlan, nodes: Sequence[Node]) -> JobPlan:
        """The plan with the program's key, and with a node for each rank where even blocks in the nodes' order are not
        the best."""
        request = plan.request
        if not request.measured:
            return plan
        plan = replace(plan, program=as_user(request.owner, lambda: program_key(request, plan.paths)))
        told = request.launcher_args or request.layout != Layout(bind_to=request.layout.bind_to)
        if told or len(nodes) < 2 or plan.program is None:
            return plan
        profile = self._store.program(plan.program.key)
        if profile is None and not request.ranks % len(nodes):
            return plan
        seats = self._seats(nodes)
        if profile is not None:
            places, why = by_profile(seats, profile, Routes(self._fabric.spec.effective_links()))
        else:
            places = even(seats, request.ranks)
            why = ""
        plain = even([replace(seat, speed=1.0) for seat in seats], request.ranks)
        if places == plain:
            return replace(plan, placed=why)
        names = tuple(seats[place].node for place in places)
        layout = request.layout.model_copy(update={"rankfile": names})
        why = why or self._faster(seats, [place for place in places if place not in plain] or places)
        return replace(plan, request=request.model_copy(update={"layout": layout}), placed=why)

    def _seats(self, nodes: Sequence[Node]) -> list[Seat]:
        loads, hosts = self._loads(), {host.name: host for host in self._fabric.hosts()}
        asked = {name: sum(node.cpus for node in nodes if node.host == name) for name in hosts}
        return [
            Seat(
                node=node.name, host=node.host, site=hosts[node.host].site, cpus=node.cpus,
                speed=speed_left(hosts[node.host], loads, asked[node.host]),
            )
            for node in nodes
        ]  # fmt: skip

    def _faster(self, seats: Sequence[Seat], places: Sequence[int]) -> str:
        hosts = {host.name: host for host in self._fabric.hosts()}
        host = hosts[seats[places[0]].host]
        figures = described(host, self._loads(), 0)
        return f"the ranks that are not shared evenly go to faster hosts: {host.name} ({figures})"
