"""Column sampling based discrete supervised hashing (Kang et al., 2016)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from sadih_dask.learning.randomness import generator
from sadih_dask.model.methods.sampled import LabelCodes, shared
from sadih_dask.types import Floats

ROUNDS, TURNS = 10, 3
"""Samples of columns, and alternations with each; as published."""
JUDGED = 512
"""Columns that rounds are compared by."""
MAX_COLUMNS = 128
"""A step costs the cube of it for every bit."""


class COSDISH(LabelCodes):
    """Codes whose inner products follow a few columns of the similarity at a time.

    min ||l S - B B^T|| over the columns of sampled rows O, other columns in every round; in turns
    the codes of O, bit by bit, each a binary quadratic problem with the earlier bits as they are,
    and those of all other rows, B = sgn(S B_O), a tie keeps the bit. In S, -1 of rows without a
    common label is scaled to the ratio of pairs with and without, so that both weigh alike.

    Deviations: O has as many rows as there are bits, as published, but no more than 128. Classes of
    which none is in O get one code, so with few bits the codes of a round are a matter of luck:
    kept are those of the round that fit 512 columns best, which are drawn once; published are those
    of the last.
    """

    method: ClassVar = "cosdish"

    def _row_codes(self, labels: sp.csr_array, seed: int) -> Floats:
        rng, n, q = generator(seed, "codes"), labels.shape[0], self.n_bits
        B = rng.choice([-1.0, 1.0], (n, q))
        judged = generator(seed, "judged").choice(n, min(JUDGED, n), replace=False)
        wanted = q * balanced(shared(labels, judged))
        best, least = B, np.inf
        for _ in range(ROUNDS):
            columns = rng.choice(n, min(q, MAX_COLUMNS, n), replace=False)
            rest = np.ones(n, bool)
            rest[columns] = False
            S = balanced(shared(labels, columns))
            for _ in range(TURNS):
                B[columns] = sampled_codes(q * S[columns], q * S[rest], B[rest])
                B[rest] = sign_or(S[rest] @ B[columns], B[rest])
            error = float(np.square(wanted - B @ B[judged].T).sum())
            if error < least:
                best, least = B.copy(), error
        return best


def balanced(similar: Floats) -> Floats:
    """1 for 1, and for 0 minus the ratio of ones to zeros."""
    n_similar = float(similar.sum())
    return np.where(similar > 0.0, 1.0, -n_similar / max(similar.size - n_similar, 1.0))


def sign_or(value: Floats, previous: Floats) -> Floats:
    """Signs; a tie keeps the previous bit."""
    return np.where(np.abs(value) < 1e-5, previous, np.where(value > 0.0, 1.0, -1.0))


def sampled_codes(target: Floats, cross: Floats, B: Floats) -> Floats:
    """Codes of the rows in the columns, (m, l), bit by bit.

    ``target`` (m, m) and ``cross`` (r, m) are l S among them and with the others, whose codes are
    B (r, l). Bit k minimises b^T Q b + b^T p with Q = -2 (target - sum_{j < k} b_j b_j^T) without
    its diagonal, and p = -2 (cross - sum_{j < k} B_j b_j^T)^T B_k.
    """
    target, cross = target.copy(), cross.copy()
    codes = np.empty((len(target), B.shape[1]))
    for k in range(B.shape[1]):
        Q = -2.0 * target
        Q[np.diag_indices(len(Q))] = 0.0
        codes[:, k] = binary_quadratic(Q, -2.0 * cross.T @ B[:, k])
        target -= np.outer(codes[:, k], codes[:, k])
        cross -= np.outer(B[:, k], codes[:, k])
    return codes


def binary_quadratic(Q: Floats, p: Floats) -> Floats:
    """Bits of a small b^T Q b + b^T p, through a clustering problem that is approximated.

    With b = 2 f - 1 and a last entry that is always 1 it is f^T A f over f in {0, 1}. Where
    A = lambda I - U^T U, the sets of k entries with a small f^T A f are those whose k columns of U
    scatter little about their mean. A set that lies nearest to one of its columns scatters at most
    twice as much as the best, and near is where the entries of A are small. So of every column the
    nearest sets of all sizes are tried, if they have the last entry, and the best is taken.
    """
    m = len(Q)
    A = np.zeros((m + 1, m + 1))
    A[:m, :m] = 4.0 * Q
    A[m, :m] = A[:m, m] = p - 2.0 * Q.sum(axis=1)  # half of 2 p - 2 (Q + Q^T) 1
    best, least = np.zeros(m + 1, bool), np.inf
    for centre in range(m + 1):
        key = A[centre].copy()
        key[centre] = -np.inf  # next to itself is itself
        order = np.argsort(key, kind="stable")
        ordered = A[np.ix_(order, order)]
        value = np.diagonal(ordered.cumsum(axis=0).cumsum(axis=1)).copy()
        value[: int(np.flatnonzero(order == m)[0])] = np.inf
        size = int(np.argmin(value))
        if value[size] < least:
            least, best = value[size], np.isin(np.arange(m + 1), order[: size + 1])
    return np.where(best[:m], 1.0, -1.0)
