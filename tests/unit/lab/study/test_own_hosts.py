"""Studies on hosts of the user's own: the refused hosts and studies, the facts of a host, native ranks there, and their
part in record, report and comparison."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakestudy import FakeStudy, constant_values, page_text, run

from wherry.base.errors import Code, Failed, Refused
from wherry.cli import main
from wherry.lab.study import compare, execution, host_probe, own_hosts_testbed
from wherry.lab.study.catalog import STUDIES
from wherry.lab.study.host_probe import Probe
from wherry.lab.study.levels import Combination, RunFailed
from wherry.lab.study.own_hosts import OwnHosts
from wherry.lab.study.own_hosts_testbed import OwnHostsTestbed
from wherry.lab.study.papers.cloud_overhead import CloudOverhead
from wherry.lab.study.papers.nic_degradation import NicDegradation
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, ProgramResult, Testbed

ANSWER = """\
kernel 6.1.0-13-amd64
cpu A Processor @ 2 GHz
cpus 8
memory 16384000
boot {boot}
load 0.10 0.20 0.30
system Debian GNU/Linux 12 (bookworm)
openmpi {openmpi}
mpich {mpich}
ping {ping}
interface {interface}
network {address}/24
mtu 1500
echo 10.0.0.2 0.125
"""
HERE = {"open mpi": "mpirun.openmpi (OpenRTE) 4.1.4", "mpich": "4.0.2"}


def hosts(count: int = 2, **more: Any) -> OwnHosts:
    rows = [
        {"name": f"h{n}", "site": "a", "cores": 2, "memory": "1GiB", "uri": f"ssh://root@10.0.0.{n}", **more}
        for n in range(1, count + 1)
    ]
    sites = [{"name": "a"}]
    return OwnHosts.of(
        {"kind": "fabric", "version": 1, "name": "own", "driver": "ssh", "sites": sites, "hosts": rows}, "own.yaml"
    )


def answer(number: int, **words: str) -> Probe:
    address = f"10.0.0.{number}"
    usual = {
        "boot": str(number),
        "openmpi": HERE["open mpi"],
        "mpich": HERE["mpich"],
        "interface": "eth0",
        "ping": "/bin/ping",
    }
    return host_probe.parse(f"h{number}", address, ANSWER.format(address=address, **{**usual, **words}))


# Hosts and studies that go together, or not.


@pytest.mark.parametrize(
    ("driver", "why"), [("netns", "emulated"), ("libvirt", "virtual machines"), ("slurm", "allocations")]
)
def test_hosts_of_another_driver_are_refused(driver: str, why: str) -> None:
    document: dict[str, Any] = {"kind": "fabric", "version": 1, "name": "own", "driver": driver}
    host: dict[str, Any] = {"name": "h1", "site": "a", "cores": 1, "memory": "1GiB"}
    if driver == "libvirt":
        host, document = {**host, "uri": "qemu+ssh://root@10.0.0.1/system"}, {**document, "bridge": "br0"}
    document |= {"slurm": {"nodes": 1, "time": "1h"}} if driver == "slurm" else {"hosts": [host]}
    with pytest.raises(Refused) as raised:
        OwnHosts.of({**document, "sites": [{"name": "a"}]}, "own.yaml")
    assert raised.value.code == Code.UNSUPPORTED and why in raised.value.why and driver in raised.value.why


def test_each_study_runs_on_own_hosts_or_has_a_reason() -> None:
    reasons = {study.name: study.why_not_on_own_hosts for study in STUDIES}
    assert [name for name, why in reasons.items() if not why] == ["nic-degradation", "cloud-overhead"]
    assert all("why_not_on_own_hosts" in vars(study) for study in STUDIES), "each has its own"
    for study in STUDIES:
        if why := study.why_not_on_own_hosts:
            with pytest.raises(Refused, match=study.name) as raised:
                study(True, own_hosts=hosts())
            assert raised.value.why == why and raised.value.code == Code.UNSUPPORTED


@pytest.mark.parametrize(
    ("count", "given", "why"),
    [
        (1, {}, "it needs 2 hosts, own.yaml has 1"),
        (2, {"hosts": "3"}, "it needs 3 hosts, own.yaml has 2"),
        (2, {"ranks": "8"}, "it needs 4 cores and 2.0 GiB for nodes at each host, h1 has 2 cores and 1.0 GiB"),
        (2, {"node.memory": "1GiB"}, "it needs 2 cores and 2.0 GiB for nodes at each host, h1 has 2 cores and 1.0 GiB"),
    ],
)
def test_too_few_or_too_small_hosts_are_refused(count: int, given: Mapping[str, str], why: str) -> None:
    with pytest.raises(Refused, match="cannot be run on the hosts of own.yaml") as raised:
        CloudOverhead(True, given=given, own_hosts=hosts(count))
    assert raised.value.why == why


def test_the_first_hosts_alone_are_used() -> None:
    study = CloudOverhead(True, OwnHosts.unavailable(), own_hosts=hosts(3))
    fabric = study._fabric()
    assert [host["name"] for host in fabric["hosts"]] == ["h1", "h2"] == list(study._hosts())
    assert fabric["driver"] == "ssh" and [host.name for host in study.testbed(Path("/x"))._hosts] == ["h1", "h2"]  # type: ignore[attr-defined]
    left = {level.name: level.left_out for level in study.factors()[2].levels}
    assert left["native"] == left["nodes"] == "" and "container nodes alone" in left["vm"]
    assert "wire" in study.limits()[0] and "loopback interface and no wire" in CloudOverhead(True).limits()[0]
    assert study.lacking(vm="none").own_hosts is study.own_hosts


def test_the_levels_on_own_hosts_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without asking a host."""
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(hosts().document))  # which is YAML, too
    monkeypatch.setattr("wherry.client.daemon_process.examine", lambda: [])
    assert main._run(["study", "show", "cloud-overhead", "--fabric", str(file), "-o", "json"]) == 0
    levels = {level["name"]: level for level in json.loads(capsys.readouterr().out)["factors"][2]["levels"]}
    assert levels["native"]["text"].startswith("on the hosts themselves") and levels["vm"]["left_out"]
    assert main._run(["study", "show", "mixed", "--fabric", str(file)]) == 4
    assert "share of a processor" in capsys.readouterr().err


