"""Studies on virtual machines without KVM, and the adapters and events of `nic-degradation`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from wherry.lab.study import machine_counters, message_counts, requirements, runner
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.machine_counters import Machine, card_events
from wherry.lab.study.papers import nic_counts
from wherry.lab.study.papers.nic_degradation import NicDegradation
from wherry.lab.study.papers.nic_levels import cards
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.results import Results, Run
from wherry.model.adapters import ADAPTER_DRIVERS, USUAL_ADAPTERS, Adapter

NO_KVM = {"kvm": "no KVM here"}
SIZES = (1, 1024, 65536)


def hows(study: Study, test: str) -> set[str]:
    return {combination["how"] for combination in study.combinations() if combination["test"] == test}


def left_out(study: Study) -> dict[str, str]:
    return {level.name: level.left_out for factor in study.factors() for level in factor.levels if level.left_out}


# xen-migration


def test_emulated_machines_run_hpl_and_sp_at_a_size_of_theirs() -> None:
    """With KVM they run that of the others; beside them are native runs of the same size."""
    slow, fast = XenMigration(False, NO_KVM), XenMigration(False)
    for small, usual in (("hpl3-emulated", "hpl3"), ("sp-emulated", "sp")):
        assert hows(slow, small) == {"native-tcp", "nodes", "vms", "vms-moved"} and not hows(fast, small)
        assert not {"vms", "vms-moved"} & hows(slow, usual) and {"vms", "vms-moved"} <= hows(fast, usual)
    assert not {"vms"} & hows(slow, "hpl6") and "vms" in hows(fast, "hpl6")
    assert "hours" in left_out(slow)["vms-full"] and "vms-full" not in left_out(fast)
    assert (slow.problem("hpl3-emulated").n, slow.sp_class("sp-emulated")) == (300, "S")
    text = " ".join(level.text for factor in slow.factors() for level in factor.levels)
    assert "VM nodes, emulated" in text and "for emulated VMs; n = 300, 1 x 3 ranks, 36 factorisations" in text


def test_emulated_machines_run_less_often(tmp_path: Path) -> None:
    """Thirty of HPL's runs of minutes, with a move and without, would take a night."""
    results = Results.create(tmp_path, XenMigration(False, NO_KVM), 30)
    runs = [str(combination) for turn, combination in runner.remaining_runs(results) if turn >= 0]
    for test in ("hpl3-emulated", "sp-emulated"):
        counts = {how: runs.count(f"test={test} how={how}") for how in ("native-tcp", "nodes", "vms", "vms-moved")}
        assert counts == {"native-tcp": 30, "nodes": 30, "vms": 5, "vms-moved": 5}
    more = XenMigration(False, NO_KVM, {"vm.runs": "30"})
    assert more.repetitions_of(Combination.of(test="sp-emulated", how="vms"), 6) == 6


def test_emulated_sizes_are_settings() -> None:
    given = {"vm.hpl.n": "400", "vm.hpl.after": "3s", "vm.sp.class": "W", "vm.sp.after": "0.1s"}
    study = XenMigration(False, NO_KVM, given)
    assert (study.problem("hpl3-emulated").n, study.problem("hpl3").n) == (400, 3000)
    assert (study.sp_class("sp-emulated"), study.sp_class("sp")) == ("W", "B")
    assert (study.after("hpl3-emulated"), study.after("sp-emulated"), study.after("hpl3")) == (3.0, 0.1, 2.0)


def test_moves_of_emulated_machines_are_compared_with_their_own(tmp_path: Path) -> None:
    study = XenMigration(False, NO_KVM)
    results = Results.create(tmp_path, study, 1)
    for test in ("hpl3-emulated", "sp-emulated"):
        for how, seconds in (("native-tcp", 1.0), ("vms", 50.0), ("vms-moved", 60.0)):
            add(results, Combination.of(test=test, how=how), seconds=seconds, total=3.0, downtime=0.5, bytes=1.0)
    tables = {table.title: table.rows for table in study.page(results).tables}
    costs = {row[0]: row[3] for row in tables["Cost of one move for the program"]}
    assert costs == {"HPL, 3 nodes, for emulated VMs": "10", "NPB SP, 4 nodes, for emulated VMs": "10"} or all(
        text.startswith("10") for text in costs.values()
    )
    (beside,) = (rows for title, rows in tables.items() if title.startswith("Beside"))
    emulated = [row for row in beside if "for emulated VMs" in row[0]]
    assert {row[1] for row in emulated} >= {"1.011", "about 1.04", "1409 / 1267 = 1.112"}
    assert all("direction" in row[-1] for row in emulated)
    assert any("VM nodes are emulated here" in remark for remark in study.page(results).remarks)


