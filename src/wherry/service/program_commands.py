"""The commands on profiles of programs: list and forget. Users have those of their own programs, root all."""

from __future__ import annotations

from wherry.base.errors import Code, Refused
from wherry.model.program import ProgramProfile
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials


class ProgramCommands:
    """The commands of one peer."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._store, self._peer = context.store, peer

    def all(self) -> list[ProgramProfile]:
        """That measured last first."""
        uids = self._peer.seen_uids
        if uids is not None:
            return [one for one in self._store.programs() if one.program.uid in uids][::-1]
        return self._store.programs(self._peer.uid or None)[::-1]

    def forget(self, key: str) -> ProgramProfile:
        """Deletes a profile: the next run of its program is placed as the first one was. NOT_FOUND."""
        found = next((one for one in self.all() if one.key == key), None)
        if found is None:
            what = f"there is no profile {key!r} of a program of yours"
            raise Refused(Code.NOT_FOUND, what, "", "wherry job profile --program")
        self._store.drop_program(key)
        return found