def test_messages_and_pings_go_from_host_to_host(tmp_path: Path, ends: list[str]) -> None:
    study, testbed = NicDegradation(True, OwnHosts.unavailable(), own_hosts=hosts(3)), Native(tmp_path)
    found = {str(one) for one in study.combinations()}
    tools = {"pingpong", "flood"}
    assert found == {f"nic={nic} tool={tool} mpi=openmpi" for nic in ("native", "container") for tool in tools}
    left = {level.name: level.left_out for factor in study.factors() for level in factor.levels}
    assert "counted" in left["counts"] and "container nodes alone" in left["virtio"]
    assert study.factors()[0].label("native") == "native (TCP over the wire)" and "wire" in study.limits()[0]
    assert study._cluster("container").hosts == ("h1", "h2") and study.used_hosts() == 2
    with pytest.raises(RunFailed):  # its output has no times
        study.measure(testbed, Combination.of(nic="native", tool="flood", mpi="openmpi"), tmp_path)
    assert "10.0.0.1:1" in testbed.words and testbed.words[-1] == "10.0.0.2" and "ping" in str(testbed.words)
    with pytest.raises(Refused, match="own hosts by EC2"):
        NicDegradation(True, given={"clusters": "EC2"}, own_hosts=hosts())
    with pytest.raises(Refused) as raised:
        NicDegradation(False, own_hosts=hosts())
    assert "1.5 GiB" in raised.value.why, "a message of 1 GiB needs it"


# Answers of hosts.


def test_facts_of_hosts_are_read() -> None:
    texts = host_probe.texts([answer(1), answer(2)], "always")
    assert texts["host h1"] == (
        "Linux 6.1.0-13-amd64, Debian GNU/Linux 12 (bookworm), A Processor @ 2 GHz, 8 CPUs, 15.6 GiB"
    )
    assert texts["wire"] == "h1 MTU 1500 (eth0), h2 MTU 1500 (eth0); frames of nodes are encrypted"
    assert "h1 to h2 0.12 ms" in texts["round-trip times"] and texts["load of hosts"].startswith("h1 0.10 0.20 0.30")
    assert "not encrypted" in host_probe.texts([answer(1)])["wire"]
    one = host_probe.texts([answer(1), answer(2, boot="1")])
    assert one["host h2"].endswith("on the same machine as h1") and "same" not in one["host h1"]


