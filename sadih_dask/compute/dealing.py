"""Which fold of a cross-validation every row is in: by its number and a key, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sadih_dask.arrays import Ints
from sadih_dask.errors import InputError


@dataclass(frozen=True)
class Folds:
    """Which fold each row is in.

    Rows are dealt out in runs of ``n_folds`` consecutive ones, a run to all folds in random order.
    So folds differ by one row at most, and rows that are sorted by class come in equal parts.
    ``key`` is 64 random bits.
    """

    n_rows: int
    n_folds: int
    key: int

    def __post_init__(self) -> None:
        if not 2 <= self.n_folds <= self.n_rows:
            raise InputError(
                f"n_samples={self.n_rows} rows cannot make n_folds={self.n_folds} folds; take two "
                "folds or more, and as many rows or more"
            )

    def of_rows(self, rows: Ints) -> Ints:
        """Fold of each of the rows."""
        runs, place = np.divmod(rows, self.n_folds)
        return np.asarray(self._deal(runs)[np.arange(len(rows)), place])

    def of_range(self, first: int, last: int) -> Ints:
        """Fold of each row from ``first`` to before ``last``."""
        run = first // self.n_folds
        dealt = self._deal(np.arange(run, -(-last // self.n_folds)))
        return dealt.reshape(-1)[first - run * self.n_folds : last - run * self.n_folds]

    def sample(self, size: int, rng: np.random.Generator) -> Ints:
        """Ascending numbers of ``size`` rows of every fold, or of all if it has fewer."""
        picked = [self._sample_of(fold, size, rng) for fold in range(self.n_folds)]
        return np.sort(np.concatenate(picked))

    def _sample_of(self, fold: int, size: int, rng: np.random.Generator) -> Ints:
        """A fold has one row of each run; the last run may be cut off before it."""
        n_runs = -(-self.n_rows // self.n_folds)
        held = n_runs if self._place(np.array([n_runs - 1]), fold)[0] < self.n_rows else n_runs - 1
        return self._place(rng.choice(held, min(size, held), replace=False), fold)

    def _place(self, runs: Ints, fold: int) -> Ints:
        """Row of the fold in each run."""
        return runs * self.n_folds + np.argmax(self._deal(runs) == fold, axis=1)

    def _deal(self, runs: Ints) -> Ints:
        """Folds of the rows of each run, (runs, n_folds): the order of a hash of each place."""
        places = runs[:, None] * self.n_folds + np.arange(self.n_folds)
        return np.argsort(_scramble(places.astype(np.uint64), self.key), axis=1, kind="stable")


def _scramble(numbers: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Hash of 64 bits: the output function of SplitMix64, whose state is the number."""
    z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
