"""The role that an account needs for each route: the only table of rights over the network.

A user of this machine, at the socket, has the rights of its uid, which the commands check. The owner of an object is
decided in `wherry.service.seen_store`. Invariant: a route that has no row is refused.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import NamedTuple

from fastapi import Request

from wherry.base.components import installed
from wherry.base.errors import Code, Refused
from wherry.model.accounts import Allowed, Role
from wherry.service.account_caller import AccountCaller
from wherry.service.account_commands import allowed
from wherry.service.context import ServiceContext


class Access(Enum):
    """Permitted callers: anybody; any account; a user or admin; an admin; nobody over the network."""

    OPEN, SIGNED, USER, ADMIN, SOCKET = range(5)


class Rule(NamedTuple):
    """`starts`: the permission that accounts without the role admin need from an admin (docs/design/0027)."""

    access: Access
    starts: Allowed = Allowed.OFF


_OPEN, _SIGNED, _USER, _ADMIN, _SOCKET = (Rule(access) for access in Access)
RULES: dict[tuple[str, str], Rule] = {
    # The fabric.
    ("GET", "/v1/fabric"): _SIGNED,
    ("PUT", "/v1/fabric"): _ADMIN,
    ("DELETE", "/v1/fabric"): _ADMIN,
    ("GET", "/v1/hosts"): _SIGNED,
    ("GET", "/v1/capacity"): _SIGNED,
    ("POST", "/v1/machines/add"): _SOCKET,
    ("POST", "/v1/machines/remove"): _SOCKET,
    ("POST", "/v1/hosts/{host}/drain"): _ADMIN,
    ("POST", "/v1/hosts/{host}/lost"): _ADMIN,
    ("POST", "/v1/hosts/{host}/restore"): _ADMIN,
    ("GET", "/v1/links"): _SIGNED,
    ("PATCH", "/v1/links/{one}/{other}"): _ADMIN,
    # Clusters, nodes, moves.
    ("GET", "/v1/clusters"): _SIGNED,
    ("POST", "/v1/clusters"): Rule(Access.USER, Allowed.NODES),
    ("DELETE", "/v1/clusters/{name}"): _USER,
    ("PUT", "/v1/clusters/{name}/lease"): _USER,
    ("GET", "/v1/queue"): _SIGNED,
    ("GET", "/v1/leases/limits"): _SIGNED,
    ("PUT", "/v1/leases/limits"): _ADMIN,
    ("POST", "/v1/swaps"): _USER,
    ("POST", "/v1/restarts"): Rule(Access.USER, Allowed.NODES),
    ("GET", "/v1/nodes"): _SIGNED,
    ("GET", "/v1/nodes/{name}"): _SIGNED,
    ("GET", "/v1/nodes/{name}/check"): _SIGNED,
    ("GET", "/v1/nodes/{name}/console"): _SIGNED,
    ("POST", "/v1/nodes/{name}/exec"): Rule(Access.USER, Allowed.NODES),
    ("GET", "/v1/moves"): _SIGNED,
    ("GET", "/v1/moves/ledger"): _SIGNED,
    ("GET", "/v1/moves/{id}"): _SIGNED,
    ("POST", "/v1/moves"): _USER,
    # Jobs.
    ("GET", "/v1/jobs"): _SIGNED,
    ("POST", "/v1/jobs"): Rule(Access.USER, Allowed.JOBS),
    ("GET", "/v1/jobs/{id}"): _SIGNED,
    ("DELETE", "/v1/jobs/{id}"): _USER,
    ("POST", "/v1/jobs/{id}/signal"): _USER,
    ("GET", "/v1/jobs/{id}/output"): _SIGNED,
    ("DELETE", "/v1/jobs/{id}/output"): _USER,
    ("PUT", "/v1/jobs/{id}/input"): _USER,
    ("GET", "/v1/jobs/{id}/check"): _SIGNED,
    ("GET", "/v1/jobs/{id}/profile"): _USER,
    ("GET", "/v1/jobs/{id}/mpi-profile"): _USER,
    ("GET", "/v1/programs"): _SIGNED,
    ("DELETE", "/v1/programs/{key}"): _USER,
    ("GET", "/v1/balance"): _SIGNED,
    ("POST", "/v1/balance"): _USER,
    ("PUT", "/v1/balance"): _ADMIN,
    # Routes that read the machine's files or run as root.
    ("GET", "/v1/images"): _SIGNED,
    ("GET", "/v1/images/{name}"): _SIGNED,
    ("PUT", "/v1/images/{name}"): _SOCKET,
    ("DELETE", "/v1/images/{name}"): _SOCKET,
    # Operations and events.
    ("GET", "/v1/operations"): _SIGNED,
    ("GET", "/v1/operations/{id}"): _SIGNED,
    ("POST", "/v1/operations/{id}/cancel"): _USER,
    ("GET", "/v1/events"): _SIGNED,
    ("GET", "/v1/events/stream"): _SIGNED,
    # Reports of studies.
    ("GET", "/v1/reports"): _SIGNED,
    ("GET", "/v1/reports/{name}"): _SIGNED,
    ("PUT", "/v1/reports/{name}"): _USER,
    ("DELETE", "/v1/reports/{name}"): _USER,
    # Accounts.
    ("GET", "/v1/me"): _SIGNED,
    ("POST", "/v1/session"): _OPEN,
    ("DELETE", "/v1/session"): _SIGNED,
    ("POST", "/v1/dashboard"): _SIGNED,
    ("GET", "/v1/users"): _ADMIN,
    ("POST", "/v1/users"): _ADMIN,
    ("GET", "/v1/users/{name}"): _ADMIN,
    ("PATCH", "/v1/users/{name}"): _ADMIN,
    ("DELETE", "/v1/users/{name}"): _ADMIN,
    ("PUT", "/v1/users/{name}/password"): _SIGNED,
    ("PUT", "/v1/users/{name}/identity"): _ADMIN,
    ("GET", "/v1/allowed"): _SIGNED,
    ("PUT", "/v1/allowed"): _ADMIN,
    ("GET", "/v1/tokens"): _SIGNED,
    ("POST", "/v1/tokens"): _SIGNED,
    ("DELETE", "/v1/tokens/{id}"): _SIGNED,
    ("GET", "/v1/keys"): _SIGNED,
    ("POST", "/v1/keys"): _SIGNED,
    ("DELETE", "/v1/keys/{id}"): _SIGNED,
    ("GET", "/v1/ssh-keys"): _SIGNED,
    ("POST", "/v1/ssh-keys"): _SIGNED,
    ("DELETE", "/v1/ssh-keys/{key}"): _SIGNED,
    ("GET", "/v1/ssh"): _SIGNED,
    ("GET", "/v1/projects"): _SIGNED,
    ("POST", "/v1/projects"): _ADMIN,
    ("PATCH", "/v1/projects/{name}"): _ADMIN,
    ("DELETE", "/v1/projects/{name}"): _ADMIN,
    ("PUT", "/v1/projects/{name}/members/{user}"): _USER,
    ("DELETE", "/v1/projects/{name}/members/{user}"): _USER,
    ("GET", "/v1/audit"): _ADMIN,
    # The service.
    ("GET", "/v1/listener"): _ADMIN,
    ("PUT", "/v1/listener"): _SOCKET,
    ("GET", "/v1/provider"): _ADMIN,
    ("PUT", "/v1/provider"): _SOCKET,
    ("GET", "/v1/version"): _SIGNED,
    ("GET", "/v1/doctor"): _ADMIN,
    ("GET", "/healthz"): _OPEN,
    ("GET", "/metrics"): _SIGNED,
    # Routes of components.
    **{route: Rule(Access[who]) for component in installed() for route, who in component.rights.items()},
}
OPEN_PAGES = ("/web/sign-in", "/web/enter")
"""Pages for who has not signed in yet; each can be seen and sent."""
PROVIDER_PAGES = ("/web/provider", "/web/provider/callback")
"""The way to the provider of identities, and back."""
STATIC = ("app.js", "htmx.min.js", "icon.svg", "style.css", "uPlot.iife.min.js", "uPlot.min.css")
"""Files of the page, which tell nothing."""
PAGES: dict[tuple[str, str], Rule] = {
    # The page asks routes of RULES as who asked for it (wherry.service.web), so these rows say only who may see it.
    ("GET", "/"): _OPEN,
    **{(method, path): _OPEN for path in OPEN_PAGES for method in ("GET", "POST")},
    **{("GET", path): _OPEN for path in PROVIDER_PAGES},
    **{("GET", f"/web/static/{name}"): _OPEN for name in STATIC},
    **{("GET", f"/web{path}"): _SIGNED for path in (
        "", "/clusters/new", "/links", "/jobs", "/jobs/{id}", "/jobs/{id}/output", "/jobs/{id}/profile", "/moves",
        "/moves/{id}", "/nodes/{name}/move", "/balance", "/events", "/reports", "/reports/{name}",
        "/reports/{name}/content", "/account", "/operations",
    )},
    ("GET", "/web/admin"): _ADMIN,
    **{("POST", f"/web{path}"): _SIGNED for path in (
        "/sign-out", "/clusters", "/clusters/{name}/remove", "/clusters/{name}/lease", "/moves", "/moves/plan", "/jobs",
        "/jobs/{id}/cancel", "/operations/{id}/cancel", "/balance", "/account/password", "/account/tokens",
        "/account/tokens/{id}/revoke", "/account/ssh-keys", "/account/ssh-keys/{id}/remove",
    )},
    **{("POST", f"/web{path}"): _ADMIN for path in (
        "/balance/auto", "/admin/allowed", "/admin/hosts/{name}/drain", "/admin/hosts/{name}/restore",
        "/admin/users", "/admin/users/{name}", "/admin/users/{name}/remove",
        "/admin/projects", "/admin/projects/{name}", "/admin/projects/{name}/remove", "/admin/projects/{name}/members",
    )},
}  # fmt: skip
OPEN = frozenset((method, path) for (method, path), rule in (RULES | PAGES).items() if rule.access is Access.OPEN)
"""Routes without a token; these paths have no parameters."""
_STARTS = {Allowed.NODES: "make clusters or run programs", Allowed.JOBS: "run MPI jobs"}


async def authorize(request: Request) -> None:
    """A dependency of all routes. PERMISSION when the caller's account may not use this one."""
    caller = request.scope["state"].get("peer")
    if not isinstance(caller, AccountCaller):
        return
    path = request.scope["route"].path
    if (request.method, path) not in RULES and (request.method, path) not in PAGES:
        path = f"/v1{path}"  # FastAPI gives it with its router's prefix or without, by its version
    rule = RULES.get((request.method, path)) or PAGES.get((request.method, path), _SOCKET)
    require_role(caller, rule, f"{request.method} {request.url.path}")
    if rule.starts is not Allowed.OFF:
        await asyncio.to_thread(require_allowed, caller, rule, request.app.state.context)


def require_role(caller: AccountCaller, rule: Rule, asked: str) -> None:
    """PERMISSION when the caller's role is too small for the request."""
    role = caller.account.role
    if rule.access is Access.SOCKET:
        why = "it reaches into the daemon's machine, whatever the role"
        raise Refused(Code.PERMISSION, f"{asked} is not for the network", why, "use the command on that machine")
    if rule.access is Access.ADMIN and role is not Role.ADMIN:
        raise Refused(Code.PERMISSION, f"{asked} needs an admin", f"your role is {role}", "ask an admin")
    if rule.access is Access.USER and role is Role.VIEWER:
        raise Refused(Code.PERMISSION, f"{asked} changes something", "your role is viewer", "ask an admin")


def require_allowed(caller: AccountCaller, rule: Rule, context: ServiceContext) -> None:
    """PERMISSION when an admin has not allowed to start this."""
    if rule.starts is Allowed.OFF or caller.is_admin:
        return
    given = allowed(context)
    if list(Allowed).index(given) < list(Allowed).index(rule.starts):
        why = f"an admin has allowed: {given}"
        raise Refused(Code.PERMISSION, f"users may not {_STARTS[rule.starts]} here", why, "ask an admin")
