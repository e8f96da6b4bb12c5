"""Two runs side by side."""

import json

from sadih_dask.runs.record import Difference, compare


def record(n_bits: int, value: float, **settings: object) -> dict[str, object]:
    return {
        "settings": {"model": {"n_bits": n_bits, **settings}, "run": {"keep": 5}},
        "fingerprints": {"model": f"m{n_bits}", "database": "d"},
        "versions": {"numpy": "2"},
        "metrics": {"n_bits": n_bits, "lengths": {str(n_bits): {"learned": {"MAP": value}}}},
    }


def test_only_what_differs_is_named() -> None:
    found = compare(record(8, 0.5), record(8, 0.75, alpha=1))
    assert found.settings == (Difference("model.alpha", "absent", 1),)
    assert found.data == found.versions == ()
    (metric,) = found.metrics
    assert metric == Difference("8.learned.MAP", 0.5, 0.75)
    assert metric.change == 0.25


def test_lengths_of_one_run_only() -> None:
    found = compare(record(8, 0.5), record(16, 0.75))
    assert [(d.what, d.first, d.second) for d in found.metrics] == [
        ("8.learned.MAP", 0.5, "absent"),
        ("16.learned.MAP", "absent", 0.75),
    ]
    assert [d.change for d in found.metrics] == [None, None]
    assert found.data == (Difference("model", "m8", "m16"),)


def test_runs_without_metrics() -> None:
    found = compare({"settings": {}}, record(8, 0.5))
    assert [d.first for d in found.metrics] == ["absent"]
    json.dumps(found.to_dict())
