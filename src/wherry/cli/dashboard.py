"""`wherry dashboard`: the way to the daemon's web page."""

from __future__ import annotations

import webbrowser

from wherry.cli.output import Output, emit, say
from wherry.client import Client


def dashboard(*, user: str | None = None, browse: bool = False, output: Output = "text") -> None:
    """Print a link to the web page that signs in once, or open it in a browser.

    The page needs TLS: root opens the listener first (wherry daemon listen 127.0.0.1:7443). The link is good for five
    minutes. Users with a password can open the address without it, too.

    Parameters
    ----------
    user
        As whom, for root and admins; default: oneself, for root the only admin.
    browse
        Open it in this machine's browser.
    """
    with Client() as client:
        found = client.sign_in_link(user)

    def text() -> None:
        say(f"The page is {found['url']}. This link signs in once as {found['user']}, within five minutes:")
        print(found["link"])

    emit(output, "dashboard", found, text)
    if browse and not webbrowser.open(found["link"]):
        say("no browser could be opened here")
