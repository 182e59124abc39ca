"""An account that asks over the network, where a user of this machine asks at the socket.

Invariant: no request over the network names a user or a directory of this machine, whatever the account's role.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wherry.base.errors import Code, Refused
from wherry.model.accounts import Account, Project, Role, is_account
from wherry.model.owner import Owner
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import BY_SSH, FabricSpec
from wherry.service.credentials import PeerCredentials


@dataclass(frozen=True)
class AccountCaller(PeerCredentials):
    """An account with the projects of which it is a member, where it asks from, and by which token. `csrf`: the value
    that a form of its session must send along; empty without a session."""

    account: Account
    projects: tuple[Project, ...]
    address: str
    token: str
    csrf: str = field(default="", repr=False)

    @classmethod
    def of(
        cls, account: Account, projects: tuple[Project, ...], address: str, token: str, csrf: str = ""
    ) -> AccountCaller:
        """The caller that an account is."""
        return cls(account.uid, account.uid, frozenset(), account, projects, address, token, csrf)

    @property
    def who(self) -> str:
        return self.account.name

    @property
    def is_admin(self) -> bool:
        """True when it has the rights of root."""
        return self.account.role is Role.ADMIN

    @property
    def uids(self) -> frozenset[int]:
        """Its own uid and those of its projects."""
        return frozenset({self.uid, *(project.uid for project in self.projects)})

    @property
    def seen_uids(self) -> frozenset[int] | None:
        return None if self.is_admin else self.uids

    def is_authorised(self, group: int | None) -> bool:
        return True

    def owner(self, named: Owner | None, cwd: str = "/") -> Owner:
        """Its own uid, which has no directory. PERMISSION when the request names a user or directories."""
        _require_unnamed(named)
        return owner_of_account(self.uid)

    def owner_of_cluster(self, named: Owner | None, uid: int) -> Owner:
        """The owner of a cluster that it sees, for a program there. PERMISSION when that is a user of this machine."""
        _require_unnamed(named)
        if not is_account(uid):
            why = "it belongs to a user of the daemon's machine, as whom its programs run"
            raise Refused(Code.PERMISSION, "no program can be started on this cluster from here", why, "use the socket")
        return owner_of_account(uid)

    def require(self, uid: int, what: str) -> None:
        """PERMISSION unless `uid` is one of its own, or it is an admin."""
        if not self.is_admin and uid not in self.uids:
            why = "it needs an admin" if uid == 0 else "it is another user's"
            raise Refused(Code.PERMISSION, f"{what} is not yours", why, "ask an admin")


def owner_of_account(uid: int) -> Owner:
    """An account or project as a user: without groups, home or working directory, so that nodes bind none."""
    return Owner(uid=uid, gid=uid, home="/", cwd="/")


def require_plain(spec: ClusterSpec, caller: AccountCaller) -> None:
    """PERMISSION when a cluster file names files of the daemon's machine, or takes CPUs or the disk from everybody
    else."""
    if not caller.is_admin and any(spec.flavor(index).pin for index in range(spec.size)):
        why = "a CPU that a node has to itself is nobody else's"
        raise Refused(Code.PERMISSION, "nodes are pinned to CPUs by admins alone", why, "leave `pin` out")
    if not caller.is_admin and any(spec.flavor(index).disk for index in range(spec.size)):
        what, why = "nodes have a disk from admins alone", "no quota counts disks"
        raise Refused(Code.PERMISSION, what, why, "leave `tmp` out")
    if paths := (*spec.files, *spec.directories):
        what = f"{paths[0]} is a path of the daemon's machine"
        why = "a user over the network names none there: not by `needs`, `directories`, or as a disk"
        raise Refused(Code.PERMISSION, what, why, "leave it out, or name an image: wherry image list")


def require_no_machines(spec: FabricSpec) -> None:
    """PERMISSION when a fabric file names machines, which the daemon would reach with root's keys."""
    if spec.driver in ("libvirt", *BY_SSH):
        what, why = f"a fabric of driver {spec.driver} cannot be made from here", "the daemon reaches its hosts as root"
        raise Refused(Code.PERMISSION, what, why, "wherry fabric up FILE, on the daemon's machine")


def _require_unnamed(named: Owner | None) -> None:
    if named is not None:
        why = "a request over the network has the account's own uid, and no directory is bound into its nodes"
        raise Refused(Code.PERMISSION, "users and directories cannot be named from here", why, "leave `owner` out")
