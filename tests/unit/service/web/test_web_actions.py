"""Forms of the page: each has the effect of its REST request, and is refused as that is."""

from __future__ import annotations

import re

import pytest
import yaml
from accounts_world import Accounts
from rest_service import CLUSTER, Service
from web_world import Browser

import waiting
from wherry.base.errors import Refused
from wherry.model.accounts import Allowed, Role
from wherry.model.ec2 import KeyPair
from wherry.model.paging import Wanted
from wherry.model.records import ClusterLease
from wherry.service.rest.authorization import PAGES
from wherry.service.ssh.host_key import fingerprint
from wherry.service.web import actions
from wherry.service.web.pages import spec_of, yaml_of

FILE = yaml.safe_dump({**CLUSTER, "name": "made"})


@pytest.fixture
def world(service: Service) -> Accounts:
    world = Accounts(service)
    for name, role in (("ann", Role.USER), ("vic", Role.VIEWER), ("eve", Role.ADMIN)):
        world.add(name, role)
    world.allow()
    return world


def settled(world: Accounts) -> None:
    waiting.until(lambda: not world.service.context.store.operations(running=True), "the end of all operations")


def made(world: Accounts) -> Browser:
    """ann's browser, with a cluster that it made by the form."""
    browser = Browser(world).enter("ann")
    answer = browser.send("/web/clusters", do="make", yaml=FILE)
    assert answer.status_code == 200 and "is being made" in answer.text, answer.text
    settled(world)
    return browser


