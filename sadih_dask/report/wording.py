"""Numbers as people read them."""

from __future__ import annotations

import math


def count(number: int) -> str:
    """Write 1,797."""
    return f"{number:,}"


def score(number: float | None) -> str:
    """Write a share with four digits, or a dash where there is none."""
    return "\N{EN DASH}" if number is None or not math.isfinite(number) else f"{number:.4f}"


def duration(seconds: float) -> str:
    """Write 2.3 s, 4 min 05 s or 3 h 12 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(n_bytes: int) -> str:
    """Write 12 bytes, 3.4 KiB, 5.6 GiB."""
    if n_bytes < 1024:
        return f"{n_bytes} bytes"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(n_bytes * 1.00005, 1024)), len(units))
    return f"{n_bytes / 1024**power:.1f} {units[power - 1]}"


def value(thing: object) -> str:
    """Write any value of a parameter or fact."""
    if isinstance(thing, bool) or thing is None:
        return str(thing)
    if isinstance(thing, int):
        return count(thing)
    if isinstance(thing, float):
        return f"{thing:.6g}"
    return str(thing)