@pytest.mark.parametrize("paper", [True, False])
def test_linpack_runs_fifty_times_as_in_the_paper(tmp_path: Path, paper: bool) -> None:
    study = XenMigration(False, {"vm": "no VMs"}, paper=paper)
    results = Results.create(tmp_path, study, study.default_repetitions())
    runs = [combination for turn, combination in runner.remaining_runs(results) if turn >= 0]
    assert runs.count(Combination.of(test="linpack", how="nodes")) == 50
    assert runs.count(Combination.of(test="sp", how="nodes")) == 30
    assert XenMigration(True).repetitions_of(Combination.of(test="linpack", how="nodes"), 2) == 2


def test_hosts_level_is_the_papers_domain0() -> None:
    assert "host" in hows(XenMigration(False, NO_KVM), "linpack") & hows(XenMigration(False), "netpipe")
    assert "host" not in hows(XenMigration(True), "linpack") | hows(XenMigration(False, {"vm": "none"}), "netpipe")


# nic-degradation


def nics(**unavailable: str) -> set[str]:
    return {combination["nic"] for combination in NicDegradation(False, unavailable).combinations()}


def test_adapters_are_measured_where_qemu_and_the_image_have_them() -> None:
    assert set(get_args(Adapter)) == set(ADAPTER_DRIVERS) and set(USUAL_ADAPTERS) < set(ADAPTER_DRIVERS)
    assert {"virtio", "virtio-queues", "vhost", "e1000", "pcnet", "ne2k_pci"} <= nics()
    assert "pcnet" not in nics(**{"adapter pcnet": "no driver"})
    assert "vhost" not in nics(vhost="no /dev/vhost-net")
    known = left_out(NicDegradation(False, {"vhost": "no device", "adapter pcnet": "no driver"}))
    assert (known["vhost"], known["pcnet"]) == ("no device", "no driver")
    assert "firmware" in known["i82551"] and "i82551" not in nics()
    everything = NicDegradation(False, given={"adapters": "all"})
    assert {combination["nic"] for combination in everything.combinations()} >= set(ADAPTER_DRIVERS)


def test_queues_are_beside_as_many_processors_with_one() -> None:
    shapes = {card.name: card.shape(1 << 20).spec() for card in cards(4)}
    assert shapes["virtio-queues"]["nic"] == {"model": "virtio", "queues": 4, "vhost": False}
    assert shapes["virtio-cpus"]["nic"] == {"model": "virtio", "vhost": False}
    assert shapes["virtio-queues"]["cpus"] == shapes["virtio-cpus"]["cpus"] == 4.0
    assert shapes["vhost"]["nic"]["vhost"] is True and shapes["e1000"]["nic"] == {"model": "e1000"}


def test_a_gigabyte_is_sent_by_every_adapter_when_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    class Recording:
        def leave_machines_of(self, kept: Any) -> None:
            assert kept.nic

        def require_memory(self, size: int) -> None:
            asked["memory"] = size

        def run_on_cluster(self, cluster: Any, argv: list[str], *_: Any) -> Any:
            asked.update(cluster=cluster, argv=argv)
            raise RunFailed("that will do")

    monkeypatch.setattr("wherry.lab.study.papers.nic_degradation.program", lambda *names: "-".join(names))
    for study in (NicDegradation(False, NO_KVM, {"vm.largest": "1GiB"}), NicDegradation(False, NO_KVM, paper=True)):
        for nic in ("virtio", "e1000", "ne2k_pci"):
            with pytest.raises(RunFailed):
                one = Combination.of(nic=nic, tool="pingpong", mpi="openmpi")
                study.measure(Recording(), one, tmp_path)  # type: ignore[arg-type]
            argv = asked["argv"]
            assert argv[argv.index("--max") + 1] == str(1 << 30) and "--budget" in argv
            assert asked["cluster"].memory == "1728MiB" and asked["memory"] == 4 << 30
        assert "vm-long" not in left_out(study)