def test_a_cluster_is_planned_made_and_removed(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    answer = browser.send("/web/clusters", do="plan", yaml=FILE)
    assert answer.status_code == 200 and "3 to create" in answer.text
    settled(world)
    assert world.service.context.store.clusters() == []
    made(world)
    (cluster,) = world.service.context.store.clusters()
    assert cluster.name == "made" and cluster.owner_uid == world.root.user("ann").uid
    assert browser.send("/web/clusters/made/remove").status_code == 200
    settled(world)
    assert world.service.context.store.clusters() == []


def test_a_cluster_waits_in_the_strip(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    answer = browser.send("/web/clusters", do="make", yaml=FILE, wait="1")
    assert answer.status_code == 200 and "waits for room" in answer.text
    (operation,) = world.service.context.store.operations(running=True)
    strip = browser.get("/web/operations").text
    assert "waiting" in strip and f"/web/operations/{operation.id}/cancel" in strip
    assert browser.send(f"/web/operations/{operation.id}/cancel").status_code == 200
    settled(world)


def test_a_lease_is_shown_and_extended(world: Accounts) -> None:
    browser, leases = made(world), world.service.context.store.leases
    assert "its lease ends" not in browser.get("/web").text
    leases.put("made", ClusterLease(ends=2e9, length=60.0))
    assert "wherry lease extend made --by 4h" in browser.get("/web").text
    assert browser.send("/web/clusters/made/lease", by="90m").status_code == 200
    lease = leases.of("made")
    assert lease and lease.ends == pytest.approx(2e9 + 5400, abs=1)
    answer = browser.send("/web/clusters/made/lease", by="soon")
    assert answer.status_code == 422 and "no duration" in answer.text


def test_a_move_is_planned_and_then_made(world: Accounts) -> None:
    browser = made(world)
    store = world.service.context.store
    node = store.nodes("made")[0]
    there = next(host for host in ("a1", "a2", "b1") if host != node.host)
    answer = browser.send("/web/moves/plan", node=node.name, host=there)
    assert answer.status_code == 200, answer.text
    assert f"wherry move {node.name} --to {there}" in answer.text and "Downtime" in answer.text
    assert store.moves() == [] and store.nodes("made")[0].host == node.host
    assert (
        browser.send("/web/moves", node=node.name, host=there).headers["hx-trigger"] == "wherry-changed, wherry-close"
    )
    settled(world)
    (move,) = store.moves()
    assert (move.node, move.destination) == (node.name, there)
    page = browser.get(f"/web/moves/{move.id}")
    assert page.status_code == 200 and ("data-rounds=" in page.text) == bool(move.rounds)


def test_a_job_is_run_read_and_ended(world: Accounts) -> None:
    browser = made(world)
    answer = browser.send("/web/jobs", cluster="made", command="sleep 'two words'", ranks="2")
    assert answer.status_code == 200, answer.text
    settled(world)
    (job,) = world.service.context.store.jobs()
    assert job.argv == ("sleep", "two words") and job.ranks == 2
    output = browser.get(f"/web/jobs/{job.id}/output")
    assert '<span class="out">out\n</span><span class="err">err\n</span>' in output.text
    following = re.search(r'hx-get="([^"]+)"', output.text)
    assert following and "offset=2" in following[1]
    assert browser.send(f"/web/jobs/{job.id}/cancel").status_code == 200
    settled(world)
    assert browser.get(following[1].replace("&amp;", "&")).text.count("hx-get") == 0, "the job has ended"
    page = browser.get(f"/web/jobs/{job.id}").text
    assert "cancelled" in page and "End the job" not in page


@pytest.mark.parametrize("command", ["'", "", "  "])
def test_command_lines_that_are_none(world: Accounts, command: str) -> None:
    browser = made(world)
    answer = browser.send("/web/jobs", cluster="made", command=command, ranks="2")
    assert answer.status_code == 422 and "USAGE" in answer.text
    assert world.service.context.store.jobs() == []


def test_the_table_of_rights_is_rests(world: Accounts) -> None:
    """A viewer's form is refused by the row of its REST route; acts that no admin allowed are refused; nothing of
    another's is found."""
    browser = made(world)
    before = world.service.context.store.nodes()
    viewer = Browser(world).enter("vic")
    for path, form in (
        ("/web/clusters", {"do": "make", "yaml": FILE}), ("/web/moves", {"node": "made-0", "host": "b1"}),
        ("/web/moves/plan", {"node": "made-0", "host": "b1"}), ("/web/balance", {"do": "plan"}),
        ("/web/clusters/made/remove", {}), ("/web/jobs", {"cluster": "made", "command": "sleep", "ranks": "1"}),
    ):  # fmt: skip
        answer = viewer.send(path, **form)
        assert answer.status_code == 403 and "PERMISSION" in answer.text, (path, answer.text)
    world.add("bob")
    other = Browser(world).enter("bob")
    for path, form in (("/web/moves", {"node": "made-0", "host": "b1"}), ("/web/clusters/made/remove", {})):
        answer = other.send(path, **form)
        assert answer.status_code == 404 and "NOT_FOUND" in answer.text, (path, answer.text)
    world.allow(Allowed.OFF)
    answer = browser.send("/web/jobs", cluster="made", command="sleep", ranks="1")
    assert answer.status_code == 403 and "an admin has allowed: off" in answer.text
    settled(world)
    assert world.service.context.store.nodes() == before and world.service.context.store.jobs() == []


def test_forms_of_the_administration_are_admins(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    for path in (path for method, path in PAGES if method == "POST" and "/admin/" in path):
        answer = browser.send(path.replace("{name}", "vic"), name="x")
        assert answer.status_code == 403, path
    assert [user.name for user in world.root.users()] == ["ann", "eve", "vic"]


def test_the_administration(world: Accounts) -> None:
    browser = Browser(world).enter("eve")
    quota = {"nodes": "4", "cores": "2.5", "memory": "1GiB", "hours": "100", "lease": "8h", "longest_lease": "none"}
    assert browser.send("/web/admin/users", name="dan", role="user", password="", **quota).status_code == 200
    dan = world.root.user("dan")
    assert dan.share and (dan.share.quota.nodes, dan.share.quota.cores, dan.share.quota.memory) == (4, 2.5, 2**30)
    assert (dan.share.quota.lease, dan.share.quota.longest_lease) == (8 * 3600.0, None)
    changed = browser.send("/web/admin/users/dan", role="viewer", **{**quota, "nodes": "none"})
    assert changed.status_code == 200, changed.text
    dan = world.root.user("dan")
    assert dan.role == "viewer" and dan.share and dan.share.quota.nodes is None
    empty = browser.send("/web/admin/users/dan", role="user", **{**quota, "nodes": ""})
    assert empty.status_code == 422 and world.root.user("dan").role == "viewer"
    assert browser.send("/web/admin/projects", name="team", owner="ann", **quota).status_code == 200
    assert browser.send("/web/admin/projects/team/members", user="dan", do="set", owner="1").status_code == 200
    assert browser.send("/web/admin/projects/team/members", user="ann", do="remove").status_code == 200
    assert browser.send("/web/admin/projects/team", **{**quota, "memory": "none"}).status_code == 200
    (team,) = world.root.projects()
    assert team.members == team.owners == ("dan",) and team.quota.memory is None
    assert browser.send("/web/admin/projects/team/remove").status_code == 200
    assert browser.send("/web/admin/allowed", allowed="nodes").status_code == 200
    assert world.root.allowed() is Allowed.NODES
    assert browser.send("/web/balance/auto", auto="on").status_code == 200
    for verb in ("drain", "restore"):
        assert f"/web/admin/hosts/a1/{verb}" in browser.get("/web").text
        assert browser.send(f"/web/admin/hosts/a1/{verb}").status_code == 200
        settled(world)
        assert {host.name: host.drained for host in world.service.context.hosts()}["a1"] is (verb == "drain")
    assert browser.send("/web/admin/users/dan/remove").status_code == 200
    assert [user.name for user in world.root.users()] == ["ann", "eve", "vic"]


def test_ones_own_account(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    made = browser.send("/web/account/tokens", name="<b>script", days="3")
    found = re.search(r"wt-[0-9a-z]+\.[0-9a-f]{64}", made.text)
    assert made.status_code == 200 and found
    world.tokens["ann"] = found[0]
    assert world.ask("ann", "GET", "/v1/me").status_code == 200
    page = browser.get("/web/account").text
    assert found[0].partition(".")[2] not in page and "&lt;b&gt;script" in page and "(this one)" in page
    id = found[0].partition(".")[0]
    assert browser.send(f"/web/account/tokens/{id}/revoke").status_code == 200
    assert world.ask("ann", "GET", "/v1/me").status_code == 401
    public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43
    assert browser.send("/web/account/ssh-keys", name="a/b", public=public).status_code == 200
    (key,) = world.service.context.store.ec2.all(KeyPair)
    assert fingerprint(public) in browser.get("/web/account").text
    assert browser.send(f"/web/account/ssh-keys/{key.id}/remove").status_code == 200
    assert world.service.context.store.ec2.all(KeyPair) == []
    short = browser.send("/web/account/password", password="short", old="")
    assert short.status_code == 422
    changed = browser.send("/web/account/password", password="four words are long", old="")
    assert changed.status_code == 200 and changed.headers["hx-redirect"] == "/web/sign-in"
    assert browser.get("/web").status_code == 303


def test_the_audit_log_has_forms_with_their_operations(world: Accounts) -> None:
    browser = made(world)
    browser.send("/web/clusters/nix/remove")
    entries = [one for one in world.root.audit(Wanted(), 0, "ann").rows if one.what.startswith("POST /web/clusters")]
    (operation,) = world.service.context.store.operations()
    assert [(one.status, one.operation) for one in entries] == [(200, operation.id), (404, "")]
    assert operation.by == "ann"


def test_parts_of_paths_are_names(world: Accounts) -> None:
    """A field that is put into a path leads to no other route."""
    browser = Browser(world).enter("eve")
    for name in ("../users/vic", "a/b", "..", ".", "", "%2e%2e"):
        answer = browser.send("/web/admin/projects/team/members", user=name, do="remove")
        assert answer.status_code == 404, name
    assert [user.name for user in world.root.users()] == ["ann", "eve", "vic"]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [" + "x, " * 100 + "]\nb: [" + "*a, " * 1000 + "]", "- 1", "", "name: 2020-01-01", "1: 2", "a: [",
        "x: !!python/object:os.system {}",
        "[" * 5000, "name: x\n" * 20_000, "name: \x00",
    ],
)  # fmt: skip
def test_files_that_are_none(world: Accounts, text: str) -> None:
    with pytest.raises(Refused) as caught:
        actions._spec(text)
    assert caught.value.code == "INVALID_FILE" and caught.value.next


def test_forms_that_are_none(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    headers = {"Wherry-CSRF": browser.csrf}
    for path in ("/web/jobs", "/web/clusters", "/web/moves"):
        assert browser.ask("POST", path, headers=headers, json={"do": "make"}).status_code == 422
    for name, value in (
        ("ranks", "-1"),
        ("ranks", "1e3"),
        ("ranks", "9" * 30),
        ("timeout", "soon"),
        ("timeout", "nan"),
    ):
        form = {"cluster": "made", "command": "sleep", "ranks": "1", name: value}
        answer = browser.send("/web/jobs", **form)
        assert answer.status_code in (404, 422) and "BUG" not in answer.text, (name, value, answer.text)


def test_the_form_writes_its_file() -> None:
    form = {"name": "lu", "nodes": 2, "kind": "vm", "cpus": 1.5, "memory": "1GiB", "spread": "pack", "sites": "a, b,"}
    assert spec_of(form) == {
        "name": "lu", "nodes": 2, "cpus": 1.5, "memory": "1GiB", "kind": "vm", "sites": ["a", "b"],
        "placement": {"spread": "pack"},
    }  # fmt: skip
    assert spec_of({"name": "lu", "nodes": 1, "kind": "container", "cpus": None, "spread": "host", "sites": ""}) == {
        "name": "lu", "nodes": 1,
    }  # fmt: skip
    assert yaml.safe_load(yaml_of(spec_of(form))) == spec_of(form)


def test_the_file_follows_the_form(world: Accounts) -> None:
    answer = Browser(world).enter("ann").send("/web/clusters", do="yaml", name="lu", nodes="3", cpus="", memory="1GiB")
    assert answer.status_code == 200 and "name: lu\nnodes: 3\nmemory: 1GiB\n" in answer.text
