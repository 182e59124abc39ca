"""Where the records of an instance are: a file of SQLite, or the URL of a PostgreSQL database.

Invariant: no text that is made here contains a password, in whichever part of a URL it is, also when the URL cannot
be read.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from wherry.base.errors import Code, Refused

VARIABLE = "WHERRY_DATABASE_URL"
Address = Path | sa.URL
_EXAMPLE = f"{VARIABLE}=postgresql://USER:PASSWORD@SERVER/DATABASE"
_HIDDEN = "***"


def database_url(text: str) -> sa.URL:
    """The URL of a PostgreSQL database. USAGE when it is none; the text is not repeated, as it may have a password."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        url = None
    misread = url is not None and "@" in (url.host or "")  # the text before it is a part of the password
    if url is None or misread or url.get_backend_name() not in ("postgresql", "postgres"):
        why = "it must be postgresql://USER:PASSWORD@SERVER/DATABASE, with %XX for each of :/?#@% in user and password"
        raise Refused(Code.USAGE, f"{VARIABLE} is not the URL of a PostgreSQL database", why, f"unset {VARIABLE}")
    if not url.database:
        raise Refused(Code.USAGE, f"{VARIABLE} names no database", "it ends with the server", _EXAMPLE)
    return url.set(drivername="postgresql+psycopg")


def shown(address: Address) -> str:
    """The address for people: a path, or user, server and database of a URL."""
    if isinstance(address, Path):
        return str(address)
    host = address.host or ", ".join(_words(address, "host"))
    user = f"{address.username}@" if address.username else ""
    port = f":{address.port}" if address.port else ""
    return f"postgresql://{user}{host}{port}/{address.database}"


def same(one: Address, other: Address) -> bool:
    """Whether both are one place of records, whatever the password and further parameters are."""
    if isinstance(one, Path) or isinstance(other, Path):
        return one == other
    return (shown(one), one.query.get("options")) == (shown(other), other.query.get("options"))  # which name a schema


def without_password(text: str, address: Address) -> str:
    """A text of the driver in which no password of this address is left."""
    if isinstance(address, sa.URL):
        for word in (address.password, *_words(address, "password"), *_words(address, "sslpassword")):
            text = text.replace(str(word), _HIDDEN) if word else text
    return text


def _words(url: sa.URL, name: str) -> tuple[str, ...]:
    found = url.query.get(name, ())
    return (found,) if isinstance(found, str) else found
