"""`wherry login`, `wherry logout`: sign in to a daemon over the network; and `wherry audit`."""

from __future__ import annotations

import time
from pathlib import Path

from wherry.base.errors import Code, Refused, WherryError
from wherry.cli.output import MOST_LISTED, Limit, Output, emit, emit_list, most_of, say
from wherry.cli.secret import ask
from wherry.client import Client, remote


def login(url: str, /, *, user: str, ca: Path | None = None, days: int = 30, output: Output = "text") -> None:
    """Sign in to a daemon on another machine: from then on all commands ask it, until wherry logout.

    Asks for the password, or reads it from standard input. The token that this gives is kept in a file of yours that
    nobody else can read. WHERRY_URL, WHERRY_TOKEN and WHERRY_CA go before it.

    Parameters
    ----------
    url
        https://HOST:PORT, as wherry daemon listen shows there.
    user
        The account.
    ca
        The daemon's ca.pem, from its administrator; default: the certificates that this machine trusts.
    days
        After how many days the sign-in ends, at most 366.
    """
    trusted = str(ca.resolve()) if ca else ""
    there = remote.Remote(url, "", trusted)
    made = Client(remote=there).sign_in(user, ask(f"Password of {user} at {url}"), "wherry login", days)
    path = remote.save(remote.Remote(url, made["text"], trusted))
    data = {"url": url, "user": user, "file": str(path), "token": made["token"]["id"]}
    emit(output, "login", data, lambda: print(f"Signed in at {url} as {user}, for {days} days ({path})."))


def logout(*, output: Output = "text") -> None:
    """End the sign-in, here and at the daemon: commands ask this machine's daemon again."""
    there, problem = remote.configured(), ""
    if there is None:
        raise Refused(Code.NOT_FOUND, "you are not signed in", "", "wherry login URL --user NAME")
    try:
        Client(remote=there).sign_out()
    except WherryError as error:
        problem = str(error)
    removed = remote.forget()
    if problem:
        say(f"the token was not ended there: {problem}")
    text = f"Signed out of {there.url}." if removed else "WHERRY_URL is set still: unset WHERRY_URL WHERRY_TOKEN"
    emit(output, "logout", {"url": there.url, "removed": removed}, lambda: print(text))


def audit(*, user: str | None = None, after: int = 0, limit: Limit = MOST_LISTED, output: Output = "text") -> None:
    """Show the newest of the audit log, oldest first: each request with user, time, address and result. For admins.

    Parameters
    ----------
    user
        Only requests of this user.
    after
        Only entries after this number.
    """
    with Client() as client:
        entries, more = client.some("/v1/audit", most_of(limit), after=after, who=user, newest=True)

    def text() -> None:
        for entry in entries:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"]))
            end = " ".join(str(entry[key]) for key in ("status", "code", "operation") if entry[key])
            print(f"{entry['id']:6}  {when}  {entry['who'] or '-':12} {entry['address']:15}  {entry['what']}: {end}")

    emit_list(output, "audit", {"entries": entries}, more, text)
