"""A request of an account, as the actions have it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wherry.service.account_caller import AccountCaller
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.ec2.errors import Ec2Error, unsupported
from wherry.store.ec2 import Ec2Objects

Words = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """The caller, the action, and its parameters, as the model names them."""

    context: ServiceContext
    caller: AccountCaller
    action: str
    words: Words

    @cached_property
    def commands(self) -> Commands:
        """The commands of the account."""
        return Commands(self.context, self.caller)

    @property
    def kept(self) -> Ec2Objects:
        """The objects of this interface in the database."""
        return self.context.store.ec2

    @property
    def owner_id(self) -> str:
        """The account's."""
        return owner_id(self.caller.uid)

    def only(self, *meant: str, harmless: tuple[str, ...] = ()) -> None:
        """UnsupportedOperation for a parameter that is not meant here. `harmless` parameters change nothing."""
        for name in self.words:
            if name not in (*meant, *harmless, "DryRun"):
                raise unsupported(f"The parameter {name} of {self.action}", "it has no meaning here; leave it out")

    def dry_run(self) -> None:
        """The end of a dry run, once all is known that would be refused."""
        if self.words.get("DryRun"):
            what = "Request would have succeeded, but DryRun flag is set"
            raise Ec2Error("DryRunOperation", what, 412)


def owner_id(uid: int) -> str:
    """A uid as the id of an EC2 account, which has twelve digits."""
    return f"{uid:012}"
