"""`wherry daemon`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from wherry.base.errors import Code, LostContact, Refused
from wherry.base.paths import instance
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, table
from wherry.cli.secret import ask
from wherry.client import Client, daemon_process

daemon = App(name="daemon", help="The daemon, which other commands start when none runs.")


@daemon.command
def start(*, group: str | None = None, standby: bool = False, output: Output = "text") -> None:
    """Start the daemon.

    Parameters
    ----------
    group
        Members of this group may use the daemon, beside root.
    standby
        Start a second daemon, which takes over when the first dies; on PostgreSQL also when it does not respond.
    """
    place = instance()
    if standby:
        daemon_process.start_standby(place, group)
        _print(output)
        return
    if not daemon_process.answers(place):
        daemon_process.start(place, group)
    elif group:
        raise daemon_process.group_refused(group)
    _print(output)


@daemon.command
def stop(*, output: Output = "text") -> None:
    """Stop the daemon, and its standby before it. Nodes and jobs run on, and the next daemon adopts them."""
    pid = daemon_process.stop(instance())
    text = f"The daemon (process {pid}) has ended." if pid else "No daemon runs."
    emit(output, "daemon-stop", {"stopped": pid}, lambda: print(text))


@daemon.command
def listen(
    where: str | None = None,
    /,
    *,
    name: list[str] | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    ssh: bool = False,
    off: bool = False,
    output: Output = "text",
) -> None:
    """Listen for accounts over the network, by TLS, now and after each start; or show where. Root's.

    Parameters
    ----------
    where
        ADDRESS:PORT; 0.0.0.0 and [::] are all addresses.
    name
        A further name or address by which clients reach it, for its own certificate; several times.
    certificate
        A certificate of your own (PEM), with the certificates that lead to its authority.
    key
        Its key, without a password.
    ssh
        Serve SSH, too, at the same port: accounts reach their nodes by their SSH keys.
    off
        Listen no more.
    """
    if off and where:
        raise Refused(Code.USAGE, "an address and --off exclude each other", "", "wherry daemon listen --help")
    if ssh and not where:
        raise Refused(Code.USAGE, "--ssh needs an address", "", "wherry daemon listen ADDRESS:PORT --ssh")
    with Client(instance()) as client:
        if where:
            address, _, port = where.rpartition(":")
            setting = {"address": address.strip("[]"), "port": _port(where, port), "names": list(name or ())}
            setting |= {"ssh": True} if ssh else {}
            files = {"certificate": certificate, "key": key}
            setting |= {which: str(path.resolve()) for which, path in files.items() if path}
            state = client.listen(setting)
        else:
            state = client.listen(None) if off else client.listener()

    def text() -> None:
        if not state["url"]:
            print(f"The daemon does not listen for the network{': ' if state['error'] else '.'}{state['error']}")
            return
        print(f"The daemon listens at {state['url']}.")
        if state["ca"]:
            print(f"Clients trust {state['ca']} (SHA-256 {state['fingerprint']}).")
        if state["ssh_fingerprint"]:
            print(f"It serves SSH there; its key is {state['ssh_fingerprint']}.")
        print(f"There: wherry login {state['url']} --user NAME{' --ca ca.pem' if state['ca'] else ''}")

    emit(output, "listener", state, text)


@daemon.command
def provider(
    issuer: str | None = None,
    /,
    *,
    client: str | None = None,
    claim: Literal["sub", "email", "preferred_username"] = "email",
    ca: Path | None = None,
    url: str | None = None,
    no_secret: bool = False,
    off: bool = False,
    output: Output = "text",
) -> None:
    """Have accounts sign in to the page by a provider of identities (OpenID Connect); or show it. Root's.

    Asks for the secret that the provider has given to the daemon, or reads it from standard input.

    Parameters
    ----------
    issuer
        https://HOST/PATH, as in the provider's ID tokens.
    client
        The daemon's name at the provider (client ID).
    claim
        The claim of ID tokens that is compared with wherry user identity; a mail address counts when the provider has
        verified it.
    ca
        Certificates (PEM) by which the provider's TLS is checked; default: the authorities that this machine trusts.
    url
        https://HOST:PORT by which browsers reach the page; default: where the daemon listens.
    no_secret
        The provider has given the daemon no secret (a public client).
    off
        Accounts sign in by no provider any more.
    """
    if off and issuer or bool(issuer) != bool(client):
        why = "an issuer needs --client, and --off is alone"
        raise Refused(Code.USAGE, "these options do not go together", why, "wherry daemon provider --help")
    for option, value in (("ISSUER", issuer), ("--url", url)):
        checked(option, "identity:HttpsUrl", value, "wherry daemon provider")
    with Client(instance()) as asking:
        if issuer:
            secret = "" if no_secret else ask(f"Secret of {client} at {issuer}", "secret")
            setting = {"issuer": issuer, "client": client, "claim": claim, "ca": str(ca.resolve()) if ca else None}
            state = asking.set_provider({**setting, "url": url}, secret)
        else:
            state = asking.set_provider(None) if off else asking.provider()

    def text() -> None:
        if not (setting := state["setting"]):
            print("Accounts sign in by no provider. Next: wherry daemon provider ISSUER --client NAME")
            return
        print(f"Accounts sign in by {setting['issuer']}, as whom {setting['claim']} names.")
        print(f"To be registered there: {state['callback'] or 'nothing yet. Next: wherry daemon listen HOST:PORT'}")
        print("Next: wherry user identity NAME IDENTITY")

    emit(output, "provider", state, text)


def _port(where: str, port: str) -> int:
    if not port.isdecimal():
        raise Refused(Code.USAGE, f"{where!r} has no port", "", "wherry daemon listen ADDRESS:7443")
    return int(port)


@daemon.command
def status(*, output: Output = "text") -> None:
    """Show whether the daemon runs. Exit code 7 when it does not."""
    if not daemon_process.answers(instance()):
        pid = daemon_process.holder(instance())
        why = f"process {pid} is not ready yet" if pid else "it was not started, or was stopped"
        raise LostContact(Code.UNREACHABLE, "no daemon answers", why, "wherry daemon start")
    _print(output)


@daemon.command
def backup(file: Path, /, *, output: Output = "text") -> None:
    """Write all records to a file, also while the daemon runs.

    The file can be restored into either database, SQLite or PostgreSQL. Its secrets are sealed by keys that are not
    in it: keep a copy of the instance's secrets.key apart from it. Outputs of jobs, logs and images are not records.

    Parameters
    ----------
    file
        The file; an existing file is replaced when the new one is complete.
    """
    data = daemon_process.backup(file)
    text = f"{data['rows']} rows of {data['database']} are in {data['file']}."
    emit(output, "backup", data, lambda: print(text))


@daemon.command
def restore(file: Path, /, *, keys: Path | None = None, output: Output = "text") -> None:
    """Replace all records by those of a backup.

    No daemon may run, and no cluster or fabric be up. Nodes that were up when the backup was written are then lost, as
    after a reboot: wherry up FILE repairs their cluster.

    Parameters
    ----------
    file
        The file of wherry daemon backup; a damaged file is refused.
    keys
        The secrets.key of the instance that wrote the backup. Without it the access keys of a backup of another machine
        cannot be used; they are listed.
    """
    data = daemon_process.restore(file, keys)

    def text() -> None:
        print(f"{data['rows']} rows are restored into {data['database']}.")
        if data["new_secrets"]:
            print(f"Clusters with new secrets, as no key opens the old ones: {', '.join(data['new_secrets'])}.")
        if data["lost_provider"]:
            print("No key opens the secret for the provider of identities: wherry daemon provider ISSUER --client NAME")
        if data["lost_keys"]:
            print(f"Access keys that cannot be used, as no key opens their secrets: {', '.join(data['lost_keys'])}.")
            print("With the secrets.key of the instance that wrote the backup they can:")
            print(
                f"cat ITS-secrets.key >> {instance().keys_file}; or make new ones: wherry key create NAME --user USER"
            )

    emit(output, "restore", data, text)


@daemon.command
def migrate(revision: str, /, *, output: Output = "text") -> None:
    """Migrate the records to another revision of their schema, before another version of Wherry is installed.

    A daemon migrates to its own revision when it starts, so only the way back needs this command. No daemon may run.

    Parameters
    ----------
    revision
        Of the version that will be installed.
    """
    data = daemon_process.migrate(revision)
    text = f"{data['database']} is of revision {data['to']} (was {data['from'] or 'empty'})."
    emit(output, "migrate", data, lambda: print(text))


def _print(output: str) -> None:
    place = instance()
    pid = daemon_process.serving(place)
    data = {"instance": place.name, "process": pid, "socket": str(place.socket), "log": str(place.state / "log")}
    if standby := daemon_process.holder(place, "standby"):
        data["standby"] = standby
    rows = list(data.items())
    emit(output, "daemon", data, lambda: table(("DAEMON", "RUNS"), rows, ""))
