"""Records of the EC2 Query API beside clusters and nodes. Frozen data; nothing here does I/O."""

from __future__ import annotations

from typing import Literal

from wherry.model.records import Record


class Kept(Record):
    """Something with an EC2 `id` that belongs to `uid`. `created`: seconds since the epoch."""

    id: str
    uid: int
    created: float

    @property
    def key(self) -> str:
        """A key that its owner has once of its kind."""
        return self.id


class Reservation(Kept):
    """A cluster that was made through EC2: its name, the number of its nodes, their type, image, zone and placement
    group. `request` is the hash of the request, and `operation` makes the cluster (empty: not begun yet).
    `ended` is when its instances were seen to be gone, for this `reason`."""

    cluster: str
    count: int
    type: str
    image: str
    zone: str = ""
    group: str = ""
    key_name: str = ""
    token: str = ""
    request: str = ""
    operation: str = ""
    ended: float | None = None
    reason: str = ""

    @property
    def key(self) -> str:
        """Its client token, by which a repeated request is known."""
        return f"token {self.token}" if self.token else self.id


class KeyPair(Kept):
    """The public part of a pair of SSH keys, as OpenSSH writes it."""

    name: str
    type: str
    fingerprint: str
    public: str

    @property
    def key(self) -> str:
        return self.name


class PlacementGroup(Kept):
    """Where the nodes of clusters that name it are to be."""

    name: str
    strategy: Literal["cluster", "spread", "partition"]

    @property
    def key(self) -> str:
        return self.name


class Tags(Kept):
    """The tags of the object with this id."""

    tags: dict[str, str]


class LastDate(Kept):
    """The latest date, in seconds since the epoch, by which the account had something changed; its id is the uid."""

    date: float
