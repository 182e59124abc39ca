"""Forms of the page: each becomes the body of one REST request, whose answer or error is shown."""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wherry.base.errors import Code, Refused
from wherry.model.spec.parse import load_yaml
from wherry.service.web.dependencies import InnerDep, page
from wherry.service.web.inner import Inner
from wherry.service.web.pages import spec_of, yaml_of
from wherry.service.web.rendering import duration, form_of, number, whole

router = APIRouter(include_in_schema=False)
_YAML = 64 * 2**10
"""Characters of a cluster file."""
_FILE = "the page's file"


async def done(request: Request, inner: Inner, text: str, closes: bool = True) -> Response:
    """The answer to a form whose request was accepted: the strip has the operation, if it began one."""
    answer = await page(request, "done.html", text=text, operation=inner.operation.rpartition("/")[2])
    answer.headers["HX-Trigger"] = "wherry-changed, wherry-close" if closes else "wherry-changed"
    if inner.operation:
        answer.headers["Location"] = inner.operation  # the audit log has it; no browser follows it with 200
    return answer


@router.post("/web/moves/plan")
async def plan_move(request: Request, inner: InnerDep) -> Response:
    """The dialog of a move: its cost, by a dry run."""
    form = await form_of(request)
    node, host = form.get("node", ""), form.get("host", "")
    found = await inner.ask("POST", "moves", body={"node": node, "host": host, "dry_run": True})
    command = shlex.join(["wherry", "move", node, "--to", host])
    return await page(request, "move_plan.html", node=node, host=host, predicted=found["predicted"], command=command)


@router.post("/web/moves")
async def begin_move(request: Request, inner: InnerDep) -> Response:
    """Begins the move of a node."""
    form = await form_of(request)
    node, host = form.get("node", ""), form.get("host", "")
    await inner.ask("POST", "moves", body={"node": node, "host": host})
    return await done(request, inner, f"{node} moves to {host}.")


@router.post("/web/clusters")
async def make_cluster(request: Request, inner: InnerDep) -> Response:
    """Shows the YAML of the form, or the plan of the YAML, or makes the cluster; by the button that was pressed."""
    form = await form_of(request)
    if form.get("do") == "yaml":
        fields: dict[str, Any] = dict(form)
        fields["nodes"] = whole(form, "nodes", "nodes", 1)
        fields["cpus"] = number(form, "cpus", "cpus")
        return await page(request, "yaml.html", yaml=yaml_of(spec_of(fields)))
    body = {"spec": await asyncio.to_thread(_spec, form.get("yaml", "")), "source": _FILE}
    if form.get("project"):
        body["project"] = form["project"]
    if form.get("do") != "make":
        found = await inner.ask("POST", "clusters", body={**body, "dry_run": True})
        return await page(request, "cluster_plan.html", plan=found["text"])
    waits = bool(form.get("wait"))
    await inner.ask("POST", "clusters", body={**body, "wait": waits})
    return await done(request, inner, "The cluster waits for room." if waits else "The cluster is being made.")


@router.post("/web/clusters/{name}/remove")
async def remove_cluster(request: Request, name: str, inner: InnerDep) -> Response:
    """Removes a cluster; with `end_jobs` its jobs, too."""
    query = {"end_jobs": "true"} if (await form_of(request)).get("end_jobs") else {}
    await inner.ask("DELETE", "clusters", name, query=query)
    return await done(request, inner, f"Cluster {name} is being removed.")


@router.post("/web/clusters/{name}/lease")
async def extend_lease(request: Request, name: str, inner: InnerDep) -> Response:
    """Has the lease of a cluster end later."""
    by = duration(await form_of(request), "by", "by how long")
    await inner.ask("PUT", "clusters", name, "lease", body={"more": by})
    return await done(request, inner, f"The lease of {name} was extended.")


@router.post("/web/jobs")
async def run_job(request: Request, inner: InnerDep) -> Response:
    """Starts a job."""
    form = await form_of(request)
    try:
        words = shlex.split(form.get("command", ""))
    except ValueError as error:
        raise Refused(Code.USAGE, "this is no command line", str(error), "close each quotation mark") from None
    body: dict[str, Any] = {
        "cluster": form.get("cluster", ""),
        "argv": words,
        "ranks": whole(form, "ranks", "ranks", 1),
    }
    for key in ("measured", "plain"):
        body |= {key: True} if form.get(key) else {}
    if (seconds := number(form, "timeout", "seconds")) is not None:
        body["timeout"] = seconds
    await inner.ask("POST", "jobs", body=body)
    return await done(request, inner, "The job is being started.")


