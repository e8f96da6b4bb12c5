"""Two runs side by side: what changed in settings, data, work and quality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in both runs."""

    what: str
    first: Any
    second: Any

    @property
    def change(self) -> float | None:
        """The second less the first, where both are numbers."""
        if _is_number(self.first) and _is_number(self.second):
            return float(self.second) - float(self.first)
        return None


@dataclass(frozen=True)
class Comparison:
    """What changed from one run to another, by kind."""

    settings: tuple[Difference, ...]
    data: tuple[Difference, ...]
    metrics: tuple[Difference, ...]
    versions: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            kind: [{"what": d.what, "first": d.first, "second": d.second} for d in found]
            for kind, found in vars(self).items()
        }


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Compare the records of two runs; metrics are all there, the rest where it differs."""

    def differing(name: str) -> tuple[Difference, ...]:
        pairs = _pairs(first.get(name) or {}, second.get(name) or {})
        return tuple(pair for pair in pairs if pair.first != pair.second)

    before = (first.get("metrics") or {}).get("lengths", {})
    after = (second.get("metrics") or {}).get("lengths", {})
    sizes = (Difference(name, first.get(name), second.get(name)) for name in ("rows", "queries"))
    data = [size for size in sizes if size.first != size.second]
    return Comparison(
        differing("settings"),
        (*data, *differing("fingerprints")),
        tuple(_pairs(before, after)),
        differing("versions"),
    )


def _pairs(first: Any, second: Any, at: str = "") -> Iterator[Difference]:
    """Leaves of two trees, by their paths."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in dict.fromkeys((*first, *second)):
            path = f"{at}.{name}" if at else str(name)
            yield from _pairs(first.get(name, ABSENT), second.get(name, ABSENT), path)
    elif isinstance(first, Mapping):
        for name, value in first.items():
            yield from _pairs(value, ABSENT, f"{at}.{name}" if at else str(name))
    elif isinstance(second, Mapping):
        for name, value in second.items():
            yield from _pairs(ABSENT, value, f"{at}.{name}" if at else str(name))
    else:
        yield Difference(at, first, second)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