def test_mpis_that_hosts_lack_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_probe, "environment", lambda: HERE)
    assert set(host_probe.unavailable([answer(1), answer(2)])) == {"vm"}
    found = host_probe.unavailable([answer(1), answer(2, openmpi="", mpich="4.3")])
    assert "h2 has none" in found["mpirun.openmpi"] and "4.0.2: h2 has 4.3" in found["mpiexec.mpich"]
    assert "no ping at h2" in host_probe.unavailable([answer(1), answer(2, ping="")])["ping"]
    found = host_probe.unavailable([answer(1), answer(2, interface="ens3")])
    assert set(found) == {"vm", "mpiexec.mpich"} and "ens3 at h2" in found["mpiexec.mpich"]
    study = CloudOverhead(False, found, own_hosts=hosts())
    assert {one["mpi"] for one in study.combinations()} == {"openmpi"}


def test_a_host_that_is_silent_or_not_on_the_wire_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answers(command: list[str], **_: Any) -> Any:
        asked.append(command)
        code = 255 if "root@10.0.0.2" in command else 0
        said = "kernel 6.1\n" if "10.0.0.3" in command else "\n".join(ANSWER.splitlines()[:6]).format(boot="1")
        return subprocess.CompletedProcess(command, code, said, "Connection refused\n")

    monkeypatch.setattr(subprocess, "run", answers)
    with pytest.raises(Refused, match="host h2 cannot be asked") as raised:
        host_probe.probe(hosts().first(2)[1:])
    assert raised.value.code == Code.UNREACHABLE and raised.value.why == "Connection refused"
    with pytest.raises(Refused, match="host h1 is not on the wire"):
        host_probe.probe(hosts().first(1))
    with pytest.raises(Refused, match="host h3 cannot be asked") as raised:
        host_probe.probe(hosts(3).first(3)[2:])
    assert raised.value.why == "its answer has no cpus, no memory, no boot, no load"
    assert asked[-2][-6:] == ["--", "root@10.0.0.1", "sh", "-s", "--", "10.0.0.1"]


