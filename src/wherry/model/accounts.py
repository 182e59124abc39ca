"""Accounts of people who ask over the network, their projects, tokens, quotas, and the audit log.

An account and a project have a uid of their own, which owns their objects. Frozen data; nothing here does
I/O. No secret is part of a record.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from wherry.model.records import Record
from wherry.model.spec.cluster import LONGEST_LEASE, SHORTEST_LEASE

FIRST_UID, LAST_UID = 1_900_000_000, 1_999_999_999
"""Of accounts and projects: outside of Debian's and systemd's ranges (systemd's page UIDS-GIDS) and of subuid's."""
HIDDEN = ("/home", "/root", "/srv", "/mnt", "/media", "/var/log", "/var/mail", "/var/spool", "/var/backups")
"""Directories of the daemon's machine that are empty in the containers of accounts: files of users and services there
are often readable by everybody, also by accounts of strangers."""
NODE_USER, NODE_HOME = "user", "/tmp"  # noqa: S108 - each node has its own
"""The name of the account as a user of its nodes, and the only directory there in which it can write."""
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,31}", re.ASCII)
PAM = "pam"
"""In place of the hash of a password: the machine's PAM checks it."""
LONGEST_TOKEN, USUAL_TOKEN = 366, 30
"""Days after which a token ends, at most and by default."""


def is_account(uid: int) -> bool:
    """True for the uid of an account or a project."""
    return FIRST_UID <= uid <= LAST_UID


def _account_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value[:40]!r} is not a name: at most 32 lower-case letters, digits, '_', '.', '-', a letter first"
        )
    return value


AccountName = Annotated[str, AfterValidator(_account_name)]
"""Name of a user or a project."""


class Role(StrEnum):
    """The rights of an account: those of root except over the daemon's machine; its own objects; to look at those."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"


class Allowed(StrEnum):
    """The programs that accounts without the role admin may start: none; clusters and programs on nodes; MPI jobs,
    too."""

    OFF = "off"
    NODES = "nodes"
    JOBS = "jobs"


Nodes = Annotated[int, Field(ge=0, le=1_000_000)]
Cores = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Hours = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]


LeaseSeconds = Annotated[float, Field(ge=SHORTEST_LEASE, le=LONGEST_LEASE, allow_inf_nan=False)]


class LeaseLimits(Record):
    """The lease of a cluster whose file has none (None: it has no end), and the longest lease (None: no limit), in
    seconds."""

    usual: LeaseSeconds | None = None
    longest: LeaseSeconds | None = None


class Quota(Record):
    """The most that the clusters of an account or a project may have together; None is no limit. `memory`: bytes;
    `hours`: of all its nodes, since it was made.
    `lease` and `longest_lease` are as in LeaseLimits, or the `instance`'s."""

    nodes: Nodes | None = 8
    cores: Cores | None = 8.0
    memory: Bytes | None = 16 * 2**30
    hours: Hours | None = None
    lease: LeaseSeconds | Literal["instance"] | None = "instance"
    longest_lease: LeaseSeconds | Literal["instance"] | None = "instance"


class Usage(Record):
    """The resources that the clusters of an account or a project use, and the node-hours that they have used."""

    nodes: int = 0
    cores: float = 0.0
    memory: int = 0
    hours: float = 0.0


class Account(Record):
    """A person or a program that asks over the network. `has_password`: it can sign in without a token, `by_pam`: with
    the password of the machine's user of this name. `identity`: how the provider of identities names the person
    (empty: it does not), and `subject`: its issuer and own number there, from the first sign-in on."""

    name: str
    uid: int
    role: Role
    created: float
    quota: Quota = Quota()
    has_password: bool = False
    by_pam: bool = False
    identity: str = ""
    subject: str = ""


class Project(Record):
    """Accounts that share clusters. Its `owners` are those of the `members` who choose these."""

    name: str
    uid: int
    created: float
    quota: Quota = Quota()
    members: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


class TokenKind(StrEnum):
    """The place of a token: the header of a request, or the cookie of a browser's session."""

    API = "api"
    SESSION = "session"


class Token(Record):
    """A token of an account, without its secret. `used`: when it was last shown, to the minute."""

    id: str
    user: str
    name: str
    created: float
    expires: float
    used: float | None = None
    kind: TokenKind = TokenKind.API


class AccessKey(Record):
    """An access key of an account for the EC2 Query API, without its secret. `used`: when a request was signed with it
    last, to the minute."""

    id: str
    user: str
    name: str
    created: float
    expires: float
    used: float | None = None


class SshKey(Record):
    """A public key of an account, for SSH: its type, and its fingerprint as OpenSSH shows it."""

    id: str
    user: str
    name: str
    created: float
    type: str
    fingerprint: str


class SshAccess(Record):
    """How an account reaches nodes by SSH: as the user `user`+NODE, at the host and port where it asks the daemon. The
    daemon's key is `host_key`, as a line of known_hosts has it."""

    user: str
    host_key: str


class Share(Record):
    """An account or project with its quota and the used part of it, and the limits of its leases."""

    name: str
    quota: Quota
    used: Usage
    leases: LeaseLimits = LeaseLimits()


class Me(Record):
    """The caller: `name`, `role` and `uid`; its own share (None: it has no quota) and the shares of its projects."""

    name: str
    role: str
    uid: int
    share: Share | None = None
    projects: tuple[Share, ...] = ()


class HostCapacity(Record):
    """The resources of a host, and their free part. The owners of its nodes are not included."""

    host: str
    site: str
    cores: float
    free_cores: float
    memory: int
    free_memory: int
    usable: bool


class AuditEntry(Record):
    """A request that may have changed something, or was refused: `who` (empty: nobody who was known), from which
    `address` (`socket`: this machine), `what` (method and path), the `operation` it began, the HTTP `status` of its
    answer and the `code` of its error."""

    id: int = 0
    time: float
    who: str
    address: str
    what: str
    status: int
    code: str = ""
    operation: str = ""
