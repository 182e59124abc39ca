"""Forms of the administration, as those in `actions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wherry.base.errors import Code, Refused
from wherry.base.units import parse_size
from wherry.service.web.actions import done
from wherry.service.web.dependencies import InnerDep
from wherry.service.web.rendering import duration, form_of, number, whole

router = APIRouter(include_in_schema=False)
_UNLIMITED = "none"


@router.post("/web/admin/allowed")
async def set_allowed(request: Request, inner: InnerDep) -> Response:
    """Sets the things that users may start."""
    what = (await form_of(request)).get("allowed", "")
    await inner.ask("PUT", "allowed", body={"allowed": what})
    return await done(request, inner, f"Users may start: {what}.")


@router.post("/web/admin/users")
async def add_user(request: Request, inner: InnerDep) -> Response:
    """A new account."""
    form = await form_of(request)
    body: dict[str, Any] = {"name": form.get("name", ""), "role": form.get("role", ""), "quota": quota_of(form)}
    if form.get("password"):
        body["password"] = form["password"]
    await inner.ask("POST", "users", body=body)
    return await done(request, inner, f"User {body['name']} was made.")


@router.post("/web/admin/users/{name}")
async def change_user(request: Request, name: str, inner: InnerDep) -> Response:
    """Another role or quota."""
    form = await form_of(request)
    await inner.ask("PATCH", "users", name, body={"role": form.get("role"), "quota": quota_of(form)})
    return await done(request, inner, f"User {name} was changed.")


@router.post("/web/admin/users/{name}/remove")
async def remove_user(request: Request, name: str, inner: InnerDep) -> Response:
    """An account less."""
    await inner.ask("DELETE", "users", name)
    return await done(request, inner, f"User {name} was removed.")


@router.post("/web/admin/projects")
async def add_project(request: Request, inner: InnerDep) -> Response:
    """A new project."""
    form = await form_of(request)
    body = {"name": form.get("name", ""), "owner": form.get("owner", ""), "quota": quota_of(form)}
    await inner.ask("POST", "projects", body=body)
    return await done(request, inner, f"Project {body['name']} was made.")


@router.post("/web/admin/projects/{name}")
async def change_project(request: Request, name: str, inner: InnerDep) -> Response:
    """Another quota."""
    await inner.ask("PATCH", "projects", name, body={"quota": quota_of(await form_of(request))})
    return await done(request, inner, f"Project {name} was changed.")


@router.post("/web/admin/projects/{name}/remove")
async def remove_project(request: Request, name: str, inner: InnerDep) -> Response:
    """A project less."""
    await inner.ask("DELETE", "projects", name)
    return await done(request, inner, f"Project {name} was removed.")


@router.post("/web/admin/projects/{name}/members")
async def set_member(request: Request, name: str, inner: InnerDep) -> Response:
    """Another member, or one less."""
    form = await form_of(request)
    user = form.get("user", "")
    if form.get("do") == "remove":
        await inner.ask("DELETE", "projects", name, "members", user)
    else:
        await inner.ask("PUT", "projects", name, "members", user, body={"owner": bool(form.get("owner"))})
    return await done(request, inner, f"The members of project {name} were changed.")


@router.post("/web/admin/hosts/{name}/drain")
async def drain_host(request: Request, name: str, inner: InnerDep) -> Response:
    """All nodes leave a host, which then accepts none."""
    await inner.ask("POST", "hosts", name, "drain")
    return await done(request, inner, f"The nodes of host {name} are moved elsewhere.")


@router.post("/web/admin/hosts/{name}/restore")
async def restore_host(request: Request, name: str, inner: InnerDep) -> Response:
    """A host accepts nodes again."""
    await inner.ask("POST", "hosts", name, "restore")
    return await done(request, inner, f"Host {name} accepts nodes again.")


def quota_of(form: Mapping[str, str]) -> dict[str, Any]:
    """A whole quota; `none` is no limit. USAGE for an empty field: it would be a limit that nobody chose."""
    found: dict[str, Any] = {}
    for key in ("nodes", "cores", "memory", "hours"):
        text = form.get(key, "").strip()
        if not text:
            raise Refused(Code.USAGE, f"{key}: it is empty", "", f"write a number, or {_UNLIMITED}")
        if text == _UNLIMITED:
            found[key] = None
        elif key == "memory":
            found[key] = _bytes(text)
        else:
            found[key] = whole(form, key, key) if key == "nodes" else number(form, key, key)
    for key in ("lease", "longest_lease"):
        text = form.get(key, "").strip()
        words: dict[str, Any] = {_UNLIMITED: None, "instance": "instance"}
        found[key] = words[text] if text in words else duration(form, key, key.replace("_", " "))
    return found


def _bytes(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 17:
        return int(text)
    try:
        return parse_size(text)
    except ValueError as error:
        raise Refused(Code.USAGE, "memory: this is no size", str(error), "write it as 16GiB") from None
