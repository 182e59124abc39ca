from pathlib import Path

import pytest

from wherry.service import doctor
from wherry.service.doctor import Health


@pytest.mark.parametrize(
    ("flags", "driver", "health"),
    [
        ("fpu hypervisor lahf_lm", "haltpoll", Health.OK),
        ("fpu hypervisor lahf_lm", "none", Health.LIMITED),
        ("fpu hypervisor lahf_lm", None, Health.LIMITED),
        ("fpu lahf_lm", "intel_idle", Health.OK),
    ],
)
def test_a_virtual_machine_whose_processors_halt_at_once_is_told(
    flags: str, driver: str | None, health: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    if driver:
        (tmp_path / "current_driver").write_text(f"{driver}\n")
    monkeypatch.setattr(doctor, "_CPUIDLE", tmp_path)
    monkeypatch.setattr(doctor, "_CPUINFO", tmp_path / "cpuinfo")
    (finding,) = doctor._idle_processors()
    assert finding.health == health
    assert finding.health == Health.OK or "haltpoll" in finding.remedy
