"""A forecast of retrieval quality, from statistics alone.

The objective of the paper does not rank codes by how well they retrieve. This does: rows that were
not learned from are simulated from the statistics, hashed, and looked up among the label groups.
All codes are judged on the same simulated rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sadih_dask.learning.encoders import group_scores_to_codes
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.problem import Problem
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.histograms import group_histograms
from sadih_dask.retrieval.metrics import average_precision
from sadih_dask.types import EncoderKind, Floats, Ints

SIMULATED_ROWS = 5000


@dataclass(frozen=True, eq=False)
class Forecast:
    """Expected mean average precision of codes, database rows carrying their learned codes.

    Every set of codes is judged once: solves with different weights often come to the same.
    """

    problem: Problem
    groups: LabelGroups
    encoder: EncoderKind
    rng: np.random.Generator
    _known: dict[bytes, float] = field(default_factory=dict, init=False)

    @cached_property
    def _rows(self) -> tuple[Floats, Ints]:
        return self.problem.regression.simulate(max(SIMULATED_ROWS, len(self.groups)), self.rng)

    def with_encoder(self, encoder: EncoderKind) -> Forecast:
        """The forecast for another encoder, on the same simulated rows."""
        other = replace(self, encoder=encoder)
        other.__dict__["_rows"] = self._rows
        return other

    def __call__(self, codes: Floats) -> float:
        """Forecast for the codes of the label groups (l, g): between 0 and 1, higher is better."""
        key = codes.tobytes()
        if key not in self._known:
            self._known[key] = self._forecast(codes)
        return self._known[key]

    def _forecast(self, codes: Floats) -> float:
        scores, group = self._rows
        share = self.problem.regression.share
        hashed = group_scores_to_codes(self.encoder, scores + share, codes)
        asked, counts = (self.groups, group), self.problem.N.astype(np.int64)
        histograms = group_histograms(
            pack(hashed), asked, pack(codes.T), self.groups, counts, self.problem.l
        )
        return float(np.average(average_precision(histograms), weights=share[group]))
