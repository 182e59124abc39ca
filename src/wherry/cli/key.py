"""`wherry key`: access keys of the EC2 Query API; `wherry ec2-env`: the environment of its clients."""

from __future__ import annotations

import shlex
import time

from cyclopts import App

from wherry.base.errors import Code, Refused
from wherry.cli.output import Output, age, emit, say, table
from wherry.client import Client, remote

app = App(name="key", help="Access keys: by which aws-cli, boto3 and others sign their requests to the EC2 Query API.")
REGION = "local"


@app.command
def create(name: str, /, *, user: str | None = None, days: int = 30, output: Output = "text") -> None:
    """Make an access key, and print its id and secret this once.

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
        made = client.add_key(name, days, user)

    def text() -> None:
        say(f"access key of {made['key']['user']}, for {days} days; the secret is not shown again:")
        print(made["key"]["id"], made["secret"])

    emit(output, "key", made, text)


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List one's access keys, an admin's: all; without the secrets."""
    with Client() as client:
        keys = client.keys()
    rows = [(k["id"], k["user"], k["name"], age(k["created"]), age(k["used"]), _ends(k["expires"])) for k in keys]
    header = ("KEY", "USER", "NAME", "AGE", "USED", "ENDS")
    emit(output, "keys", {"keys": keys}, lambda: table(header, rows, "There are none. Next: wherry key create NAME"))


@app.command
def revoke(key: str, /, *, output: Output = "text") -> None:
    """End an access key at once.

    Parameters
    ----------
    key
        Its id, as the list has it.
    """
    with Client() as client:
        found = client.revoke_key(key)
    emit(output, "key", found, lambda: print(f"{key} of {found['user']} has ended."))


def ec2_env(*, user: str | None = None, days: int = 1, output: Output = "text") -> None:
    """Make an access key, and print the environment by which aws-cli and boto3 use it: eval "$(wherry ec2-env)"

    The secret is shown this once, as part of it. AWS_CA_BUNDLE, where the daemon's certificate is its own, holds for
    all that these programs ask in that shell.

    Parameters
    ----------
    user
        Whose key it is; default: one's own account.
    days
        After how many days it ends, at most 366.
    """
    with Client() as client:
        url, ca = _where(client)
        made = client.add_key("ec2-env", days, user)
    variables = {
        "AWS_ENDPOINT_URL_EC2": f"{url.rstrip('/')}/ec2",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": made["key"]["id"],
        "AWS_SECRET_ACCESS_KEY": made["secret"],
        **({"AWS_CA_BUNDLE": ca} if ca else {}),
    }

    def text() -> None:
        say(f"access key {made['key']['id']} of {made['key']['user']}, for {days} days")
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
        print("unset AWS_SESSION_TOKEN AWS_PROFILE")

    emit(output, "ec2-env", {"key": made["key"], "environment": variables}, text)


def _where(client: Client) -> tuple[str, str]:
    """Address of the daemon and path of the certificates to trust. WRONG_STATE when it does not listen."""
    if there := remote.configured():
        host, port = there.address
        return f"https://{f'[{host}]' if ':' in host else host}:{port}", there.ca
    state = client.listener()
    if not state["url"]:
        why = "the EC2 Query API is for the network"
        raise Refused(Code.WRONG_STATE, "the daemon does not listen", why, "wherry daemon listen ADDRESS:7443")
    return str(state["url"]), str(state["ca"] or "")


def _ends(when: float) -> str:
    return "has ended" if when <= time.time() else time.strftime("%Y-%m-%d", time.localtime(when))
