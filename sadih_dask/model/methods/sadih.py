"""SADIH: semantic-aware discrete hashing (AAAI 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np

from sadih_dask.compute.process import one_blas_thread
from sadih_dask.learning.encoders import BY_REGRESSION, HashFunction
from sadih_dask.model.estimator import Hasher, Learned
from sadih_dask.model.scanning import Scanned, known_scan
from sadih_dask.model.solve import learn
from sadih_dask.retrieval.codes import pack, unpack
from sadih_dask.retrieval.trial import OPENNESS_GRID, Choice
from sadih_dask.types import Array, EncoderKind, Loss, SimilarityKind, SolverKind, StartKind


@dataclass(eq=False, repr=False)
class SADIH(Hasher):
    """Semantic-aware discrete hashing: binary codes whose Hamming distance follows labels.

    Learning reads the data once, into statistics whose size does not depend on the number of rows;
    everything after that works on the statistics. Rows can be added (`partial_fit`) and
    taken out again (`forget`) without a second look at the rest.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes, up to 2048; they are packed into ``ceil(n_bits / 8)`` bytes, and the
        spare bits of the last byte are zero.
    loss : {"l21", "l1"}, default="l21"
        "l21" is SADIH (discrete coordinate descent), "l1" is SADIH-L1 (one sign).
    solver : {"exact", "paper"}, default="exact"
        "exact" minimises in every step, so the objective never rises (with the l21 loss); "paper"
        runs the equations as printed.
    start : {"separated", "nested", "random"}, default="separated"
        Codes to start from: well separated and easy to predict from the features; "nested" ones,
        whose first 16, 32, 64, ... bits are that as well and serve as codes of that length; or the
        paper's random ones.
    encoder : {"auto", "posterior", "discriminant", "ridge", "orthogonal", "lemma"}, default="auto"
        Hash function for rows without labels: a vote of the label groups' codes weighted by how
        likely each group is, which ridge regression or linear discriminants say; ridge regression
        to the learned codes; or the paper's orthogonal encoder by exact descent or by its Lemma 1.
        "auto" is what does better of the first two, posterior where rows have several labels, and
        ridge where label sets are so many that they hardly ever come twice.
    anchors : int, array or None, default=1000
        Number of radial basis functions about training rows that are drawn, or the rows they are
        about, (anchors, features); None hashes the features themselves.
    sigma : float or None, default=None
        Kernel width of the anchor features; by default set from the mean distance.
    alpha, beta, gamma : float
        Weights of reconstruction, encoding and regularisation in the objective.
    ridge : float or "auto"
        Ridge penalty of the encoder per row. Here and below "auto" is what does best on rows that
        are left out: up to 2,048, sampled during the scan and taken out of the statistics again.
    sharpness : float or "auto"
        Power that the weights of the label groups are raised to before they vote. "posterior": 1
        lets all have their say, from about 16 on the likeliest decides alone; "discriminant": about
        1, and less the fewer rows there are. A number goes with "posterior" unless the other is
        asked for.
    openness : float from 0 to 1, or "auto"
        From "the classes I know" to "whatever comes": how much a row's code owes to where it lies
        among all rows, whichever its class, beside the codes of the known classes. "auto" leaves
        out classes as well as rows, and gives up .005 of mean average precision at most for known
        classes. Not for the paper's encoders.
    similarity : {"shared-label", "cosine"}, default="shared-label"
        Rows are similar when they share a label, or by the cosine of their label sets.
    max_iter, tol : int, float
        Iterations of the alternation at most, and the relative decrease that ends it.
    n_init : int or "auto"
        Starts to try; they cost no further pass over the data. "auto" is 8, and fewer where there
        are more than 256 label groups.
    block_rows : int
        Rows whose statistics are computed at a time. In large collections anchors are drawn from
        some such blocks, so another size draws others.
    random_state : int, Generator, RandomState or None, default=0
        What anchors and starts are drawn from.

    """

    method: ClassVar = "sadih"

    loss: Loss = "l21"
    solver: SolverKind = "exact"
    start: StartKind = "separated"
    encoder: EncoderKind | Literal["auto"] = "auto"
    anchors: int | Array | None = 1000
    alpha: float = 0.01
    beta: float = 0.01
    gamma: float = 1e-3
    ridge: float | Literal["auto"] = "auto"
    sharpness: float | Literal["auto"] = "auto"
    openness: float | Literal["auto"] = "auto"
    similarity: SimilarityKind = "shared-label"
    max_iter: int = 10
    tol: float = 1e-5
    n_init: int | Literal["auto"] = "auto"

    def _solve(self, scanned: Scanned) -> Learned:
        solution, function = learn(
            self, scanned.statistics, scanned.anchor_map, scanned.seed, scanned.validation
        )
        return Learned(function, pack(solution.state.B.T), solution.trace)

    @property
    def encoder_(self) -> EncoderKind:
        """The hash function that the model has: what was asked for, or what "auto" has chosen."""
        if self.encoder != "auto":
            return self.encoder
        function = cast(HashFunction, self.hash_function_)  # which has no trees
        voting: EncoderKind = "discriminant" if function.logarithmic else "posterior"
        return "ridge" if function.mixture is None else voting

    def openness_curve(self) -> list[Choice]:
        """What known and unseen classes find at each openness, on the rows that "auto" asks.

        The same folds say it again, from the statistics; no row is read. Empty where no row can be
        left out, and for the paper's encoders.
        """
        if self.statistics_ is None or self.encoder_ not in BY_REGRESSION:
            return []
        function, given = cast(HashFunction, self.hash_function_), self.openness
        validation = known_scan(self).validation
        ridge = validation.penalty if isinstance(self.ridge, str) else self.ridge
        trial = validation.trial(ridge, self.encoder_, self.start == "nested")
        if trial is None:
            return []
        codes = np.where(unpack(self.label_codes_, function.n_bits).T, 1.0, -1.0)
        grid = {*OPENNESS_GRID, *(() if isinstance(given, str) else (given,))}
        with one_blas_thread():
            return trial.attempt(codes, [(self.encoder_, function.sharpness)], sorted(grid))
