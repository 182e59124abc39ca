"""Every command in a block of README.md, docs/*.md and tiles/ is run in a real instance, or listed with the
reason why not. The tutorial's console blocks are run by `test_tutorial.py`, in order and with their output."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from names import own_name

TOP = Path(__file__).resolve().parents[2]
SECONDS = 240
"""Time limit of one command on a loaded machine."""
RUN = {
    "tiles/README.md": r"wherry ",
    "tiles/docs/tiles.md": r"wherry ",
    "docs/studies.md": r"wherry (study (list|show)|bench list)",
}
"""By file, the beginnings of the commands that are run, in the order of the file."""
NOT_RUN = {
    r"make ": "installs packages, or is a test run of its own",
    r"alias ": "is of the reader's shell",
    r"wherry study (run|report|compare)|wherry bench( |$)": "takes minutes to hours; tests/system/test_studies.py and "
    "test_benchmarks.py run them in short",
    r"ln -sf|wherry (up examples/hello.yaml|run hello -n 4 -- ./pi|move hello-2|down hello$)|mpicc ": (
        "the tutorial and scripts/readme run the same"
    ),
    r"wherry run hello -n 4 -- ./move_self|curl ": "tests/system/test_inside_jobs.py runs and asks such",
    r"wherry (daemon (start|listen)|user|project|login|logout|host capacity|up cluster.yaml|exec hello-0 -- host)": (
        "asks for passwords, or as an account over the network; tests/system/test_users.py runs such commands"
    ),
    r"eval .*ec2-env|aws ec2 |wherry run ec2-": "needs a daemon on the network; tests/system/test_ec2.py runs such",
    r"wherry dashboard": "opens a browser; tests/system/test_web_browser.py and tests/unit/cli/test_dashboard.py do",
    r"wherry (host add|fabric up machines|run cluster)": "needs machines; tests/system/test_host_bundles.py and "
    "test_hosts_by_ssh.py run such commands at hosts in namespaces",
    r"wherry run hello -n 1 --place-spawned": "tests/system/test_spawned_processes.py runs such programs",
    r"wherry daemon (backup|restore|stop|start --standby)|sudo -u|-u postgres": "needs a server of PostgreSQL, or an "
    "instance of its own; tests/system/test_postgresql.py runs such commands",
    r"wherry job profile --program": "needs a job of ten seconds before; test_placed_by_profile.py runs them",
    r"wherry (image build|up examples/vm.yaml|run vm|move vm-|logs --node vm|down vm)": "needs QEMU and an image; "
    "tests/system/test_vm.py runs such commands where they are",
}
"""Beginnings of commands -> why they are not run."""


def commands(file: str) -> list[str]:
    """The commands in the blocks of a file, without comments, `$ ` and sudo."""
    found, language = list[str](), None
    for line in (TOP / file).read_text().splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language == "console" and (file == "docs/tutorial.md" or not line.startswith("$ ")):
            continue
        elif language in ("sh", "", "console"):
            words = re.sub(r"(^|\s)#.*", "", line.removeprefix("$ ")).strip()
            if re.match(r"[a-z][\w./-]*( |$)", words):
                found.append(words.removeprefix("sudo ").removeprefix(".venv/bin/"))
    return found


def pages() -> list[str]:
    found = [page for pattern in ("docs/*.md", "tiles/*.md", "tiles/docs/*.md") for page in sorted(TOP.glob(pattern))]
    return ["README.md", *(str(page.relative_to(TOP)) for page in found)]


def test_the_example_of_readme_is_of_the_commands_that_are_typed() -> None:
    done = subprocess.run([TOP / "scripts" / "readme", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def is_run(file: str, command: str) -> bool:
    return re.match(RUN.get(file, "$^"), command) is not None


def test_every_command_is_run_or_has_a_reason() -> None:
    left = {
        (file, command)
        for file in pages()
        for command in commands(file)
        if not is_run(file, command) and not any(re.match(reason, command) for reason in NOT_RUN)
    }
    assert not left
    assert all(any(re.match(reason, command) for file in pages() for command in commands(file)) for reason in NOT_RUN)


@pytest.mark.skipif(os.geteuid() != 0, reason="instances are made by root")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("file", RUN)
def test_commands_of_the_document(file: str, tmp_path: Path) -> None:
    if not (TOP / "build/native/lib/tile/busy").exists():
        pytest.skip("programs for tiles are not built")
    for examples in ("examples", "tiles/examples"):
        shutil.copytree(TOP / examples, tmp_path / examples)
    (tmp_path / "build").symlink_to(TOP / "build")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    environment = {**kept, "PATH": path, "WHERRY_INSTANCE": own_name("tdoc")}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command), cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    run("wherry down --all --yes")
    try:
        typed = [command for command in commands(file) if is_run(file, command)]
        assert len(typed) >= 3
        for command in typed:
            done = run(command)
            assert done.returncode == 0, f"{file}: {command}\n{done.stdout}"
    finally:
        down = run("wherry down --all --yes")
    assert down.returncode == 0, down.stdout
