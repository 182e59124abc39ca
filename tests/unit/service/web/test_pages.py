"""The pages: for each role, with names that are HTML, under the policy that lets nothing inline run; and their size."""

from __future__ import annotations

import hashlib
import html
import re

import pytest
from accounts_world import Accounts
from rest_service import CLUSTER, FABRIC, Service
from web_world import Browser

from wherry.cli.main import _COMMANDS
from wherry.model.accounts import Role
from wherry.model.mpi_profile import MpiProfile, OperationUse, RankActivity, RankFlow
from wherry.model.profile import Flow, NodeLoad, Profile
from wherry.service.balance_commands import BalanceCommands
from wherry.service.rest.authorization import OPEN_PAGES, PAGES, PROVIDER_PAGES, STATIC, Access
from wherry.service.web import actions, admin_actions, pages, profile_page, rates, sign_in
from wherry.service.web.rendering import POLICY, STATIC_FILES

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
LARGEST_VIEW = 300_000
"""Bytes of the first view, uncompressed."""
IDS = {"/jobs/{id}": "/jobs/job-1", "/moves/{id}": "/moves/{move}", "/reports/{name}": "/reports/one",
       "/nodes/{name}": "/nodes/hello-0"}  # fmt: skip


@pytest.fixture
def world(service: Service) -> Accounts:
    """A cluster with a job and a move, all texts of which are hostile where the service lets them be."""
    world = Accounts(service)
    for name, role in (("ann", Role.USER), ("vic", Role.VIEWER), ("eve", Role.ADMIN)):
        world.add(name, role)
    world.project("team", "ann", "vic")
    world.allow()
    world.done("ann", "POST", "/v1/clusters", {"spec": CLUSTER, "project": "team"})
    argv = ["sleep", HOSTILE]
    world.done("ann", "POST", "/v1/jobs", {"cluster": "hello", "argv": argv, "ranks": 2, "mpi": HOSTILE})
    node = service.context.store.nodes("hello")[0]
    there = next(host for host in ("a1", "a2", "b1") if host != node.host)
    world.done("ann", "POST", "/v1/moves", {"node": node.name, "host": there})
    store = service.context.store
    (job,) = store.jobs()
    store.put_job(job.model_copy(update={"reason": HOSTILE, "next": HOSTILE, "placed": HOSTILE}))
    service.jobs.outputs[job.id].append(("stdout", 3.0, HOSTILE.encode()))
    (cluster,) = store.clusters()
    store.put_cluster(cluster.model_copy(update={"reason": HOSTILE}))
    store.add_event("balance.decision", "hello", HOSTILE, moves={HOSTILE: HOSTILE})
    body = {"title": HOSTILE, "html": f"<!doctype html><title>x</title>{HOSTILE}"}
    assert world.ask("root", "PUT", "/v1/reports/one", body).status_code == 200
    return world


def path_of(world: Accounts, path: str) -> str:
    for key, value in IDS.items():
        path = path.replace(key, value)
    return path.replace("{move}", world.service.context.store.moves()[0].id)


def shown() -> list[str]:
    """Pages that a service in memory can show: profiles are of real ranks, and a provider is another server."""
    unlike = ("/static/", "/profile", *PROVIDER_PAGES)
    return [path for method, path in PAGES if method == "GET" and path.startswith("/web")
            and not any(part in path for part in unlike)]  # fmt: skip


def test_every_route_has_its_row() -> None:
    parts = (sign_in, pages, profile_page, actions, admin_actions)
    routes = {(method, route.path) for part in parts for route in part.router.routes for method in route.methods}  # type: ignore[attr-defined]
    assert routes == set(PAGES)
    assert {path for (_, path), rule in PAGES.items() if rule.access is Access.OPEN} == {
        "/", *OPEN_PAGES, *PROVIDER_PAGES, *(f"/web/static/{name}" for name in STATIC),
    }  # fmt: skip


@pytest.mark.parametrize("who", ["ann", "vic", "eve"])
def test_each_page_for_each_role(world: Accounts, who: str) -> None:
    browser = Browser(world).enter(who)
    for path in shown():
        refused = path == "/web/admin" and who != "eve"
        for part in (False, True):
            answer = browser.get(path_of(world, path), part)
            assert answer.status_code == (403 if refused else 200), (path, part, answer.text)
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_pages_need_a_session(world: Accounts) -> None:
    for (method, path), rule in PAGES.items():
        answer = Browser(world).ask(method, path_of(world, path).replace("{id}", "x").replace("{name}", "x"))
        if rule.access is not Access.OPEN and answer.status_code != 429:
            assert answer.status_code == 303 and answer.headers["location"] == "/web/sign-in", path