def test_hosts_have_to_see_the_studys_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def sees(host: Any, _: str, file: str) -> str:
        assert Path(file).exists()
        asked.append(host.name)
        return "yes\n" if host.name == "h1" else ""

    monkeypatch.setattr(host_probe, "run_script", sees)
    host_probe.require_shared(hosts().first(1), tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(Refused, match="h2 does not see") as raised:
        host_probe.require_shared(hosts().first(2), tmp_path / "other")
    assert raised.value.code == Code.INCOMPATIBLE_HOST and asked == ["h1", "h1", "h2"]
    assert not (tmp_path / "other").exists()


# How native ranks are started.


class Native(OwnHostsTestbed):
    """Commands are written down; `code` is that with which they end."""

    def __init__(self, out: Path, code: int = 0) -> None:
        super().__init__(out, hosts().first(2))
        self._probes, self.code, self.words = [answer(1), answer(2)], code, list[str]()
        self.variables: Mapping[str, str] = {}

    def run_command(
        self, argv: Sequence[str], directory: Path, seconds: float, env: Mapping[str, str] | None = None
    ) -> ProgramResult:
        self.words, self.variables = list(argv), env or {}
        if self.code < 0:
            raise KeyboardInterrupt
        return ProgramResult(self.code, "", "")


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hosts at which native runs were ended. Libraries are files of the test."""
    ended: list[str] = []
    monkeypatch.setattr(own_hosts_testbed, "run_script", lambda host, _, number: ended.append(f"{host.name} {number}"))
    monkeypatch.setattr(host_probe, "own_address", lambda _: "10.0.0.9")
    monkeypatch.setattr(own_hosts_testbed.native_mpirun, "launcher", lambda mpi: mpi)
    built = tmp_path / "built"
    built.mkdir()
    for name in ("libwherry-wait.so", "libwherry-finalize.so", "npb"):
        (built / name).write_text(name)
    monkeypatch.setattr(own_hosts_testbed, "native_library", lambda name: built / name)
    return ended


@pytest.mark.parametrize(("mpi", "where"), [("openmpi", "10.0.0.1:2,10.0.0.2:2"), ("mpich", "10.0.0.1:1,10.0.0.2:1")])
def test_native_ranks_are_at_the_hosts_over_their_wire(tmp_path: Path, ends: list[str], mpi: str, where: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    testbed = Native(out)
    testbed.run_native([str(tmp_path / "built/npb"), "S"], 4, out, 1.0, "tcp", mpi, {"A": "b"}, waits=True)
    words = testbed.words
    assert words[0] == mpi and where in words and words[-2:] == [str(out / "programs/npb"), "S"]
    assert f"LD_LIBRARY_PATH={out}/programs" in words and (out / "programs/libwherry-wait.so").exists()
    assert ("-x" in words and words[words.index("-x") + 1] == "A") == (mpi == "openmpi")
    assert testbed.variables["A"] == "b" and "lo" not in (*words, *testbed.variables.values())
    if mpi == "openmpi":
        assert words[words.index("btl_tcp_if_include") + 1] == "10.0.0.0/24"
        assert words[words.index("oob_tcp_if_include") + 1] == "10.0.0.0/24,10.0.0.9/32"
    else:
        assert testbed.variables["UCX_NET_DEVICES"] == "eth0" and words[words.index("-localhost") + 1] == "10.0.0.9"
    agent = (out / "agent").read_text()
    assert all(f"10.0.0.{n}) shift; exec ssh -T" in agent and f"root@10.0.0.{n}" in agent for n in (1, 2))
    assert ends == []
    testbed.run_native(["/usr/bin/hpcc"], 1, out, 1.0)
    assert testbed.words[-1] == "/usr/bin/hpcc" and "10.0.0.1:1" in testbed.words, "one rank is at the first host"
    assert not any("LD_PRELOAD" in word for word in testbed.words)
    with pytest.raises(RunFailed, match="no shm"):
        testbed.run_native(["/usr/bin/hpcc"], 1, out, 1.0, "shm")


@pytest.mark.parametrize("code", [1, -1])
def test_a_native_run_that_fails_is_ended_at_all_hosts(
    tmp_path: Path, ends: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed = Native(tmp_path, code)
    if code < 0:
        with pytest.raises(KeyboardInterrupt):
            testbed.run_native(["/bin/true"], 2, tmp_path, 1.0)
    else:
        assert testbed.run_native(["/bin/true"], 2, tmp_path, 1.0).exit_code == code
    assert ends == [f"h1 {testbed._own}", f"h2 {testbed._own}"]

    def silent(host: Any, *_: str) -> None:
        ends.append(host.name)
        raise Failed(Code.FAILED, f"{host.name} is silent", "", "")

    monkeypatch.setattr(own_hosts_testbed, "run_script", silent)
    with pytest.raises(Failed, match="h2 is silent"):
        testbed.close()
    assert ends[2:] == ["h1", "h2"], "the second one is asked all the same"


def test_the_end_of_native_runs_is_that_of_their_own_processes() -> None:
    """The script as a host runs it."""
    own, other = secrets.token_hex(8), secrets.token_hex(8)
    files = {number: Path(f"{own_hosts_testbed._FILES}-{number}") for number in (own, other)}
    waiting = {
        number: subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={own_hosts_testbed._MARK: number, "PATH": "/bin"})
        for number in files
    }
    try:
        for directory in files.values():
            directory.mkdir()
            (directory / "session").touch()
        words = ["sh", "-s", "--", own]
        subprocess.run(words, input=own_hosts_testbed._END, text=True, check=True)
        assert waiting[own].wait() == -signal.SIGKILL and not files[own].exists()
        assert waiting[other].poll() is None and files[other].exists()
    finally:
        for number, process in waiting.items():
            process.kill()
            process.communicate()
            shutil.rmtree(files[number], ignore_errors=True)


def test_the_fabric_is_removed_when_clusters_cannot_be(
    tmp_path: Path, ends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Service:
        def __enter__(self) -> Service:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def fabric_down(self) -> Any:
            done.append("fabric")
            if len(done) > 2:
                raise Refused(Code.NOT_FOUND, "there is no fabric", "", "")
            return SimpleNamespace(id="1")

        def wait(self, _: str) -> None:
            return None

    testbed = Native(tmp_path)
    testbed._client = cast(Any, Service())
    monkeypatch.setattr(own_hosts_testbed, "Client", Service)
    monkeypatch.setattr(Testbed, "close", lambda self: done.append("clusters"))
    testbed.close()
    assert done == ["clusters", "fabric"] and ends
    testbed._client = cast(Any, Service())
    testbed.close()  # its fabric could not be made


def test_a_run_whose_nodes_are_elsewhere_than_native_ranks_fails(tmp_path: Path, ends: list[str]) -> None:
    testbed = Native(tmp_path)
    nodes = [SimpleNamespace(host=host) for host in ("h1", "h1", "h2", "h2")]
    testbed._client = cast(Any, SimpleNamespace(nodes=lambda _: nodes))
    cluster = ClusterShape("c", 4, ("h1", "h2"))
    testbed._clusters = {"c": cluster}
    with pytest.raises(RunFailed, match="nodes are at h1, h1, h2, h2, and native ranks at h1, h2, h1, h2"):
        testbed.start_job(cluster, ["/bin/true"], 4, tmp_path)


# Record, report and comparison.


class OnOwn(FakeStudy):
    why_not_on_own_hosts = ""


def made(directory: Path, own: OwnHosts | None, facts: Mapping[str, str] | None = None) -> Results:
    study = OnOwn(False, own_hosts=own)
    study.measure_run = constant_values  # type: ignore[method-assign]
    results = Results.create(directory, study, 2, facts)
    run(results)
    return results


def test_a_record_is_of_its_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = made(tmp_path, hosts())
    monkeypatch.setattr(execution, "find", lambda name: OnOwn)
    again = execution.load(tmp_path)
    assert again.study.own_hosts and again.study.used_hosts() == 2 and len(again.counted()) == 4
    text = page_text(again)
    assert "Made on hosts of the user&#x27;s own (h1, h2)." in text.replace("&#39;", "&#x27;")
    assert "on the same hosts" in text and "where launchers run" in text
    for other in (hosts(3), None):
        with pytest.raises(Refused, match="holds another study") as raised:
            made(tmp_path, other)
        assert "--fabric on ssh://root@10.0.0.1, ssh://root@10.0.0.2" in raised.value.why
    results.manifest["sessions"][0]["before"]["host h1"] = "Linux 5"
    now = {**results.manifest["sessions"][0]["before"], "host h1": "Linux 6", "load of hosts": "9"}
    with pytest.raises(Refused, match="another machine, or") as raised:
        results._require_same_machine(now)
    assert raised.value.why == "host h1: Linux 5 then, Linux 6 now"


def test_own_hosts_and_emulated_ones_are_not_compared_silently(tmp_path: Path) -> None:
    own, emulated = made(tmp_path / "own", hosts()), made(tmp_path / "emulated", None)
    for old, new in ((own, emulated), (emulated, own)):
        first = compare.caveats(old, new)[0]
        assert "hosts of the user's own (h1, h2)" in first and "emulated hosts of one machine" in first
        assert "compares two networks" in first and compare.differences(old, new)
    assert "not run in turns" in compare.caveats(own, own)[0]


def test_an_instance_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fabric of a user would be replaced."""
    monkeypatch.setattr(execution, "_exists", lambda place: True)
    monkeypatch.setenv("WHERRY_INSTANCE", "mine")
    with pytest.raises(Refused, match="the instance mine is in use") as raised:
        execution._require_new_instance("cloud-overhead", hosts())
    assert "--fabric own.yaml" in raised.value.next
    monkeypatch.setenv("WHERRY_INSTANCE", "study")
    execution._require_new_instance("cloud-overhead", hosts())
