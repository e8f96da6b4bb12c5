"""Damage to one file: a flipped bit, a truncation, or its deletion; and its repair."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["flip", "truncate", "delete"]
KINDS: tuple[Kind, ...] = ("flip", "flip", "flip", "truncate", "delete")
"""Flips more often than the others: they have the most places to happen."""


@dataclass(frozen=True)
class Damage:
    """What is done to a file; the place is a bit of it, or the length that is left."""

    kind: Kind
    file: Path
    place: int = 0

    @classmethod
    def draw(cls, file: Path, rng: random.Random) -> Damage:
        """Damage of a random kind at a random place."""
        kind = rng.choice(KINDS)
        size = file.stat().st_size
        if kind == "flip" and size:
            return cls(kind, file, rng.randrange(8 * size))
        if kind == "truncate" and size:
            return cls(kind, file, rng.randrange(size))
        return cls("delete", file)

    def __str__(self) -> str:
        place = {"flip": f" bit {self.place}", "truncate": f" to {self.place}", "delete": ""}
        return f"{self.kind}{place[self.kind]} of {'/'.join(self.file.parts[-3:])}"

    @contextmanager
    def done(self) -> Iterator[None]:
        """Do it for as long as the block lasts."""
        intact = self.file.read_bytes()
        # Unlinked first: ext4 flushes a file that is truncated and written again to the disk.
        self.file.unlink()
        if self.kind == "flip":
            changed = bytearray(intact)
            changed[self.place // 8] ^= 1 << self.place % 8
            self.file.write_bytes(changed)
        elif self.kind == "truncate":
            self.file.write_bytes(intact[: self.place])
        try:
            yield
        finally:
            self.file.unlink(missing_ok=True)
            self.file.write_bytes(intact)
