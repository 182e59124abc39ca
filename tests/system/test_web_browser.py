"""The web page in a real Chromium, with axe-core: sign in, make a cluster, run a job, watch a move, read a report, sign
out. It runs where Chromium and playwright are (scripts/setup-test)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from realworld import SECONDS, WHERRY, RealInstance, real_instance, ring_program

from ports import reserved

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: scripts/setup-test")
axe_of = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: scripts/setup-test")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: scripts/setup-test"),
]

PASSWORD = "four words are long"
PATIENCE = 120_000
"""Milliseconds for waits on a loaded machine."""
MOVES_OF_USERS = bool(int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16) >> 24 & 1)
"""Whether this process has CAP_SYS_RESOURCE, without which processes of users are not moved."""
FILE = "name: hello\nnodes: 2\ncpus: 0.25\nmemory: 128MiB\n"


@dataclass
class Site:
    """The daemon with its listener, and the reports of its pages in the browser."""

    root: RealInstance
    url: str
    page: Any = None
    errors: list[str] = field(default_factory=list)

    def words(self, *words: str, text: str = "") -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
        done = subprocess.run(
            [str(WHERRY), *words], env={**kept, "WHERRY_INSTANCE": self.root.instance.name}, input=text,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def axe(self) -> None:
        """axe-core finds nothing in the page; a report's frame is its author's."""
        found = axe_of.Axe().run(self.page, options={"iframes": False})
        assert not found.response["violations"], found.generate_report()

    def open(self, name: str) -> None:
        """A page by its name in the navigation."""
        self.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        self.page.wait_for_load_state()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """An admin with a password, signed out, before a browser."""
    with reserved() as port, real_instance("tweb", below=Path("/var/tmp")) as root:
        root.json("daemon", "start")
        state = root.json("daemon", "listen", f"127.0.0.1:{port}")
        site = Site(root, state["url"])
        site.words("user", "add", "ann", "--role", "admin", text=f"{PASSWORD}\n")
        root.json("user", "allow", "jobs")
        with playwright.sync_playwright() as run:
            browser = run.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
            context = browser.new_context(ignore_https_errors=True)  # its authority is the daemon's own
            context.set_default_timeout(PATIENCE)
            site.page = context.new_page()
            site.page.on("pageerror", lambda error: site.errors.append(str(error)))
            site.page.on("console", lambda said: site.errors.append(said.text) if said.type == "error" else None)
            site.page.on("dialog", lambda dialog: dialog.accept())
            yield site
            browser.close()


def end_job(site: Site) -> None:
    site.open("Jobs")
    site.page.get_by_role("button", name=re.compile("End job")).click()
    card = site.page.get_by_role("article").first
    playwright.expect(card.get_by_text("cancelled", exact=True)).to_be_visible(timeout=PATIENCE)


def test_a_users_day(site: Site) -> None:
    page, expect = site.page, playwright.expect
    expect.set_options(timeout=PATIENCE)

    # Sign in.
    page.goto(f"{site.url}/web")
    assert page.url.endswith("/web/sign-in")
    site.axe()
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    site.axe()
    assert page.evaluate("document.cookie") == "", "no script reads the session"

    # Make a cluster, from its file.
    page.get_by_role("link", name="New cluster").click()
    page.get_by_label("Nodes").fill("3")
    expect(page.get_by_label("The file, which defines the cluster")).to_have_value(re.compile("nodes: 3"))
    page.get_by_label("The file, which defines the cluster").fill(FILE)
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_text("2 to create")).to_be_visible()
    site.axe()
    page.get_by_role("button", name="Make it").click()
    expect(page.get_by_text("The cluster is being made.")).to_be_visible()
    site.open("Overview")
    cluster = page.get_by_role("article", name="Cluster hello")
    expect(cluster.locator("[data-node]")).to_have_count(2)
    site.axe()

    # Run a job.
    ring = ring_program("openmpi", site.root.directory)
    site.open("Jobs")
    page.get_by_text("Run a job").click()
    page.get_by_label("Program and arguments").fill(f"{ring} --seconds 3600 --memory 2 --size 4096 --pause 20")
    page.get_by_label("Ranks").fill("2")
    page.get_by_role("button", name="Run", exact=True).dblclick()
    card = page.get_by_role("article").first
    expect(card.get_by_text("running", exact=True)).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(1)
    site.axe()
    card.get_by_role("link").first.click()
    expect(page.get_by_role("log")).to_contain_text("iteration")
    page.get_by_label("Measure for seconds").fill("1")
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("img", name=re.compile("Bytes from each"))).to_be_visible()
    expect(page.get_by_text("MPI_Send", exact=False).first).to_be_visible()
    site.axe()

    if not MOVES_OF_USERS:  # then a node moves while no job is on it
        end_job(site)

    # Links are measured, and loads are seen.
    site.open("Overview")
    expect(page.get_by_role("article", name="Link a - b")).to_contain_text("to b")
    expect(cluster.get_by_text("load not known")).to_have_count(0)

    # Move a node by dragging it: nothing happens before the plan is agreed to.
    site.open("Overview")
    node = page.locator('[data-node="hello-0"]')
    before = node.locator("xpath=ancestor::*[@data-host]").get_attribute("data-host")
    there = next(name for name in site.root.hosts() if name != before)
    node.drag_to(cluster.locator(f'[data-host="{there}"]'))
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(f"wherry move hello-0 --to {there}")).to_be_visible()
    site.axe()
    assert site.root.hosts_of("hello")["hello-0"] == before
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()

    # The same by keyboard, and watched.
    node.get_by_role("button", name="Move hello-0").press("Enter")
    dialog.get_by_label("Host for hello-0").select_option(there)
    site.axe()
    dialog.get_by_role("button", name="Plan").press("Enter")
    dialog.get_by_role("button", name="Move hello-0").press("Enter")
    expect(dialog).to_be_hidden()
    site.open("Moves")
    expect(page.get_by_role("row").filter(has_text="hello-0").get_by_text("done", exact=True)).to_be_visible()
    assert site.root.hosts_of("hello")["hello-0"] == there
    page.get_by_role("row").filter(has_text="hello-0").get_by_role("link").click()
    expect(page.get_by_text("Downtime", exact=True)).to_be_visible()
    if page.locator("[data-rounds]").count():
        expect(page.locator(".chart canvas")).to_be_visible()
    site.axe()

    # Read a report.
    report = site.root.directory / "report.html"
    report.write_text("<!doctype html><title>HPL</title><h1>Seven</h1><script>document.title='run'</script>")
    site.words("study", "publish", str(report), "--name", "hpl")
    site.open("Reports")
    page.get_by_role("link", name="hpl").click()
    frame = page.frame_locator("iframe.report")
    expect(frame.get_by_role("heading", name="Seven")).to_be_visible()
    site.axe()
    site.errors = [text for text in site.errors if "sandboxed" not in text and "allow-scripts" not in text]

    # The other pages, dark, and on a phone.
    for name in ("Balance", "Events", "Administration", "ann"):
        site.open(name)
        site.axe()
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 740})
    for name in ("Overview", "Jobs", "Moves", "Administration"):
        site.open(name)
        site.axe()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{name} is too wide"

    # End the job, and sign out.
    if MOVES_OF_USERS:
        end_job(site)
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/web/sign-in")
    page.goto(f"{site.url}/web/jobs")
    assert page.url.endswith("/web/sign-in")
    assert not site.errors, "nothing was refused by the policy, and no script failed"


def test_a_link_signs_in_once(site: Site) -> None:
    found = site.root.json("dashboard", "--user", "ann")
    page = site.page
    page.goto(found["link"])
    page.wait_for_url("**/web")
    assert "#" not in page.url and page.get_by_role("heading", name="Overview").is_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/web/sign-in")
    page.goto(found["link"])
    playwright.expect(page.get_by_text("this link does not sign in")).to_be_visible()


def test_events_reach_the_page(site: Site) -> None:
    """Without being asked for: a second user's change shows on the page of the first."""
    found = site.root.json("dashboard", "--user", "ann")
    page = site.page
    page.goto(found["link"])
    page.wait_for_url("**/web")
    site.open("Events")
    site.words("user", "add", "bob", text=f"{PASSWORD}\n")
    playwright.expect(page.get_by_text("user bob was made, role user")).to_be_visible(timeout=PATIENCE)

    asked: list[str] = []
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away}); window.away = true")
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("document.body.dispatchEvent(new CustomEvent('wherry-changed'))")
    page.evaluate("new Promise((done) => setTimeout(done, 200))")
    assert asked == [], "a hidden page sends no request"
    with page.expect_request("**/web/events"):
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
