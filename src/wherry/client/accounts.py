"""Accounts, tokens, projects and the listener, as JSON."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from wherry.client.requests import Requests

Json = dict[str, Any]


class AccountRequests(Requests):
    """Requests of a client about accounts. A quota is `nodes`, `cores`, `memory` (bytes), each a number or None."""

    def me(self) -> Json:
        """The caller: `name`, `role`, `uid`, `share`, `projects`."""
        return self._json("GET", "/v1/me")

    def sign_in(self, user: str, password: str, name: str = "sign-in", days: int = 30) -> Json:
        """A new token: `token`, `text`. Over the network only."""
        body = {"user": user, "password": password, "name": name, "days": days}
        return self._json("POST", "/v1/session", body)

    def sign_out(self) -> Json:
        """Ends the token of this client; returns its record."""
        return self._json("DELETE", "/v1/session")

    def sign_in_link(self, user: str | None = None) -> Json:
        """The page: `url`, and `link`, which signs in there once as `user` within so many `seconds`."""
        return self._json("POST", "/v1/dashboard", {"user": user})

    def reports(self) -> list[Json]:
        """Reports of studies that the daemon keeps, newest first, without their text."""
        return self._list("/v1/reports")

    def put_report(self, name: str, title: str, html: str) -> Json:
        """Has the daemon keep a report; returns its record."""
        return self._json("PUT", f"/v1/reports/{name}", {"title": title, "html": html})

    def remove_report(self, name: str) -> Json:
        """Removes a report; returns its record."""
        return self._json("DELETE", f"/v1/reports/{name}")

    def users(self) -> list[Json]:
        """By name."""
        return self._list("/v1/users")

    def user(self, name: str) -> Json:
        """An account as `me` shows it."""
        return self._json("GET", f"/v1/users/{name}")

    def add_user(self, name: str, role: str, quota: Json, password: str | None = None, by_pam: bool = False) -> Json:
        """Makes an account, whose password the machine's PAM checks if `by_pam`; returns its record."""
        body = {"name": name, "role": role, "quota": quota, "password": password, "by_pam": by_pam}
        return self._json("POST", "/v1/users", body)

    def change_user(self, name: str, role: str | None = None, quota: Json | None = None) -> Json:
        """Changes role or quota."""
        return self._json("PATCH", f"/v1/users/{name}", {"role": role, "quota": quota})

    def remove_user(self, name: str) -> Json:
        """Removes an account; returns its record."""
        return self._json("DELETE", f"/v1/users/{name}")

    def set_password(self, name: str, password: str, old: str | None = None, by_pam: bool = False) -> Json:
        """Changes a password, or has the machine's PAM check it; the account's tokens end."""
        body = {"password": password, "old": old, "by_pam": by_pam}
        return self._json("PUT", f"/v1/users/{name}/password", body)

    def set_identity(self, name: str, identity: str | None) -> Json:
        """Has an account sign in by the provider of identities as that (None: no more); returns its record."""
        return self._json("PUT", f"/v1/users/{name}/identity", {"identity": identity})

    def allowed(self, change: str | None = None) -> str:
        """The programs that users may start: off, nodes or jobs. Changes it first unless `change` is None."""
        if change is None:
            return str(self.get("/v1/allowed")["allowed"])
        return str(self._json("PUT", "/v1/allowed", {"allowed": change})["allowed"])

    def tokens(self) -> list[Json]:
        """One's own; an admin's: all."""
        return self._list("/v1/tokens")

    def add_token(self, name: str, days: int, user: str | None = None) -> Json:
        """A new token: `token`, `text`."""
        return self._json("POST", "/v1/tokens", {"name": name, "days": days, "user": user})

    def revoke_token(self, id: str) -> Json:
        """Ends a token; returns its record."""
        return self._json("DELETE", f"/v1/tokens/{id}")

    def keys(self) -> list[Json]:
        """One's own access keys; an admin's: all."""
        return self._list("/v1/keys")

    def add_key(self, name: str, days: int, user: str | None = None) -> Json:
        """A new access key: `key`, `secret`."""
        return self._json("POST", "/v1/keys", {"name": name, "days": days, "user": user})

    def revoke_key(self, id: str) -> Json:
        """Ends an access key; returns its record."""
        return self._json("DELETE", f"/v1/keys/{id}")

    def projects(self) -> list[Json]:
        """One's own; an admin's: all."""
        return self._list("/v1/projects")

    def add_project(self, name: str, owner: str, quota: Json) -> Json:
        """Makes a project."""
        return self._json("POST", "/v1/projects", {"name": name, "owner": owner, "quota": quota})

    def change_project(self, name: str, quota: Json) -> Json:
        """Changes its quota."""
        return self._json("PATCH", f"/v1/projects/{name}", {"quota": quota})

    def remove_project(self, name: str) -> Json:
        """Removes a project."""
        return self._json("DELETE", f"/v1/projects/{name}")

    def set_member(self, project: str, user: str, owner: bool = False) -> Json:
        """Adds or changes a member."""
        return self._json("PUT", f"/v1/projects/{project}/members/{user}", {"owner": owner})

    def drop_member(self, project: str, user: str) -> Json:
        """Removes a member."""
        return self._json("DELETE", f"/v1/projects/{project}/members/{user}")

    def audit(self, after: int = 0, who: str | None = None) -> list[Json]:
        """Up to a thousand entries after number `after`."""
        found: list[Json] = self.get("/v1/audit", after=after, who=who)
        return found

    def capacity(self) -> list[Json]:
        """The resources of each host, and its free ones."""
        return self._list("/v1/capacity")

    def listener(self) -> Json:
        """Where the daemon listens for the network."""
        return self._json("GET", "/v1/listener")

    def listen(self, setting: Json | None) -> Json:
        """Has it listen there, or nowhere."""
        return self._json("PUT", "/v1/listener", {"setting": setting})

    def ssh_keys(self) -> list[Json]:
        """Public keys for SSH: one's own, or for admins all; oldest first."""
        return self._list("/v1/ssh-keys")

    def add_ssh_key(self, name: str, public: str, user: str | None = None) -> Json:
        """Keeps a public key, a line as OpenSSH writes it; returns its record."""
        return self._json("POST", "/v1/ssh-keys", {"name": name, "public": public, "user": user})

    def remove_ssh_key(self, key: str, user: str | None = None) -> Json:
        """Forgets a key, by its id or name; returns its record."""
        found: Json = self._transport.ask("DELETE", f"/v1/ssh-keys/{quote(key, safe='')}", user=user)
        return found

    def ssh(self) -> Json:
        """The way to nodes by SSH, at this client's host and port: `user` (of `user`+NODE), `host_key`."""
        return self._json("GET", "/v1/ssh")

    def provider(self) -> Json:
        """The provider of identities: `setting`, `callback`."""
        return self._json("GET", "/v1/provider")

    def set_provider(self, setting: Json | None, secret: str = "") -> Json:
        """Has accounts sign in by it, or by none."""
        return self._json("PUT", "/v1/provider", {"setting": setting, "secret": secret})

    def _json(self, method: str, path: str, body: Json | None = None) -> Json:
        found: Json = self._transport.ask(method, path, body=body)
        return found

    def _list(self, path: str) -> list[Json]:
        return list(self.each(path))
