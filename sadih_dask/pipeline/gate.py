"""The quality gate: whether a model may become the latest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sadih_dask.config.settings import Gate
from sadih_dask.runs.record import mean_average_precision


@dataclass(frozen=True)
class Verdict:
    """Whether a model passed, and if not, why."""

    passed: bool
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"passed": self.passed, "reasons": list(self.reasons)}


def judge(gate: Gate, record: Mapping[str, Any], latest: Mapping[str, Any] | None) -> Verdict:
    """Compare the mean average precision of a run with what is asked, and with the latest run's."""
    if not gate.is_set:
        return Verdict(True)
    found = mean_average_precision(record, gate.protocol)
    if found is None:
        return Verdict(False, ("no query has a relevant row, so there is no mean to judge by",))
    reasons = []
    if gate.map_min is not None and not found >= gate.map_min:
        reasons.append(
            f"mean average precision ({gate.protocol}) is {found:.4f}, and gate.map_min asks for "
            f"{gate.map_min}"
        )
    before = None if latest is None else mean_average_precision(latest, gate.protocol)
    allowed = gate.map_drop_max
    if allowed is not None and before is not None and not before - found <= allowed:
        reasons.append(
            f"mean average precision ({gate.protocol}) fell by {before - found:.4f}, from "
            f"{before:.4f} to {found:.4f}, and gate.map_drop_max allows {allowed}"
        )
    return Verdict(not reasons, tuple(reasons))
