"""Directories and names of an instance. Two instances on one machine share no directory, name or socket.

`WHERRY_INSTANCE` selects the instance (default `main`); its name has at most 8 letters and digits, as it is part of the
names of namespaces and cgroups.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.remedies import setup

SECRET_VARIABLES = ("WHERRY_DATABASE_URL",)
"""Variables that may hold a password: neither shown nor passed on to programs of users."""
REMOTE = ("WHERRY_URL", "WHERRY_TOKEN", "WHERRY_CA")
"""Variables that say which daemon is asked over the network, and as whom: a secret is among them."""
_NAME = re.compile(r"(?!images$)[a-z][a-z0-9]{0,7}")
"""Not `images`: that is the directory, beside the instances', of virtual machine images, which all instances share."""


@dataclass(frozen=True)
class Instance:
    """The directories of one instance."""

    name: str

    @property
    def run(self) -> Path:
        """Volatile state on a tmpfs: sockets, nodes' private trees, CRIU images."""
        return Path("/run/wherry") / self.name

    @property
    def state(self) -> Path:
        """Persistent state: the database, logs, outputs of jobs."""
        return Path(os.environ.get("WHERRY_STATE", "/var/lib/wherry")) / self.name

    @property
    def socket(self) -> Path:
        """The daemon's private socket."""
        return self.run / "wherryd.sock"

    @property
    def standby_socket(self) -> Path:
        """The socket of a second daemon that waits for the place of the first."""
        return self.run / "standby.sock"

    @property
    def ending(self) -> Path:
        """A file that exists while the instance is removed, so that waiting clients do not restart its daemon."""
        return self.state / "ending"

    @property
    def database_file(self) -> Path:
        """The SQLite database, of an instance that uses no server."""
        return self.state / "wherry.db"

    @property
    def database_note(self) -> Path:
        """Names the PostgreSQL database of an instance that uses one (`wherry.service.database_choice`)."""
        return self.state / "database"

    @property
    def keys_file(self) -> Path:
        """The keys that seal the secrets of the database (`wherry.store.sealing`). In no backup."""
        return self.state / "secrets.key"

    def keeps_records(self) -> bool:
        """True when a daemon has made a database for the instance. PermissionError when this user may not know."""
        return any(_exists(path) for path in (self.database_file, self.database_note))

    @property
    def prefix(self) -> str:
        """Prefix of the names of this instance's network namespaces and cgroups."""
        return f"wherry-{self.name}"


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def images_directory() -> Path:
    """The directory of virtual machine images, which all instances share."""
    return Path(os.environ.get("WHERRY_STATE", "/var/lib/wherry")) / "images"


def instance() -> Instance:
    """The instance that WHERRY_INSTANCE selects. Refused when that is no valid name."""
    name = os.environ.get("WHERRY_INSTANCE", "main")
    if not _NAME.fullmatch(name):
        raise Refused(
            Code.USAGE,
            f"WHERRY_INSTANCE={name!r} is not a valid name of an instance",
            "it must be 1 to 8 lower-case letters and digits, beginning with a letter, and not images",
            "unset WHERRY_INSTANCE",
        )
    return Instance(name)


def instances() -> list[Instance]:
    """Instances that have a directory, a network namespace or a cgroup on this machine, by name."""
    groups = Path("/sys/fs/cgroup")
    paths = [*Path("/run/wherry").glob("*/"), *Instance("main").state.parent.glob("*/")]
    made = [*Path("/run/netns").glob("wherry-*"), *groups.glob("wherry-*/"), *groups.glob("*/wherry-*/")]
    names = {path.name for path in paths} | {path.name.split("-")[1] for path in made}
    return [Instance(name) for name in sorted(names) if _NAME.fullmatch(name)]


def as_root(words: Iterable[str]) -> str:
    """A `wherry` command to type as root. It sets Wherry's variables again, which sudo drops, except those of a daemon
    elsewhere; a variable that may hold a password keeps its value unseen."""
    ours = sorted(name for name in os.environ if name.startswith("WHERRY_") and name not in REMOTE)
    kept = [f"--preserve-env={name}" for name in ours if name in SECRET_VARIABLES]
    named = [f"{name}={os.environ[name]}" for name in ours if name not in SECRET_VARIABLES]
    return shlex.join(["sudo", *kept, *(["env", *named] if named else []), "wherry", *words])


def native_program(name: str) -> Path:
    """Path of one of our native programs."""
    return _built("program", "bin", name)


def native_library(name: str) -> Path:
    """Path of one of our shared libraries."""
    return _built("library", "lib", name)


def bundled_criu() -> Path | None:
    """The prefix of the CRIU that an agent's bundle has; None elsewhere."""
    path = _package() / "criu"
    return path if path.is_dir() else None


def for_programs(name: str) -> Path:
    """Path of a file by which users build programs that ask Wherry: `wherry.h`, `wherry.f90`, `wherry_inside.py`."""
    return _built("file", "python" if name.endswith(".py") else "include", name)


def examples() -> Path | None:
    """The directory of the example files: in the installed package, or in the checkout; None if there is none."""
    here = _package()
    return examples_in(here, here.parents[1])


def examples_in(*directories: Path) -> Path | None:
    """The first directory `examples` that is in one of these; None if there is none."""
    return next((one / "examples" for one in directories if (one / "examples").is_dir()), None)


def see_examples(found: Path | None) -> str:
    """The command that lists the valid files of a directory of examples, from any directory."""
    return f"ls {shlex.quote(str(found))}" if found else "the directory examples of Wherry's source has some"


def _package() -> Path:
    return Path(__file__).resolve().parent.parent


def _built(noun: str, directory: str, name: str) -> Path:
    """Path of a file in the installed package, or in the checkout's build directory."""
    here = _package()
    for above in (here, here.parents[1] / "build" / "native"):
        if (above / directory / name).exists():
            return above / directory / name
    remedy = setup(installed="install Wherry's package again")
    raise Refused(Code.FAILED, f"the {noun} {name} is not built", f"looked beside {here}", remedy)