def test_names_stay_text(world: Accounts) -> None:
    """Each page of who sees most, whole and in parts: no tag that a name brought, and the name itself."""
    browser, told = Browser(world).enter("eve"), 0
    for path in (path for path in shown() if not path.endswith("/content")):
        for part in (False, True):
            text = browser.get(path_of(world, path), part).text
            assert "<script>alert" not in text and "<img src=x" not in text and "onerror=alert(2)>" not in text, path
            told += "&lt;script&gt;alert(1)" in text
    assert told >= 10


def test_nothing_inline(world: Accounts) -> None:
    browser = Browser(world).enter("eve")
    for path in (path for path in shown() if not path.endswith("/content")):
        answer = browser.get(path_of(world, path))
        assert answer.headers["content-security-policy"] == POLICY, path
        tags = re.findall(r"<[a-z][^>]*>", re.sub(r"='[^']*'", "", answer.text))
        assert not [tag for tag in tags if re.search(r"\sstyle=|\son[a-z]+=|javascript:|hx-on", tag)], path
        assert all(" src=" in tag for tag in tags if tag.startswith("<script")), path
        assert not [tag for tag in tags if tag.startswith("<style")], path
        assert "http://" not in answer.text and "https://" not in answer.text, "nothing comes from elsewhere"
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY and "frame-ancestors 'none'" in POLICY


