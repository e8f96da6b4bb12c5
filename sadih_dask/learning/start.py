"""Starting codes: the alternation moves codes little, so where it starts decides much.

Good codes for retrieval are far apart for dissimilar groups *and* easy to predict from the
features. Both can be read off the statistics (`problem.GroupRegression`): ridge regression from
features to a bit with group signs b explains b^T K b of its variance.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg as la

from sadih_dask.learning.problem import MAX_GROUPS, Problem
from sadih_dask.learning.updates import polar
from sadih_dask.types import Floats, StartKind

TEMPERATURE = 0.8
"""tau / sqrt(l): how quickly a pair of codes counts as far enough apart."""
PREDICTABILITY = (0.4, 0.2, 0.8)
"""Weights of the explained variance against the separation, taken in turn by restarts."""
MAX_SWEEPS = 20
SHORTEST = 16
"""Bits of the shortest prefix of a nested code that is one by itself; they double from there."""
FEW_GROUPS = 256
"""Groups up to which codes are separated one by one."""
TOGETHER = 32
DRAWS = 20
"""Draws of a free code for each number of bits that are flipped."""
SPECTRUM = 1e-6
"""What is below this fraction of the largest in the embedding is rounding error."""
ROTATIONS = 30
"""Iterations that align the spectral embedding with the corners of the cube."""


def start_codes(
    problem: Problem, kind: StartKind, restart: int, rng: np.random.Generator
) -> Floats:
    """Codes that a restart begins with.

    Separated codes look at every pair of groups, so where there are many they are random, or, where
    rows carry several labels, come from the spectrum; that is what the first restart tries there
    anyway.
    """
    if kind == "random":
        return random_codes(problem, rng)
    few = len(problem.N) <= MAX_GROUPS
    if not problem.single_label and (restart == 0 or not few):
        return spectral_codes(problem, rng)
    if few:
        eta = PREDICTABILITY[restart % len(PREDICTABILITY)]
        B = separated_codes(problem, rng, eta, nested=kind == "nested")
    else:  # random codes of so many classes are nearly as far apart as any
        B = np.where(rng.random((problem.l, len(problem.N))) < 0.5, 1.0, -1.0)
    return distinct(B, rng) if problem.single_label else B


def random_codes(problem: Problem, rng: np.random.Generator) -> Floats:
    """B = sgn(W^T Q) for a standard normal W: the start that the paper implies."""
    W = rng.standard_normal((problem.Gt.shape[1], problem.l))
    V = np.ascontiguousarray((problem.Gt @ W).T)
    return np.where(problem.S.apply(V * problem.N) >= 0.0, 1.0, -1.0)


def spectral_codes(problem: Problem, rng: np.random.Generator) -> Floats:
    """Codes along the directions in which similarity can best be predicted from the features.

    The ridge regression of S on the features is T^T T S, T = C^-1 X_G, C C^T = X X^T + ridge n I.
    Its leading right singular vectors embed the label groups; a rotation (as in ITQ) turns the
    embedding into bits. Two steps of subspace iteration: four applications of S to l + 8 rows.
    """
    l, root = problem.l, np.sqrt(problem.N)  # noqa: E741
    width = min(l + 8, len(problem.XXt), len(problem.N))
    Z = np.linalg.qr(rng.standard_normal((len(problem.N), width))).Q.T
    for _ in range(2):
        predicted = problem.whiten(problem.S.apply(Z * root) @ problem.XG.T)
        basis = np.linalg.qr(predicted.T).Q.T
        Z = problem.S.apply(problem.whiten(basis, transposed=True) @ problem.XG) * root
        _, values, Z = la.svd(Z, full_matrices=False, check_finite=False)
    k = max(1, min(l, int(np.sum(values > SPECTRUM * values[0]))))
    E = (values[:k, None] * Z[:k]) / root
    # Random codes, not a random rotation: singular vectors change sign at a rounding error, and
    # what follows from codes does not depend on their signs. A group that shares a label with all
    # others has no place in the embedding; there the random bits stay.
    B = np.where(rng.random((l, len(problem.N))) < 0.5, 1.0, -1.0)
    for _ in range(ROTATIONS):
        value = polar((B * problem.N) @ E.T) @ E
        settled = np.abs(value) > SPECTRUM * np.abs(value).max()
        B = np.where(settled, np.sign(value), B)
    return B


def separated_codes(
    problem: Problem,
    rng: np.random.Generator,
    eta: float = PREDICTABILITY[0],
    *,
    nested: bool = False,
) -> Floats:
    """Codes that are far apart where groups are dissimilar, and predictable from the features.

    Flips single bits of random codes, group by group and the best first, while that lowers

        sum_{i != j} w_ij exp(-s_ij b_i^T b_j / tau) - eta sum_k b_k^T K b_k,

    w_ij = N_i N_j |s_ij| normalised to sum to 1. The exponential makes the closest wrong pairs
    count most; they are what costs precision. O(g l) a flip. Many groups go `TOGETHER`, each as if
    the others stayed. Where codes are to be ``nested``, the first bits are found as if there were
    no others, and stay while those behind them are found.
    """
    g = len(problem.N)
    S = problem.dense_S
    weight = np.outer(problem.N, problem.N) * np.abs(S)
    np.fill_diagonal(weight, 0.0)
    weight /= weight.sum() or 1.0  # all zero when every pair is neither similar nor dissimilar
    side = np.sign(S)
    K = problem.regression.predictability
    K = K - np.diag(np.diagonal(K))
    B = np.where(rng.random((g, problem.l)) < 0.5, 1.0, -1.0)
    first = 0
    for last in prefixes(problem.l) if nested else [problem.l]:
        _separate(B[:, :last], first, weight, side, eta * K, rng)
        first = last
    return np.ascontiguousarray(B.T)


def prefixes(l: int) -> list[int]:  # noqa: E741
    """Lengths at which the first bits of a nested code of l bits are one by themselves, and l.

    >>> prefixes(100)
    [16, 32, 64, 100]
    """
    return [SHORTEST << k for k in range(l.bit_length()) if SHORTEST << k < l] + [l]


def _separate(
    B: Floats, first: int, weight: Floats, side: Floats, K: Floats, rng: np.random.Generator
) -> None:
    """Flip bits of the codes (g, l) from the bit ``first`` on, in place; as `separated_codes`."""
    g, l = B.shape  # noqa: E741
    tau = TEMPERATURE * np.sqrt(l)
    grow, turn = np.cosh(2.0 / tau) - 1.0, np.sinh(2.0 / tau)
    together = TOGETHER if g > FEW_GROUPS else 1
    free = B[:, first:]
    for _ in range(MAX_SWEEPS):
        flips = 0
        order = rng.permutation(g)
        for start in range(0, g, together):
            i = order[start : start + together]
            pull = 4.0 * (K[i] @ free)
            for _ in range(l):
                near = weight[i] * np.exp(side[i] * (B[i] @ B.T) / -tau)
                push = 2.0 * turn * ((side[i] * near) @ free)
                change = 2.0 * grow * near.sum(axis=1, keepdims=True) + free[i] * (push + pull)
                best = np.argmin(change, axis=1)
                better = change[np.arange(len(i)), best] < -1e-12
                if not better.any():
                    break
                i, best, pull = i[better], best[better], pull[better]
                free[i, best] *= -1.0
                flips += len(i)
        if not flips:
            break


def distinct(B: Floats, rng: np.random.Generator) -> Floats:
    """The codes (l, g), no two alike if there are as many codes of l bits.

    Of groups with one code the first keeps it; the others get the bits that nobody has, as near as
    a few random draws find them.
    """
    l, g = B.shape  # noqa: E741
    if l < 63 and 2**l < g:
        return B
    packed = np.packbits(B.T > 0, axis=1)
    taken = {code.tobytes() for code in packed}
    if len(taken) == g:
        return B
    B = B.copy()
    _, first = np.unique(packed, axis=0, return_index=True)
    for k in np.setdiff1d(np.arange(g), first):
        for n_flips in np.arange(1, l + 1).repeat(DRAWS):
            code = B[:, k].copy()
            code[rng.choice(l, n_flips, replace=False)] *= -1.0
            if (name := np.packbits(code > 0).tobytes()) not in taken:
                break
        else:  # nearly all codes of this length are taken
            every = (np.arange(2**l)[:, None] >> np.arange(l)) & 1
            free = (c for c in 2.0 * every - 1.0 if np.packbits(c > 0).tobytes() not in taken)
            code = next(free)
            name = np.packbits(code > 0).tobytes()
        taken.add(name)
        B[:, k] = code
    return B
