"""Directories of a user that are bound into the running containers of a cluster, because a job needs them.

Invariants: all containers of a cluster get a directory or none does; a row has the directory before any node has
it, so the next daemon completes or removes the unfinished binds of a killed one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.progress import Progress, quiet
from wherry.cluster.binds import is_bound, require_bindable
from wherry.cluster.each import attempt, for_each
from wherry.cluster.lookup import find_cluster
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.model.accounts import is_account
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Node, NodeState
from wherry.node.as_user import as_user
from wherry.node.protocol import NodeDriver
from wherry.store.store import Store


class HotBinds:
    """Binds directories into the containers of clusters. The caller of `add` and `end` holds the cluster's claim
    exclusively."""

    def __init__(self, store: Store, fabric: Fabric, drivers: Mapping[str, NodeDriver], placements: Placements) -> None:
        self._store, self._fabric, self._drivers, self._placements = store, fabric, drivers, placements
        self._shown = set[tuple[str, str, str, int]]()
        """Node, host, directory and its device that a node was found to show."""

    def unseen(self, name: str, mounts: Sequence[str]) -> tuple[str, ...]:
        """Those of this machine's mounts that a container of the cluster does not show, as they were made after it."""
        found = []
        for path in mounts:
            try:
                device = os.stat(path).st_dev
                os.statvfs(path)
            except OSError:  # gone, or (FUSE) closed to root, who is to mount it
                continue
            nodes = [n for n in self._containers(name) if (n.name, n.host, path, device) not in self._shown]
            lacking = list[str]()

            def look(node: Node, path: str = path, device: int = device, lacking: list[str] = lacking) -> None:
                try:
                    shown = self._drivers[node.kind].shows(self._placements.placement(node), path)
                except WherryError:  # its host does not answer, which the job finds
                    return
                if shown:
                    self._shown.add((node.name, node.host, path, device))
                else:
                    lacking.append(node.name)

            for_each(look, nodes, _name)
            found += [path] if lacking else []
        return tuple(found)

    def check(self, name: str, directories: Sequence[str]) -> Cluster:
        """The cluster, if the directories can be bound into its running containers. Refused while one of them moves."""
        cluster = find_cluster(self._store, name)
        if is_account(cluster.owner_uid):
            what, why = f"{directories[0]} is not bound into nodes of {name}", "no directory of the machine is"
            raise Refused(Code.PERMISSION, what, why, "wherry cp has files go there, for instance to /tmp of each node")
        self.check_still(name, directories)
        what = f"{', '.join(directories)} cannot be bound into the nodes of {name}"
        for host in sorted({node.host for node in self._containers(name)}):
            if missing := self._fabric.missing_files(host, list(directories)):
                why = f"host {host} lacks {missing[0]}"
                raise Refused(Code.INCOMPATIBLE_HOST, what, why, "move it to a directory that all hosts have")
        return cluster

    @staticmethod
    def require(cluster: Cluster, owner: Owner, directories: Sequence[str]) -> None:
        """Refused when the owner may not have a directory bound into nodes that run."""
        for path in directories:
            as_user(owner, partial(require_bindable, path, cluster))

    def check_still(self, name: str, directories: Sequence[str]) -> None:
        """Refused while a running container of the cluster moves, or one is lost."""
        moving = {move.node for move in self._store.moves(unfinished=True)}
        for node in self._containers(name):
            if node.name in moving or node.state != NodeState.RUNNING:
                what = f"{', '.join(directories)} cannot be bound into the nodes of {name}"
                state = NodeState.MOVING if node.name in moving else node.state
                remedy = "wherry op list" if state == NodeState.MOVING else "wherry up FILE repairs it"
                raise Refused(Code.WRONG_STATE, what, f"{node.name} is {state}", remedy)

    def add(self, name: str, owner: Owner, directories: Sequence[str], progress: Progress = quiet) -> None:
        """Binds directories of the owner into all running containers of the cluster, or into none. From then on moved,
        repaired and new nodes have them, too. Directories that are bound already are left out."""
        self.end(name)
        cluster = self.check(name, directories)
        new = tuple(path for path in directories if not is_bound(path, cluster.binds))
        if not new:
            return
        self.require(cluster, owner, new)
        nodes = self._containers(name)
        self._store.put_cluster(cluster.model_copy(update={"binding": new}))
        try:
            errors = for_each(lambda node: self._bind(node, new), nodes, _name)
            if errors:
                what = f"{', '.join(new)} was not bound into the nodes of {name}"
                raise Failed(Code.FAILED, what, "; ".join(errors[:3]), f"wherry down {name}, then wherry up FILE")
            self._store.put_cluster(cluster.model_copy(update={"binds": (*cluster.binds, *new), "binding": ()}))
        except BaseException:
            attempt(name, lambda: self.end(name))
            raise
        for path in new:
            text = f"{path} is bound into {len(nodes)} node{'s'[: len(nodes) > 1]} of {name}, writable"
            self._store.add_event("cluster.bind", name, text)
            progress(text)

    def try_to_add(self, name: str, owner: Owner, directory: str, progress: Progress) -> None:
        """As `add`, of a directory without which the program may do as well; a warning to the user has the reason why
        it is not bound."""
        try:
            self.add(name, owner, [directory], progress)
        except WherryError as error:
            if error.code is Code.WRONG_STATE:
                raise
            progress(not_bound(directory, name, error.why or error.what))

    def end(self, name: str) -> None:
        """Removes the binds of an interrupted `add` from the nodes. Failed when a node keeps it."""
        cluster = find_cluster(self._store, name)
        if not cluster.binding:
            return
        errors = for_each(lambda node: self._unbind(node, cluster.binding), self._containers(name), _name)
        if errors:
            what = f"{', '.join(cluster.binding)} is still bound into nodes of {name}"
            raise Failed(Code.FAILED, what, "; ".join(errors[:3]), f"wherry down {name}")
        self._store.put_cluster(cluster.model_copy(update={"binding": ()}))

    def _bind(self, node: Node, directories: Sequence[str]) -> None:
        for path in directories:
            self._drivers[node.kind].bind(self._placements.placement(node), path)

    def _unbind(self, node: Node, directories: Sequence[str]) -> None:
        for path in directories:
            self._drivers[node.kind].unbind(self._placements.placement(node), path)

    def _containers(self, name: str) -> list[Node]:
        return [node for node in self._store.nodes(name) if node.kind == "container"]


def not_bound(directory: str, cluster: str, why: str) -> str:
    """The warning to the user about a directory."""
    return f"warning: {directory} is not bound into the nodes of {cluster}, which see it read-only or not at all: {why}"


def _name(node: Node) -> str:
    return node.name