def test_the_time_limit_follows_from_the_bytes() -> None:
    """Of the slow adapters the longest: 20 exchanges of each kind up to 8 MiB, then as many as the budget has."""
    few, mib = 2 * 2 * 20, 1 << 20
    small = sum(2 * 130 * size for size in (1 << power for power in range(17)))
    usual = small + sum(few * size for size in (mib // 8, mib // 4, mib // 2, mib, 2 * mib, 4 * mib, 8 * mib))
    study = NicDegradation(False)
    assert study._limit("virtio") == pytest.approx(1200 + usual / 2e6)
    assert study._limit("ne2k_pci") == study._limit("rtl8139") == pytest.approx(1200 + usual / 5e5)
    assert study._limit("container") == 1200
    # 10 x 16, 5 x 32, 2 x 64, 1 x 128 MiB of either kind; 256, 512 and 1024 MiB once, and none before it
    large = usual + 2 * 2 * (160 + 160 + 128 + 128) * mib + 2 * (256 + 512 + 1024) * mib
    whole = NicDegradation(False, NO_KVM, {"vm.largest": "1GiB"})
    assert whole._limit("virtio") == pytest.approx(1200 + large / 2e6)
    assert whole._limit("ne2k_pci") == pytest.approx(1200 + large / 5e5) and whole._limit("ne2k_pci") > 7200
    more = NicDegradation(False, NO_KVM, {"vm.largest": "1GiB", "vm.budget": "1GiB"})
    assert more._limit("ne2k_pci") > 2 * whole._limit("ne2k_pci"), "a larger budget takes longer"


COUNTS = {
    "card_interrupts": 40,
    "interrupts": 60,
    "softirqs": 80,
    "switches": 100,
    "own_switches": None,
    "frames": 44,
    "bytes": 4000,
}


def line(size: int, counts: dict[str, int | None] | None = None) -> str:
    return json.dumps({"bytes": size, "repeat": 10, "median": 1e-3, "errors": 0, "counts": counts or COUNTS})


def test_counts_are_for_each_message() -> None:
    text = "\n".join(['{"begin": 1}', *(line(size) for size in SIZES), '{"end": 1}'])
    values = {(value.metric, value.x): value.value for value in message_counts.inside(text)}
    assert values["count_card_interrupts", 1] == 2.0 and values["count_frames", 1024] == 2.2
    assert ("count_own_switches", 1) not in values, "unknown values are absent"
    shared = message_counts.inside(text, of_ranks={"bytes"}, of_both={"frames"})
    few = {(value.metric, value.x): value.value for value in shared if value.metric.startswith("count_")}
    assert few["count_frames", 1] == 1.1 and few["count_bytes", 1] == 200.0, "both ranks read one loopback"
    assert ("count_softirqs", 1) not in few, "the whole machine's are not the messages'"
    for bad in ("", line(1).replace('"errors": 0', '"errors": 1')):
        with pytest.raises(RunFailed):
            message_counts.inside(bad)


TRACE = """\
12@1.5:memory_region_ops_read cpu 0 mr 0x5 addr 0xfeb value 0x1 size 4 name 'e1000-mmio'
12@1.6:memory_region_ops_write cpu 0 mr 0x5 addr 0xfee000b0 value 0x0 size 4 name 'apic-msi'
12@1.7:virtio_queue_notify vdev 0x5 n 1 vq 0x7
12@1.8:virtio_notify vdev 0x5 vq 0x7
12@1.9:memory_region_ops_write cpu 0 mr 0x5 addr 0xfe value 0x0 size 2 name 'virtio-pci-notify-virtio-net'
"""


def test_trace_is_counted_by_card() -> None:
    assert card_events(TRACE) == {"accesses": 2, "kicks": 1, "notified": 1}


def test_queues_are_counted_where_qemu_serves_them(tmp_path: Path) -> None:
    """Absent elsewhere: none would be a claim."""
    machine = Machine("one", tmp_path, 1)
    machine.log.parent.mkdir(parents=True)
    machine.log.write_text(TRACE)
    shapes = {card.name: card.shape(1 << 20) for card in cards(4)}
    whole = ({"length": 0}, {"length": len(TRACE)})
    found = {name: set(message_counts._trace(shapes[name], machine, whole)) for name in ("virtio", "vhost", "e1000")}
    assert found["virtio"] == {"accesses", "kicks", "notified"}
    assert found["vhost"] == found["e1000"] == {"accesses"}


def test_a_process_is_read_as_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one: it reads, and its counters grow; KVM's are those of its directory, and absent without one."""
    import os

    machine = Machine("here", tmp_path, os.getpid())
    monkeypatch.setattr(machine_counters, "KVM_COUNTERS", tmp_path / "kvm")
    before = machine.read()
    assert set(before) == {"system_calls", "copied", "qemu_switches", "qemu_seconds"}
    Path("/proc/self/status").read_text()
    after = machine.read()
    assert after["system_calls"] > before["system_calls"] and after["copied"] > before["copied"]
    counters = tmp_path / "kvm" / f"{os.getpid()}-12"
    counters.mkdir(parents=True)
    (counters / "exits").write_text("7\n")
    assert machine.read()["kvm_exits"] == 7


def add(results: Results, combination: Combination, **values: float) -> None:
    run = Run(results.next_number(), 0, False, True, combination, 0.0, 1.0)
    run.values = [Value(name, value, "") for name, value in values.items()]
    results.add(run)


def test_report_has_events_beside_times_and_names_what_is_not_counted(tmp_path: Path) -> None:
    study = NicDegradation(False, NO_KVM)
    results = Results.create(tmp_path, study, 1)
    for nic in ("native", "virtio"):
        run = Run(results.next_number(), 0, False, True, nic_counts.combination(nic), 0.0, 1.0)
        text = "\n".join(line(size) for size in SIZES)
        run.values = message_counts.inside(text, of_ranks={"bytes"} if nic == "native" else None)
        run.values += [Value("count_copied", 2.5 * size, "", size) for size in SIZES if nic == "virtio"]
        results.add(run)
    tables = {table.title.partition(":")[0]: table for table in study.page(results).tables}
    events = tables["Where the time goes"]
    cells = {(row[0], row[1]): dict(zip(events.head, row, strict=True)) for row in events.rows}
    virtio = cells["VM nodes on two hosts, virtio", "64 KiB"]
    assert virtio["interrupts of the card"] == "2" and virtio["bytes through QEMU : sent"] == "2.5"
    assert virtio["exits"] == "-" and virtio["switches"] == "5"
    assert cells["native (loopback TCP)", "64 KiB"]["softirqs"] == "-", "the whole machine's are not the messages'"
    named = dict(tables["Events that are not counted here"].rows)
    assert "no KVM here" in named["exits of a guest to its hypervisor"]


def test_features_of_adapters_are_those_of_qemu_and_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    qemu = tmp_path / "qemu-system-x86_64"
    qemu.write_text("#!/bin/sh\necho 'name \"virtio-net-pci\", bus PCI'\necho 'name \"pcnet\", bus PCI'\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert not any(key.startswith("adapter") for key in requirements.unavailable_features([]))
    image = {"name": "default", "digest": "0", "built": 0.0, "kernel": "6", "packages": {}, "mpi": [], "bytes": 1}
    (tmp_path / "images" / "default").mkdir(parents=True)
    record = tmp_path / "images" / "default" / "image.json"
    record.write_text(json.dumps(image))
    lacks = requirements.unavailable_features([])
    assert "wherry image build" in lacks["adapter pcnet"] and "QEMU has no e1000" in lacks["adapter e1000"]
    assert "adapter virtio" not in lacks
    record.write_text(json.dumps(image | {"adapters": ["virtio", "pcnet"]}))
    assert "adapter pcnet" not in requirements.unavailable_features([])


def test_vhost_needs_kvm_and_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "_VHOST_DEVICE", tmp_path / "vhost-net")
    assert "needs KVM" in requirements.no_vhost(True)
    assert "modprobe vhost_net" in requirements.no_vhost(False)
    (tmp_path / "vhost-net").touch()
    assert requirements.no_vhost(False) == ""