def test_reports_are_drawn_and_never_run(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    frame = browser.get("/web/reports/one").text
    assert re.search(r'<iframe class="report" sandbox title="[^"]*" src="/web/reports/one/content"></iframe>', frame)
    answer = browser.get("/web/reports/one/content")
    policy = answer.headers["content-security-policy"]
    assert HOSTILE in answer.text and policy.startswith("sandbox; default-src 'none';")
    assert "allow-" not in policy and "script-src" not in policy
    assert "cross-origin-opener-policy" not in answer.headers, "browsers refuse it beside a sandbox"


def test_the_first_view_is_small(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    page = browser.get("/web")
    files = set(re.findall(r'(?:src|href)="(/web/static/[^"]+)"', page.text))
    assert len(files) == 4
    parts = [browser.get(path, part=True) for path in ("/web/operations", "/web/links")]
    answers = [page, *parts, *map(browser.get, sorted(files))]
    assert all(answer.status_code == 200 for answer in answers)
    assert sum(len(answer.content) for answer in answers) < LARGEST_VIEW


def test_many_clusters_and_hosts_are_shown_in_pages(service: Service) -> None:
    """The view stays small, and each cluster and host is on a page."""
    world = Accounts(service)
    world.add("eve", Role.ADMIN)
    hosts = [{**FABRIC["hosts"][0], "name": f"h{number}", "site": "ab"[number % 2]} for number in range(100)]
    world.done("root", "PUT", "/v1/fabric", {"spec": {**FABRIC, "hosts": hosts}})
    for number in range(30):
        world.done("root", "POST", "/v1/clusters", {"spec": {**CLUSTER, "name": f"c{number}", "nodes": 10}})
    browser = Browser(world).enter("eve")
    text = browser.get("/web").text
    assert len(text) < 200_000, len(text)
    assert "1 to 12 of 30 clusters" in text and "1 to 48 of 100 hosts" in text
    assert "hosts without its nodes are not drawn" in text
    for noun, path, total in (("cluster", r'id="cluster-(c\d+)"', 30), ("host", r'id="change-(h\d+)"', 100)):
        seen, page = set(re.findall(path, text)), text
        while more := re.search(rf'<a href="(/web\?{noun}=[^"]+)">After</a>', page):
            page = browser.get(html.unescape(more[1])).text
            assert not seen & (new := set(re.findall(path, page))) and new
            seen |= new
        assert len(seen) == total and "Before" in page
        assert f'hx-get="/web?{noun}=' in page, "it stays on its page when it is asked for again"
    assert 'id="cluster-c' in browser.get("/web?cluster=1000&host=1000").text, "the last page, when rows are removed"
    dialog = browser.get("/web/nodes/c0-0/move", part=True).text
    assert dialog.count("<option") == 99 and "Host for c0-0" in dialog


def test_files_are_kept_by_browsers_and_are_no_others(world: Accounts) -> None:
    for name in STATIC:
        answer = Browser(world).get(f"/web/static/{name}")
        assert answer.content == (STATIC_FILES / name).read_bytes()
        assert "immutable" in answer.headers["cache-control"]
    for name in ("VENDORED.md", "../routes.py", "..%2froutes.py", "%2e%2e/routes.py"):
        answer = Browser(world).enter("ann").ask("GET", f"/web/static/{name}")
        assert answer.status_code == 404, name


def test_files_of_others_are_as_their_packages_have_them() -> None:
    rows = re.findall(
        r"^\| (\S+) \| \S+ \| \S+ \| ([0-9a-f]{64}) \|$", (STATIC_FILES / "VENDORED.md").read_text(), re.M
    )
    assert {name for name, _ in rows} == {"htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css"}
    for name, digest in rows:
        assert hashlib.sha256((STATIC_FILES / name).read_bytes()).hexdigest() == digest, name


def test_commands_that_pages_name_are_commands() -> None:
    known = {name for name, _, _, _ in _COMMANDS}
    texts = [path.read_text() for path in (STATIC_FILES.parent / "templates").glob("*.html")]
    named = set(re.findall(r"(?<![-\w.])wherry ([a-z]+)", " ".join(texts)))
    assert named <= known and len(named) > 15


def test_a_viewer_is_offered_no_change(world: Accounts) -> None:
    browser = Browser(world).enter("vic")
    for path in ("/web", "/web/jobs", "/web/jobs/job-1", "/web/balance"):
        sent = re.findall(r'hx-post="([^"]+)"', browser.get(path).text)
        assert set(sent) == {"/web/sign-out"}, path
    assert "draggable" not in browser.get("/web").text
    assert "draggable" in Browser(world).enter("ann").get("/web").text


def test_anothers_is_not_there(world: Accounts) -> None:
    world.add("cat")
    browser = Browser(world).enter("cat")
    for path in ("/web", "/web/jobs", "/web/moves", "/web/events", "/web/operations", "/web/clusters/new"):
        assert "hello-" not in browser.get(path).text, path
    for path in ("/jobs/{id}", "/moves/{id}", "/jobs/{id}/output"):
        answer = browser.get(path_of(world, f"/web{path}"))
        assert answer.status_code == 404 and "NOT_FOUND" in answer.text


def test_errors_are_told_with_their_remedy(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    whole, part = browser.get("/web/jobs/nix"), browser.get("/web/jobs/nix", part=True)
    assert whole.status_code == part.status_code == 404
    assert "wherry job list" in whole.text and "<main" in whole.text
    assert "wherry job list" in part.text and "<main" not in part.text


def test_rates_are_told_of_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, clock = rates.Rates(), [100.0]
    monkeypatch.setattr(rates.time, "monotonic", lambda: clock[0])
    assert seen.of("hello-0", 1.0, "a1") is None
    assert seen.is_fresh("hello-0", "a1")
    clock[0] += 2
    assert not seen.is_fresh("hello-0", "a1"), "a second look gives the first rate soon"
    assert seen.of("hello-0", 3.0, "a1") == 1.0
    assert seen.of("hello-0", 3.0, "a1") == 1.0, "at once again: the last one"
    assert seen.is_fresh("hello-0", "a1") and seen.known("hello-0") == 1.0 and not seen.is_fresh("hello-0", "a2")
    clock[0] += 5
    assert not seen.is_fresh("hello-0", "a1")
    assert seen.of("hello-0", 0.1, "a2") is None, "it moved, and counts anew"
    assert seen.of("hello-0", None) is None and not seen.is_fresh("hello-0", "a2"), "it is not counted any more"
    assert [pages._shade(load) for load in (None, 0.0, 0.5, 1.0)] == ["unknown", "l0", "l2", "l4"]


def test_links_are_told_with_their_load(world: Accounts) -> None:
    text = Browser(world).enter("vic").get("/web/links", part=True).text
    assert "Link a - b" in text and "to b" in text and "to a" in text and "load not known" in text
    figures = {"bandwidth": 8e6, "loss": None}
    link = {
        "link": {"between": ["a", "b"]}, "there": {"bytes": 10}, "back": None,
        "declared": {"there": figures, "back": figures}, "measured": {"latency": 0.01, "latency_back": None},
    }  # fmt: skip
    seen = rates.Rates()
    seen._seen["a to b"] = ("", rates.time.monotonic() - 1, 0)
    there, back = pages._ways({**link, "there": {"bytes": 500_000}}, seen)
    assert there["target"] == "b" and there["load"] == pytest.approx(0.5, rel=0.1) and there["latency"] == 0.01
    assert back["target"] == "a" and back["load"] is back["latency"] is None


INSIDE = MpiProfile(
    job="job-1", time=1, seconds=3, size=2, kind="waiting", reason=HOSTILE, imbalance=1.5,
    ranks=tuple(RankActivity(rank=rank, node=f"hello-{rank}", computing=0.25 + rank / 2, waiting=0.2, transferring=0.1,
                             calls=7) for rank in (0, 1)),
    operations=(OperationUse(operation="Send", least=1024, calls=9, bytes=4096, share=0.1, waiting=0.05),),
    flows=(RankFlow(source=0, target=1, messages=3, bytes=2**20),), communicators=(), unseen={HOSTILE: HOSTILE},
)  # fmt: skip
OUTSIDE = Profile(
    cluster="hello", jobs=("job-1",), time=1, seconds=3, ran=9, remaining=60, basis="as long again",
    nodes=tuple(NodeLoad(node=f"hello-{index}", host="a1", ranks=1, cpu=0.5, computing=0.5, waiting=0.5)
                for index in (0, 1)),
    flows=(Flow(source="hello-1", target="hello-0", messages=3, bytes=2048, turns=1),),
)  # fmt: skip


def test_a_profile_is_told_and_drawn(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []
    inside = [INSIDE]
    monkeypatch.setattr(BalanceCommands, "mpi_profile", lambda _, id, long: asked.append((id, long)) or inside[0])
    monkeypatch.setattr(BalanceCommands, "profile", lambda _, id, long: asked.append((id, long)) or OUTSIDE)
    browser = Browser(world).enter("ann")
    text = browser.get("/web/jobs/job-1/profile?seconds=2", part=True).text
    assert asked == [("job-1", 2.0)] and "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "<strong>50 %</strong> of the ranks' time" in text.replace("&#39;", "'") and "MPI_Send" in text
    assert "<title>0 to 1: 1.0 MiB/s</title>" in text and " style=" not in text
    text = browser.get("/web/jobs/job-1/profile?outside=1", part=True).text
    assert asked[1:] == [("job-1", 3.0)] and "<title>hello-1 to hello-0: 2.0 KiB/s</title>" in text
    inside[0] = INSIDE.model_copy(update={"ranks": ()})  # it was run with --plain
    assert "hello-1 to hello-0" in browser.get("/web/jobs/job-1/profile", part=True).text
    assert Browser(world).enter("vic").get("/web/jobs/job-1/profile", part=True).status_code == 403, "as REST has it"
    assert browser.get("/web/jobs/job-1/profile?seconds=3600", part=True).status_code == 422


def test_a_matrix_of_many_ranks_has_few_cells() -> None:
    flows = [{"source": rank, "target": (rank + 1) % 100, "bytes": 1.0 + 99 * (rank == 50)} for rank in range(100)]
    found = profile_page.matrix([str(rank) for rank in range(100)], flows)
    assert found and found["size"] == 25 and len(found["cells"]) == 625 and "4 in a cell" in found["label"]
    shades = {(cell["y"], cell["x"]): cell["shade"] for cell in found["cells"]}
    assert shades[12, 12] == 4 and shades[0, 0] == 2 and shades[0, 5] == 0
    assert profile_page.matrix(["a"], []) is None


def test_what_is_no_page_and_no_request_is_told_as_a_page(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    for path, status in (("/web/nix", 404), ("/web/jobs/job-1/output?offset=x", 422)):
        whole, part = browser.get(path), browser.get(path, part=True)
        assert (whole.status_code, part.status_code) == (status, status)
        assert "<main" in whole.text and '<div class="problem"' in part.text and "<main" not in part.text
