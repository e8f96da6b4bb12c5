"""The quality gate."""

import pytest

from sadih_dask.runs.run import judge
from sadih_dask.runs.settings import Gate


def record(value: float | None, protocol: str = "fresh") -> dict[str, object]:
    return {"metrics": {"n_bits": 8, "lengths": {"8": {protocol: {"MAP": value}}}}}


@pytest.mark.parametrize(
    ("gate", "found", "latest", "passed"),
    [
        (Gate(), 0.1, 0.9, True),
        (Gate(map_min=0.5), 0.5, None, True),
        (Gate(map_min=0.5), 0.4999, None, False),
        (Gate(map_drop_max=0.1), 0.8, None, True),
        (Gate(map_drop_max=0.1), 0.8, 0.85, True),
        (Gate(map_drop_max=0.1), 0.7, 0.85, False),
        (Gate(map_drop_max=0.1), 0.9, 0.2, True),
        (Gate(map_min=0.5, map_drop_max=0.1), 0.4, 0.85, False),
    ],
)
def test_judgement(gate: Gate, found: float, latest: float | None, passed: bool) -> None:
    reasons = judge(gate, record(found), None if latest is None else record(latest))
    assert (not reasons) is passed


def test_reasons_name_the_numbers_and_the_setting() -> None:
    first, second = judge(Gate(map_min=0.5, map_drop_max=0.1), record(0.4), record(0.85))
    assert "0.4000" in first
    assert "gate.map_min asks for 0.5" in first
    assert "fell by 0.4500, from 0.8500 to 0.4000" in second


def test_the_protocol_decides_which_number_counts() -> None:
    gate = Gate(map_min=0.5, protocol="learned")
    assert judge(gate, record(0.4, "learned"), None)


def test_a_number_that_is_not_known_does_not_pass() -> None:
    assert judge(Gate(map_min=0.5), record(None), None)
