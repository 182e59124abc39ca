"""`wherry project`: accounts that share clusters."""

from __future__ import annotations

from typing import Any

from cyclopts import App

from wherry.base.errors import Code, Refused
from wherry.cli.output import Output, emit, table
from wherry.cli.quota import quota_of, sentence, words
from wherry.client import Client

app = App(name="project", help="Projects: users who share clusters (wherry up FILE --project NAME).")


@app.command
def add(
    name: str,
    /,
    *,
    owner: str,
    nodes: str | None = None,
    cores: str | None = None,
    memory: str | None = None,
    hours: str | None = None,
    lease: str | None = None,
    longest_lease: str | None = None,
    output: Output = "text",
) -> None:
    """Make a project.

    Parameters
    ----------
    name
        The project.
    owner
        The user who chooses its members.
    nodes
        Most nodes of its clusters together, 8 by default; none: no limit.
    cores
        Most cores of these, 8 by default.
    memory
        Most memory of these, 16GiB by default.
    hours
        Most node-hours of its clusters, since it was made; none: no limit.
    lease
        The lease of its clusters whose file has none, such as 8h; none: no end; instance: that of wherry lease limits.
    longest_lease
        The longest lease of its clusters, likewise.
    """
    with Client() as client:
        project = client.add_project(name, owner, quota_of(nodes, cores, memory, hours, lease, longest_lease, {}))
    emit(output, "project", project, lambda: print(f"{name} is there. Next: wherry project member {name} USER"))


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List one's projects, an admin's: all."""
    with Client() as client:
        projects = client.projects()
    rows = [(p["name"], *words(p["quota"]), ", ".join(p["owners"]), ", ".join(p["members"])) for p in projects]
    header = ("NAME", "NODES", "CORES", "MEMORY", "HOURS", "OWNERS", "MEMBERS")
    emit(output, "projects", {"projects": projects}, lambda: table(header, rows, "There are none."))


@app.command
def show(name: str, /, *, output: Output = "text") -> None:
    """Show a project.

    Parameters
    ----------
    name
        The project.
    """
    with Client() as client:
        found = next((project for project in client.projects() if project["name"] == name), None)
    if found is None:
        raise Refused(Code.NOT_FOUND, f"there is no project {name!r} of yours", "", "wherry project list")
    nodes, cores, memory, hours = words(found["quota"])
    rows = [("nodes", nodes), ("cores", cores), ("memory", memory), ("hours", hours)]
    rows += [("owner" if user in found["owners"] else "member", user) for user in found["members"]]
    emit(output, "project", found, lambda: table(("PROJECT", name), rows, ""))


@app.command
def member(name: str, user: str, /, *, owner: bool = False, remove: bool = False, output: Output = "text") -> None:
    """Add a member to a project, change whether it is an owner, or remove it.

    Parameters
    ----------
    name
        The project.
    user
        The member.
    owner
        It chooses members, too.
    remove
        It is no member any more.
    """
    if owner and remove:
        raise Refused(Code.USAGE, "--owner and --remove exclude each other", "", "wherry project member --help")
    with Client() as client:
        project = client.drop_member(name, user) if remove else client.set_member(name, user, owner)
    emit(output, "project", project, lambda: print(f"Members of {name}: {', '.join(project['members'])}."))


@app.command
def quota(
    name: str,
    /,
    *,
    nodes: str | None = None,
    cores: str | None = None,
    memory: str | None = None,
    hours: str | None = None,
    lease: str | None = None,
    longest_lease: str | None = None,
    output: Output = "text",
) -> None:
    """Change the quota of a project. Objects beyond a smaller quota stay.

    Parameters
    ----------
    name
        The project.
    nodes
        Most nodes of its clusters together; none: no limit.
    cores
        Most cores of these.
    memory
        Most memory of these.
    hours
        Most node-hours of its clusters, since it was made; none: no limit.
    lease
        The lease of its clusters whose file has none, such as 8h; none: no end; instance: that of wherry lease limits.
    longest_lease
        The longest lease of its clusters, likewise.
    """
    with Client() as client:
        found: list[dict[str, Any]] = [project for project in client.projects() if project["name"] == name]
        before = found[0]["quota"] if found else {}
        project = client.change_project(name, quota_of(nodes, cores, memory, hours, lease, longest_lease, before))
    emit(output, "project", project, lambda: print(f"{name} may have {sentence(project['quota'])}."))


@app.command
def remove(name: str, /, *, output: Output = "text") -> None:
    """Remove a project. Refused while it has clusters.

    Parameters
    ----------
    name
        The project.
    """
    with Client() as client:
        project = client.remove_project(name)
    emit(output, "project", project, lambda: print(f"{name} is removed."))