@router.post("/web/jobs/{id}/cancel")
async def cancel_job(request: Request, id: str, inner: InnerDep) -> Response:
    """Ends a job."""
    await inner.ask("DELETE", "jobs", id)
    return await done(request, inner, f"Job {id} is being ended.")


@router.post("/web/operations/{id}/cancel")
async def cancel_operation(request: Request, id: str, inner: InnerDep) -> Response:
    """Asks an operation to end."""
    await inner.ask("POST", "operations", id, "cancel")
    return await done(request, inner, f"Operation {id} was asked to end.")


@router.post("/web/balance")
async def balance(request: Request, inner: InnerDep) -> Response:
    """Measures, and shows the plan or carries it out."""
    form = await form_of(request)
    body: dict[str, Any] = {"seconds": number(form, "seconds", "seconds", 3.0), "apply": form.get("do") == "apply"}
    if form.get("cluster"):
        body["cluster"] = form["cluster"]
    found = await inner.ask("POST", "balance", body=body)
    if body["apply"]:
        return await done(request, inner, "Balancing has begun.")
    return await page(request, "balance_plan.html", plan=found["plan"], before=found["before"], after=found["after"])


@router.post("/web/balance/auto")
async def auto_balance(request: Request, inner: InnerDep) -> Response:
    """Turns automatic balancing on or off."""
    on = (await form_of(request)).get("auto") == "on"
    await inner.ask("PUT", "balance", body={"auto": on})
    return await done(request, inner, f"Automatic balancing is {'on' if on else 'off'}.")


@router.post("/web/account/password")
async def change_password(request: Request, inner: InnerDep) -> Response:
    """Changes one's own password, which ends all sessions and tokens."""
    form = await form_of(request)
    me = (await inner.get("me"))["name"]
    await inner.ask(
        "PUT", "users", me, "password", body={"password": form.get("password", ""), "old": form.get("old", "")}
    )
    answer = await done(request, inner, "The password is changed.")
    answer.headers["HX-Redirect"] = "/web/sign-in"
    return answer


@router.post("/web/account/tokens")
async def make_token(request: Request, inner: InnerDep) -> Response:
    """Makes a token, and shows it this once."""
    form = await form_of(request)
    body = {"name": form.get("name", ""), "days": whole(form, "days", "days", 30)}
    found = await inner.ask("POST", "tokens", body=body)
    answer = await page(request, "token.html", token=found["token"], text=found["text"])
    answer.headers["HX-Trigger"] = "wherry-changed"
    return answer


@router.post("/web/account/tokens/{id}/revoke")
async def revoke_token(request: Request, id: str, inner: InnerDep) -> Response:
    """Ends a token or session."""
    await inner.ask("DELETE", "tokens", id)
    return await done(request, inner, f"Token {id} has ended.")


@router.post("/web/account/ssh-keys")
async def add_ssh_key(request: Request, inner: InnerDep) -> Response:
    """Keeps a public key."""
    form = await form_of(request)
    key = await inner.ask("POST", "ssh-keys", body={"name": form.get("name", ""), "public": form.get("public", "")})
    return await done(request, inner, f"{key['user']} reaches nodes by {key['fingerprint']}.")


@router.post("/web/account/ssh-keys/{id}/remove")
async def remove_ssh_key(request: Request, id: str, inner: InnerDep) -> Response:
    """Forgets a public key."""
    key = await inner.ask("DELETE", "ssh-keys", id)
    return await done(request, inner, f"SSH key {key['name']} is forgotten.")


def _spec(text: str) -> dict[str, Any]:
    """A cluster file, as far as it is one in YAML. INVALID_FILE, also for a text longer than any file."""
    if len(text) > _YAML:
        raise Refused(Code.INVALID_FILE, "the file is too long", f"it has {len(text)} characters", "shorten it")
    found = load_yaml(text, _FILE)
    try:
        json.dumps(found)
    except TypeError as error:
        raise Refused(Code.INVALID_FILE, f"{_FILE} has a value that is none", str(error), "quote it") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise Refused(Code.INVALID_FILE, f"{_FILE} is no cluster's", "it has no keys", "name: hello")
    return found
