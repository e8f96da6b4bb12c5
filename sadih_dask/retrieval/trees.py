"""Hash functions of decision trees: bits are signs of weighted votes.

A comparison is exact and the votes of a row are added in one order, so that the bits of a row
follow from its features alone, as those of affine maps do (`learning.signs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.features import AnchorMap
from sadih_dask.types import Array, Floats, Ints


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Trees of one depth D, T for each of l bits; the children of node k are 2 k + 1 and 2 k + 2.

    feature    (l, T, 2^D - 1)  what a node looks at
    threshold  (l, T, 2^D - 1)  rows up to it go left, others right
    vote       (l, T, 2^D)      what a leaf adds to the score of the bit
    """

    anchor_map: AnchorMap | None
    feature: Ints
    threshold: Floats
    vote: Floats

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        return len(self.feature)

    def __repr__(self) -> str:
        return f"<BoostedTrees: {self.feature.shape[1]} for each of {self.n_bits} bits>"

    def scores(self, features: Array) -> Floats:
        """Votes (n, l), whose signs are the bits."""
        from sadih_dask.retrieval.kernels import vote_kernel  # its compiler is large

        mapped = features if self.anchor_map is None else self.anchor_map(features)
        found = np.zeros((len(mapped), self.n_bits))
        vote_kernel(np.ascontiguousarray(mapped), self.feature, self.threshold, self.vote, found)
        return found

    def signs(self, features: Array) -> tuple[Array, Ints]:
        """Bits (n, l), True where votes are positive, and the rows that are not finite."""
        with np.errstate(invalid="ignore"):
            return self.scores(features) > 0.0, np.flatnonzero(~np.isfinite(features).all(axis=1))


AnyFunction: TypeAlias = HashFunction | BoostedTrees
"""What gives rows their bits."""
