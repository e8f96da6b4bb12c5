"""Fast supervised hashing with decision trees (Lin et al., 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from sadih_dask.learning.objective import Trace
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.similarity import group_similarity
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import Learned
from sadih_dask.model.methods.sampled import SampleHasher
from sadih_dask.model.scanning import Scanned
from sadih_dask.retrieval.trees import BoostedTrees
from sadih_dask.types import Array, Floats, Ints

DEPTH = 4
"""Of trees, as published."""
LOOKED_AT = 0.1
"""Part of the features that a node chooses from, drawn anew for each ("LazyBoost")."""
LEARNING_RATE = 0.3
SWEEPS = 3
"""Turns of groups and rows at most."""


@dataclass(eq=False, repr=False)
class FastH(SampleHasher):
    """Bits are inferred from labels one by one, each then learned by boosted decision trees.

    Bit r of the sampled rows maximises z^T R z, R = r S - H H^T, z in {-1, 1}: S is 1 where rows
    share a label and -1 elsewhere, H (n, r - 1) the bits so far. ``max_iter`` trees of depth 4 are
    boosted to tell rows with 1 from those with -1, and what they say becomes the bit of the sampled
    rows: what trees got wrong the next bits can mend. Bits do not depend on how many follow.

    Deviations: z starts at the signs of the first eigenvector of R; then whole label groups take
    one sign, and rows one after the other take theirs, as long as the objective rises, where
    published blocks of similar rows are solved by graph cuts. Trees are boosted by the logistic
    loss with a learning rate of .3, on features in 256 bins, instead of by AdaBoost: on 2,560 rows
    of 512 GIST features they tell .67 of other rows rightly, those of AdaBoost .64. All of it of
    sampled rows.
    """

    method: ClassVar = "fasth"
    max_iter: int = 100

    def _solve(self, scanned: Scanned) -> Learned:
        sample, rng = scanned.statistics.sample, generator(scanned.seed, "trees")
        rows, similar = sample.features, Similar.of(scanned.statistics)
        H, grown = np.empty((len(rows), 0)), []
        for _ in range(self.n_bits):
            z = similar.raise_objective(similar.spectral_bit(H, rng), H)
            grown.append(boost(rows, z, self.max_iter, int(rng.integers(2**31))))
            trees = BoostedTrees(None, *(part[None] for part in grown[-1]))
            H = np.column_stack([H, np.where(trees.scores(rows) > 0.0, 1.0, -1.0)])
        parts = (np.stack(part) for part in zip(*grown, strict=True))
        return Learned(BoostedTrees(scanned.anchor_map, *parts), trace=Trace((), 0, self.max_iter))


@dataclass(frozen=True, eq=False)
class Similar:
    """Similarities S (g, g) of the label groups of sampled rows, and the group of each row."""

    S: Floats
    group: Ints

    @classmethod
    def of(cls, statistics: Statistics) -> Similar:
        """Of the rows that a scan has kept."""
        present, group = np.unique(statistics.sample.group, return_inverse=True)
        similarity = group_similarity(statistics.groups.take(present), "shared-label")
        return cls(similarity.apply(np.eye(len(present))), group)

    def spectral_bit(self, H: Floats, rng: np.random.Generator) -> Floats:
        """Signs of the first eigenvector of R."""
        n, r = H.shape[0], H.shape[1] + 1

        def product(v: Floats) -> Floats:
            sums = np.bincount(self.group, v.ravel(), len(self.S))
            return np.asarray(r * (self.S @ sums)[self.group] - H @ (H.T @ v.ravel()))

        start = rng.standard_normal(n)
        if n > 2:  # else there is nothing to iterate on
            find: Any = eigsh  # stubs know no matrix that is a function
            R = LinearOperator((n, n), matvec=product, dtype=np.float64)
            start = find(R, k=1, which="LA", v0=start, tol=1e-3)[1][:, 0]
        return np.where(start >= 0.0, 1.0, -1.0)

    def raise_objective(self, z: Floats, H: Floats) -> Floats:
        """Let groups, then rows, take the sign that raises z^T R z, until none does."""
        r, S, group = H.shape[1] + 1, self.S, self.group
        members = [np.flatnonzero(group == g) for g in range(len(S))]
        z, sums, Hz = z.copy(), np.bincount(group, z, len(S)), H.T @ z
        for _ in range(SWEEPS):
            before = z.copy()
            for g, rows in enumerate(members):
                Hg, mine = H[rows], z[rows]
                outside = r * (S[g] @ sums - S[g, g] * sums[g]) - Hg @ (Hz - Hg.T @ mine)

                def value(c: Floats, g: int = g, Hg: Floats = Hg, f: Floats = outside) -> float:
                    within = r * S[g, g] * c.sum() ** 2 - np.square(Hg.T @ c).sum()
                    return float(within + 2.0 * c @ f)

                best = max((mine, np.ones(len(rows)), -np.ones(len(rows))), key=value)
                z[rows], sums[g], Hz = best, best.sum(), Hz + Hg.T @ (best - mine)
            field = S @ sums
            for i, g in enumerate(group):
                pull = r * field[g] - H[i] @ Hz - z[i]  # R has 1 on its diagonal
                if pull * z[i] < 0.0:
                    z[i] = -z[i]
                    field += 2.0 * z[i] * S[g]
                    Hz += 2.0 * z[i] * H[i]
            sums = np.bincount(group, z, len(S))
            if np.array_equal(z, before):
                break
        return z


def boost(rows: Array, z: Floats, n_trees: int, seed: int) -> tuple[Any, ...]:
    """Trees that tell rows with z = 1 from those with -1, as `BoostedTrees` has those of a bit."""
    feature = np.zeros((n_trees, 2**DEPTH - 1), np.int64)
    threshold, vote = np.full(feature.shape, np.inf), np.zeros((n_trees, 2**DEPTH))
    if abs(z.sum()) == len(z):
        vote[0] = z[0]
        return feature, threshold, vote
    grown = HistGradientBoostingClassifier(
        learning_rate=LEARNING_RATE,
        max_iter=n_trees,
        max_depth=DEPTH,
        max_leaf_nodes=None,
        min_samples_leaf=min(20, 1 + len(z) // 20),
        max_features=LOOKED_AT,
        early_stopping=False,
        random_state=seed,
    )
    with threadpool_limits(1, "openmp"):  # threads that wait for each other only cost time here
        grown.fit(rows, z)
    # Nowhere else does scikit-learn tell the trees; a test compares with its decision function.
    vote[0] = grown._baseline_prediction
    for k, (tree,) in enumerate(grown._predictors):
        nodes, at = tree.nodes, np.zeros(2 ** (DEPTH + 1) - 1, np.int64)
        for place in range(len(feature[k])):  # a leaf on the way is its own child
            node = nodes[at[place]]
            at[2 * place + 1 : 2 * place + 3] = at[place]
            if not node["is_leaf"]:
                feature[k, place], threshold[k, place] = node["feature_idx"], node["num_threshold"]
                at[2 * place + 1 : 2 * place + 3] = node["left"], node["right"]
        vote[k] += nodes["value"][at[len(feature[k]) :]]
    return feature, threshold, vote
