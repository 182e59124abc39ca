"""The commands on accounts, tokens and projects.

Invariants: accounts and projects are made, changed and removed by root and admins alone, members of a project also by
its owners; nobody sees another's tokens but these; an account or project that has clusters stays.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.units import format_span
from wherry.cluster.leases import limits_for
from wherry.cluster.lookup import known_hosts, not_found
from wherry.cluster.owners_quota import usage
from wherry.model.accounts import (
    PAM,
    Account,
    Allowed,
    AuditEntry,
    HostCapacity,
    Me,
    Project,
    Quota,
    Role,
    Share,
    Token,
)
from wherry.model.owner import Owner
from wherry.model.paging import Page, Wanted, numbered
from wherry.model.records import Host
from wherry.schedule.placement import Used, used_by
from wherry.service import pam, passwords
from wherry.service.account_caller import AccountCaller, owner_of_account
from wherry.service.authentication import new_token
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.rate_limit import RateLimit

_ALLOWED = "accounts.allowed"
"""Setting: the things that accounts other than admins may start."""
_MOST_TOKENS = 100
"""Of one account."""
_PASSWORD_CHANGES = RateLimit(rate=1 / 6, burst=10.0)
"""By account: the old password is shown."""
_ACCOUNTS, _PROJECTS = "the list of users", "the list of projects"


def allowed(context: ServiceContext) -> Allowed:
    """The things that accounts other than admins may start."""
    return Allowed(context.store.setting(_ALLOWED) or Allowed.OFF)


class AccountCommands:
    """The commands of one peer on accounts."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer, self._accounts = context, peer, context.store.accounts

    # Users.

    def me(self) -> Me:
        """Who asks."""
        peer = self._peer
        if not isinstance(peer, AccountCaller):
            return Me(name=peer.who, role="admin" if peer.uid == 0 else "user", uid=peer.uid)
        shares = tuple(self._share(project) for project in peer.projects)
        return Me(name=peer.who, role=peer.account.role, uid=peer.uid, share=self._share(peer.account), projects=shares)

    def users(self) -> list[Account]:
        """By name."""
        self._peer.require(0, _ACCOUNTS)
        return self._accounts.users()

    def user(self, name: str) -> Me:
        """One account with its share and its projects'. NOT_FOUND."""
        self._peer.require(0, _ACCOUNTS)
        account = self._user(name)
        shares = tuple(self._share(project) for project in self._accounts.projects(name))
        return Me(name=name, role=account.role, uid=account.uid, share=self._share(account), projects=shares)

    def add_user(self, name: str, role: Role, quota: Quota, password: str | None, by_pam: bool = False) -> Account:
        """Makes an account; without a password it has tokens only. NAME_TAKEN; UNSUPPORTED without PAM's service."""
        self._peer.require(0, _ACCOUNTS)
        kept = _kept(password, by_pam) if by_pam or password is not None else ""
        account = self._accounts.add_user(name, role, quota, kept, _is_free)
        self._note("user.add", name, f"user {name} was made, role {role}")
        return account

    def change_user(self, name: str, role: Role | None, quota: Quota | None) -> Account:
        """Changes role or quota. Objects over a smaller quota stay. NOT_FOUND."""
        self._peer.require(0, _ACCOUNTS)
        with self._context.store.reserving:
            before = self._user(name)
            change = {key: value for key, value in (("role", role), ("quota", quota)) if value is not None}
            account = before.model_copy(update=change)
            self._accounts.put_user(account)
        self._note("user.change", name, f"user {name} has role {account.role} and {_told(account.quota)}")
        return account

    def remove_user(self, name: str) -> Account:
        """Removes an account; its tokens end at once. WRONG_STATE while it has clusters."""
        self._peer.require(0, _ACCOUNTS)
        with self._context.store.reserving:
            account = self._user(name)
            self._refuse_clusters(f"user {name}", account.uid)
            self._accounts.drop_user(name)
        self._note("user.remove", name, f"user {name} was removed")
        return account

    def set_password(self, name: str, password: str, old: str | None, by_pam: bool = False) -> Account:
        """Changes a password, or has PAM check it, and ends all tokens of the account. To change one's own, the old one
        is given. WRONG_STATE for one's own that PAM checks."""
        own = isinstance(self._peer, AccountCaller) and self._peer.account.name == name
        if not own:
            self._peer.require(0, f"the password of {name}")
        account = self._user(name)
        if own and (account.by_pam or by_pam):
            why = "it is the password of the machine's user, which PAM checks"
            raise Refused(Code.WRONG_STATE, "the password stays as it was", why, "change it there, by passwd")
        if own and not _PASSWORD_CHANGES.take(name):
            raise Refused(Code.TOO_MANY, "the password stays as it was", "too many changes were tried", "wait a minute")
        if own and account.has_password and not passwords.verified(self._accounts.password(name), old or ""):
            raise Refused(Code.PERMISSION, "the password stays as it was", "the old one is wrong", "try again")
        self._accounts.set_password(name, _kept(password, by_pam))
        self._note("user.password", name, f"the password of {name} was changed, and its tokens ended")
        return self._user(name)

    def set_identity(self, name: str, identity: str) -> Account:
        """Replaces how the provider of identities names an account (empty: it does not), and ends its sessions.
        NOT_FOUND, NAME_TAKEN."""
        self._peer.require(0, _ACCOUNTS)
        self._user(name)
        self._accounts.set_identity(name, identity)
        told = f"signs in as {identity!r}" if identity else "signs in by no provider"
        self._note("user.identity", name, f"user {name} {told}")
        return self._user(name)

    def allowed(self) -> Allowed:
        """The things that accounts other than admins may start."""
        return allowed(self._context)

    def allow(self, what: Allowed) -> Allowed:
        """Changes that. Clusters and jobs that run already continue."""
        self._peer.require(0, "the choice of the commands that users may start")
        self._context.store.put_setting(_ALLOWED, what)
        self._note("users.allowed", self._context.instance.name, f"users may start: {what}")
        return what

    # Tokens.

    def tokens(self) -> list[Token]:
        """One's own, or all of root and admins."""
        return self._accounts.tokens(self._only())

    def add_token(self, user: str | None, name: str, days: int) -> tuple[Token, str]:
        """Makes a token of one's own account, or for root and admins of any; its text is shown this once."""
        own = self._peer.account.name if isinstance(self._peer, AccountCaller) else None
        user = user or own
        if user is None:
            remedy = "wherry token create NAME --user USER"
            raise Refused(Code.USAGE, "whose token is it to be?", "users of the machine have none", remedy)
        if user != own:
            self._peer.require(0, f"a token of {user}")
        if len(self._accounts.tokens(self._user(user).name)) >= _MOST_TOKENS:
            why = "an account has no more"
            raise Refused(Code.NO_CAPACITY, f"{user} has {_MOST_TOKENS} tokens", why, "wherry token revoke ID")
        token, text = new_token(self._context, user, name, days)
        self._note("token.create", token.id, f"token {name!r} of {user} was made")
        return token, text

    def sign_in_link(self, user: str | None, link: Callable[[str], str]) -> tuple[str, str]:
        """An account, and a code that signs in as it once: one's own, or for root and admins anybody's. Root may leave
        the name out when there is one admin."""
        own = self._peer.account.name if isinstance(self._peer, AccountCaller) else None
        user = user or own
        if user is None:
            self._peer.require(0, "a link that signs in")
            admins = [account.name for account in self._accounts.users() if account.role is Role.ADMIN]
            if len(admins) != 1:
                why = f"there are {len(admins)} admins: {', '.join(admins[:8])}" if admins else "there is no admin yet"
                remedy = "wherry dashboard --user NAME" if admins else "wherry user add NAME --role admin"
                raise Refused(Code.USAGE, "as whom is the page to be opened?", why, remedy)
            user = admins[0]
        if user != own:
            self._peer.require(0, f"a link that signs in as {user}")
        self._user(user)
        self._note("token.link", user, f"a link was made that signs in once as {user}")
        return user, link(user)

    def revoke(self, id: str) -> Token:
        """Ends a token at once. NOT_FOUND, also for another's."""
        found = next((token for token in self.tokens() if token.id == id), None)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"there is no token {id!r}", "", "wherry token list")
        self._accounts.drop_token(id)
        self._note("token.revoke", id, f"token {found.name!r} of {found.user} was revoked")
        return found

    def sign_out(self) -> Token:
        """Ends the token by which this was asked. USAGE at the socket."""
        if not isinstance(self._peer, AccountCaller):
            raise Refused(Code.USAGE, "there is nothing to sign out of", "you are known by the socket", "")
        found = next(t for t in self._accounts.tokens(self._peer.account.name) if t.id == self._peer.token)
        self._accounts.drop_token(found.id)
        return found

    # Projects.

    def projects(self) -> list[Project]:
        """One's own, or all of root and admins."""
        return self._accounts.projects(self._only())

    def add_project(self, name: str, owner: str, quota: Quota) -> Project:
        """Makes a project. NAME_TAKEN, NOT_FOUND."""
        self._peer.require(0, _PROJECTS)
        project = self._accounts.add_project(name, owner, quota, _is_free)
        self._note("project.add", name, f"project {name} was made, of {owner}")
        return project

    def change_project(self, name: str, quota: Quota) -> Project:
        """Changes the quota."""
        self._peer.require(0, _PROJECTS)
        with self._context.store.reserving:
            project = self.project(name).model_copy(update={"quota": quota})
            self._accounts.put_project(project)
        self._note("project.change", name, f"project {name} has {_told(quota)}")
        return project

    def remove_project(self, name: str) -> Project:
        """Removes a project. WRONG_STATE while it has clusters."""
        self._peer.require(0, _PROJECTS)
        with self._context.store.reserving:
            project = self.project(name)
            self._refuse_clusters(f"project {name}", project.uid)
            self._accounts.drop_project(name)
        self._note("project.remove", name, f"project {name} was removed")
        return project

    def set_member(self, name: str, user: str, owner: bool) -> Project:
        """Adds a member, or makes it an owner or none. NOT_FOUND."""
        self._require_owner(name)
        self._accounts.set_member(name, user, owner)
        self._note("project.member", name, f"{user} is {'an owner' if owner else 'a member'} of project {name}")
        return self.project(name)

    def drop_member(self, name: str, user: str) -> Project:
        """Removes a member. NOT_FOUND; WRONG_STATE for the last owner."""
        project = self._require_owner(name)
        if user not in project.members:
            raise Refused(Code.NOT_FOUND, f"{user} is no member of project {name}", "", f"wherry project show {name}")
        if project.owners == (user,):
            remedy = f"wherry project member {name} OTHER --owner"
            raise Refused(Code.WRONG_STATE, f"{user} is the only owner of project {name}", "", remedy)
        self._accounts.drop_member(name, user)
        self._note("project.member", name, f"{user} is no member of project {name} any more")
        return self.project(name)

    def project(self, name: str) -> Project:
        """One of the projects that the peer sees. NOT_FOUND."""
        found = self.projects()
        for project in found:
            if project.name == name:
                return project
        raise not_found("project", name, [project.name for project in found])

    def owner_for(self, named: Owner | None, project: str | None) -> Owner:
        """The owner of things that the peer makes: itself or whom it names (root), or a project that it sees."""
        if project is None:
            return self._peer.owner(named)
        self._peer.owner(None)
        found = self.project(project)
        self._peer.require(found.uid, f"project {project}")
        return owner_of_account(found.uid)

    # The present state.

    def capacity(self) -> list[HostCapacity]:
        """The free capacity of the hosts. Contacts none."""
        store, managers = self._context.store, self._context.require_managers()
        used = used_by(store.nodes(), store.moves(unfinished=True))

        def room(host: Host) -> HostCapacity:
            taken = used.get(host.name, Used())
            return HostCapacity(
                host=host.name, site=host.site, cores=host.cores, free_cores=max(0.0, host.cores - taken.cpus),
                memory=host.memory, free_memory=max(0, host.memory - taken.memory),
                usable=not host.down and not host.drained,
            )  # fmt: skip

        return [room(host) for host in known_hosts(store, managers.fabric, ())]

    def audit(self, wanted: Wanted, after: int, who: str | None) -> Page[AuditEntry]:
        """A page of the audit log, oldest first, after number `after`."""
        self._peer.require(0, "the audit log")
        number = int(wanted.behind[0]) if wanted.behind else None
        begin = after if wanted.newest or number is None else max(after, number)
        before = number if wanted.newest else None
        found = self._accounts.audit(begin, wanted.limit + 1, who, wanted.newest, before)
        return numbered(found, wanted, lambda entry: entry.id)

    def _share(self, of: Account | Project) -> Share:
        store = self._context.store
        used = usage(store, of.uid, now())
        return Share(name=of.name, quota=of.quota, used=used, leases=limits_for(store, of.uid))

    def _user(self, name: str) -> Account:
        found = self._accounts.user(name)
        if found is None:
            raise not_found("user", name, [user.name for user in self._accounts.users()])
        return found

    def _require_owner(self, name: str) -> Project:
        project = self.project(name)
        if not isinstance(self._peer, AccountCaller) or self._peer.account.name not in project.owners:
            self._peer.require(0, f"the list of members of project {name}")
        return project

    def _refuse_clusters(self, what: str, uid: int) -> None:
        names = [cluster.name for cluster in self._context.store.clusters() if cluster.owner_uid == uid]
        if names:
            why = f"it has clusters: {', '.join(names[:8])}"
            raise Refused(Code.WRONG_STATE, f"{what} cannot be removed", why, f"wherry down {names[0]}")

    def _only(self) -> str | None:
        """Whose tokens and projects the peer sees; None: everybody's. PERMISSION for other users of the machine."""
        if isinstance(self._peer, AccountCaller) and not self._peer.is_admin:
            return self._peer.account.name
        self._peer.require(0, _ACCOUNTS)
        return None

    def _note(self, kind: str, target: str, text: str) -> None:
        self._context.store.add_event(kind, target, text)


def _kept(password: str | None, by_pam: bool) -> str:
    """The hash of a password, or that PAM checks it."""
    if by_pam:
        if password:
            raise Refused(Code.USAGE, "a password is not taken", "PAM has one of its own", "leave it out")
        pam.require_service()
        return PAM
    return passwords.hashed(password or "")


def _is_free(uid: int) -> bool:
    """True when this machine's user database does not have the number."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return True
    return False


def _told(quota: Quota) -> str:
    room = (("nodes", quota.nodes), ("cores", quota.cores), ("bytes of memory", quota.memory))
    parts = (*room, ("node-hours", quota.hours))
    most = "at most " + ", ".join(f"{'any' if value is None else f'{value:g}'} {noun}" for noun, value in parts)
    leases = (("lease", quota.lease), ("longest lease", quota.longest_lease))
    words = ((noun, format_span(of) if isinstance(of, float) else of or "any") for noun, of in leases)
    return most + "".join(f", {noun}: {of}" for noun, of in words)
