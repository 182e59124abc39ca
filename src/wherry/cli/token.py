"""`wherry token`: API tokens of accounts."""

from __future__ import annotations

import time

from cyclopts import App

from wherry.cli.output import Output, age, emit, say, table
from wherry.client import Client

app = App(name="token", help="Tokens: secrets by which programs ask as an account.")


@app.command
def create(name: str, /, *, user: str | None = None, days: int = 30, output: Output = "text") -> None:
    """Make a token, and print it this once: to be kept in WHERRY_TOKEN, or a file that nobody else can read.

    Parameters
    ----------
    name
        Its purpose.
    user
        Whose it is; default: one's own account.
    days
        After how many days it ends, at most 366.
    """
    with Client() as client:
        made = client.add_token(name, days, user)

    def text() -> None:
        say(f"token {made['token']['id']} of {made['token']['user']}, for {days} days; it is not shown again:")
        print(made["text"])

    emit(output, "token", made, text)


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List one's tokens, an admin's: all; without the secrets."""
    with Client() as client:
        tokens = client.tokens()
    rows = [(t["id"], t["user"], t["name"], age(t["created"]), age(t["used"]), _ends(t["expires"])) for t in tokens]
    header = ("TOKEN", "USER", "NAME", "AGE", "USED", "ENDS")
    emit(output, "tokens", {"tokens": tokens}, lambda: table(header, rows, "There are none."))


@app.command
def revoke(token: str, /, *, output: Output = "text") -> None:
    """End a token at once.

    Parameters
    ----------
    token
        Its id, as the list has it.
    """
    with Client() as client:
        found = client.revoke_token(token)
    emit(output, "token", found, lambda: print(f"{token} of {found['user']} has ended."))


def _ends(when: float) -> str:
    return "has ended" if when <= time.time() else time.strftime("%Y-%m-%d", time.localtime(when))
