"""Routes of projects and their members."""

from __future__ import annotations

from fastapi import APIRouter

from wherry.model.accounts import AccountName, Project, Quota
from wherry.model.paging import sliced
from wherry.service.rest.dependencies import AccountCommandsDep, Body
from wherry.service.rest.paging import PagingDep

router = APIRouter(tags=["accounts"])


class ProjectBody(Body):
    """A new project, and the account that is its first owner."""

    name: AccountName
    owner: AccountName
    quota: Quota = Quota()


class ProjectChange(Body):
    """The whole quota."""

    quota: Quota


class MemberBody(Body):
    """Whether the member is an owner, who chooses members."""

    owner: bool = False


@router.get("/projects")
def list_projects(accounts: AccountCommandsDep, paging: PagingDep) -> list[Project]:
    """One's own, or for admins all; by name."""
    return paging.answer(sliced(accounts.projects(), paging.wanted(str), lambda project: (project.name,)))


@router.post("/projects", status_code=201)
def add_project(body: ProjectBody, accounts: AccountCommandsDep) -> Project:
    """Makes a project."""
    return accounts.add_project(body.name, body.owner, body.quota)


@router.patch("/projects/{name}")
def change_project(name: str, body: ProjectChange, accounts: AccountCommandsDep) -> Project:
    """Changes the quota; objects beyond a smaller quota stay."""
    return accounts.change_project(name, body.quota)


@router.delete("/projects/{name}")
def remove_project(name: str, accounts: AccountCommandsDep) -> Project:
    """Removes a project. WRONG_STATE while it has clusters."""
    return accounts.remove_project(name)


@router.put("/projects/{name}/members/{user}")
def set_member(name: str, user: str, body: MemberBody, accounts: AccountCommandsDep) -> Project:
    """Adds a member, or makes it an owner or none."""
    return accounts.set_member(name, user, body.owner)


@router.delete("/projects/{name}/members/{user}")
def drop_member(name: str, user: str, accounts: AccountCommandsDep) -> Project:
    """Removes a member. WRONG_STATE for the last owner."""
    return accounts.drop_member(name, user)
