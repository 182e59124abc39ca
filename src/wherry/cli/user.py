"""`wherry user`: accounts of people who ask over the network."""

from __future__ import annotations

from typing import Literal

from cyclopts import App

from wherry.base.errors import Code, Refused
from wherry.cli.output import Output, age, emit, table
from wherry.cli.quota import print_me, quota_of, sentence, words
from wherry.cli.secret import ask
from wherry.client import Client

app = App(name="user", help="Users: accounts that ask over the network, with roles and quotas.")
Role = Literal["admin", "user", "viewer"]


@app.command
def add(
    name: str,
    /,
    *,
    role: Role = "user",
    nodes: str | None = None,
    cores: str | None = None,
    memory: str | None = None,
    hours: str | None = None,
    lease: str | None = None,
    longest_lease: str | None = None,
    no_password: bool = False,
    pam: bool = False,
    output: Output = "text",
) -> None:
    """Make an account. Asks for its password, or reads it from standard input.

    Parameters
    ----------
    name
        The account.
    role
        admin: all rights of root, except those over the daemon's machine; user: makes and uses its own objects;
        viewer: looks at that.
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
    no_password
        It gets tokens alone (wherry token create), or signs in by a provider of identities (wherry user identity).
    pam
        Its password is that of the user of this name at the daemon's machine: PAM's service `wherry` checks it.
    """
    quota = quota_of(nodes, cores, memory, hours, lease, longest_lease, {})
    password = None if no_password or pam else ask(f"Password of {name}", repeat=True)
    with Client() as client:
        user = client.add_user(name, role, quota, password, pam)
    emit(
        output,
        "user",
        user,
        lambda: print(f"{name} is there, role {role}. Next: wherry token create NAME --user {name}"),
    )


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the accounts with their quotas."""
    with Client() as client:
        users = client.users()
    rows = [(u["name"], u["role"], *words(u["quota"]), age(u["created"])) for u in users]
    header = ("NAME", "ROLE", "NODES", "CORES", "MEMORY", "HOURS", "AGE")
    emit(output, "users", {"users": users}, lambda: table(header, rows, "There are none. Next: wherry user add NAME"))


@app.command
def show(name: str, /, *, output: Output = "text") -> None:
    """Show an account: its role, its share of its quotas, its projects.

    Parameters
    ----------
    name
        The account.
    """
    with Client() as client:
        me = client.user(name)
    emit(output, "me", me, lambda: print_me(me))


@app.command
def me(*, output: Output = "text") -> None:
    """Show your account at the daemon, and your share of your quotas."""
    with Client() as client:
        found = client.me()
    emit(output, "me", found, lambda: print_me(found))


@app.command
def remove(name: str, /, *, output: Output = "text") -> None:
    """Remove an account; its tokens end at once. Refused while it has clusters.

    Parameters
    ----------
    name
        The account.
    """
    with Client() as client:
        user = client.remove_user(name)
    emit(output, "user", user, lambda: print(f"{name} is removed, and its tokens have ended."))


@app.command
def password(name: str, /, *, pam: bool = False, output: Output = "text") -> None:
    """Change a password; all tokens of the account end. From standard input: the old one of one's own account, then the
    new one, each in a line.

    Parameters
    ----------
    name
        The account.
    pam
        From now on it is that of the user of this name at the daemon's machine: PAM's service `wherry` checks it.
    """
    with Client() as client:
        mine = client.me()
        old = ask("Old password") if mine["share"] and mine["name"] == name and not pam else None
        new = "" if pam else ask(f"New password of {name}", repeat=True)
        user = client.set_password(name, new, old, pam)
    emit(output, "user", user, lambda: print(f"The password of {name} is changed; its tokens have ended."))


@app.command
def identity(name: str, identity: str | None = None, /, *, none: bool = False, output: Output = "text") -> None:
    """Set how the provider of identities names an account, which then signs in there; its sessions end.

    Parameters
    ----------
    name
        The account.
    identity
        Its mail address, name or number there, by the claim of wherry daemon provider.
    none
        The account loses its identity.
    """
    if none == bool(identity):
        raise Refused(Code.USAGE, "one of an identity and --none is needed", "", "wherry user identity --help")
    with Client() as client:
        user = client.set_identity(name, identity)
    told = f"signs in as {identity}" if identity else "signs in by no provider"
    emit(output, "user", user, lambda: print(f"{name} {told}."))


@app.command
def role(name: str, role: Role, /, *, output: Output = "text") -> None:
    """Change the role of an account.

    Parameters
    ----------
    name
        The account.
    role
        admin, user or viewer.
    """
    with Client() as client:
        user = client.change_user(name, role=role)
    emit(output, "user", user, lambda: print(f"{name} has role {user['role']}."))


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
    """Change the quota of an account. Objects beyond a smaller quota stay.

    Parameters
    ----------
    name
        The account.
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
        before = client.user(name)["share"]["quota"]
        user = client.change_user(name, quota=quota_of(nodes, cores, memory, hours, lease, longest_lease, before))
    emit(output, "user", user, lambda: print(f"{name} may have {sentence(user['quota'])}."))


@app.command
def allow(what: Literal["off", "nodes", "jobs"] | None = None, /, *, output: Output = "text") -> None:
    """Set the rights of accounts without the role admin to start programs, or show them; off at first.

    A container of an account has no directory of the machine and few capabilities. The launcher of an MPI job
    (mpirun) runs on the daemon's machine, in a sandbox that is as strict as these containers.

    Parameters
    ----------
    what
        off: nothing; nodes: clusters, and programs on nodes (wherry exec); jobs: MPI jobs, too (wherry run).
    """
    with Client() as client:
        now = client.allowed(what)
    emit(output, "allowed", {"allowed": now}, lambda: print(f"Users may start: {now}."))
