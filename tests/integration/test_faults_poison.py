"""A bad block of rows on a cluster; the long version is in tests/faults/poison.py."""

from pathlib import Path

from tests.faults.poison import poison


def test_a_bad_row_is_named_once_and_nothing_is_lost(tmp_path: Path) -> None:
    found = poison(tmp_path, trials=4, seed=1, n_rows=20_000, chunk=2048)
    assert found.ok, found.failures[:3]
    assert "at most 1" in found.figures["runs of any task"]
