import pytest

from wherry.model.cpu_quota import cpu_quota


@pytest.mark.parametrize(("cpus", "speed", "quota"), [(1, 1, 1.1), (4, 1, 4.4), (1, 0.5, 0.5), (2, 0.25, 0.5)])
def test_a_slower_host_is_exact_and_others_have_head_room(cpus: float, speed: float, quota: float) -> None:
    assert cpu_quota(cpus, speed) == pytest.approx(quota)
