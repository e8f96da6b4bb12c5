"""SADIH written down naively: every row, the full n x n S, no attention to cost.

The library works on label groups and sufficient statistics; this module does not know either, so
that agreement between the two means something. It follows the paper's letters and orientation:

    symbol  shape   meaning
    X       d x n   features, one column per sample
    Y       c x n   labels, 0 or 1
    S       n x n   similarity of samples, symmetric, in [-1, 1]
    B       l x n   codes, -1 or 1
    W       c x l   class embeddings
    V       l x n   W^T Y, the embedding of each sample (R in Eq. (10))
    D       n       diagonal of the reweighting matrix
    Q       c x n   l Y S
    P1      l x d   encoder
    P2      d x l   decoder

`ell` is the paper's l, the number of bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tests.support.problems import Problem

Array = NDArray[np.floating]
Kind = Literal["shared-label", "cosine"]
Loss = Literal["l21", "l1"]
Solver = Literal["exact", "paper"]
Step = Literal["B", "W", "P1", "P2"]


@dataclass(frozen=True, eq=False)
class Data:
    """What does not change during training."""

    X: Array
    Y: Array
    S: Array
    ell: int
    alpha: float
    beta: float
    gamma: float


@dataclass(frozen=True, eq=False)
class State:
    """The variables of Eq. (7)."""

    B: Array
    W: Array
    P1: Array
    P2: Array


def label_matrix(labels: NDArray[np.integer]) -> Array:
    """Y of class numbers (n,), where a number that is skipped is an empty class, or of (n, c)."""
    if labels.ndim == 2:
        return labels.T.astype(np.float64)
    Y = np.zeros((int(labels.max()) + 1, len(labels)))
    for i, j in enumerate(labels):
        Y[j, i] = 1.0
    return Y


def dense_data(problem: Problem, kind: Kind = "shared-label") -> Data:
    """Turn a problem in rows into the paper's matrices; the features are taken as they are."""
    Y = label_matrix(problem.labels)
    return Data(
        X=problem.features.T,
        Y=Y,
        S=similarity(Y, kind),
        ell=problem.n_bits,
        alpha=problem.alpha,
        beta=problem.beta,
        gamma=problem.gamma,
    )


def random_start(data: Data, rng: np.random.Generator) -> State:
    """Draw codes that are equal for samples with equal labels, and an orthogonal P1."""
    n, d, c = data.X.shape[1], data.X.shape[0], data.Y.shape[0]
    codes: dict[tuple[float, ...], Array] = {}
    B = np.empty((data.ell, n))
    for i in range(n):
        B[:, i] = codes.setdefault(tuple(data.Y[:, i]), rng.choice([-1.0, 1.0], size=data.ell))
    return State(
        B=B,
        W=rng.standard_normal((c, data.ell)),
        P1=polar(rng.standard_normal((data.ell, d))),
        P2=rng.standard_normal((d, data.ell)),
    )


def similarity(Y: Array, kind: Kind) -> Array:
    """S: 1 with a label in common and -1 without, or the labels' cosine stretched to [-1, 1]."""
    if kind == "shared-label":
        return 2.0 * (Y.T @ Y > 0) - 1.0
    U: Array = Y / np.linalg.norm(Y, axis=0)
    return 2.0 * (U.T @ U) - 1.0


def label_similarity(Y: Array, S: Array, ell: int) -> Array:
    """Q = l Y S."""
    return ell * Y @ S


def sgn(value: Array, previous: Array, scale: Array) -> Array:
    """Sign of `value`, where a value that is zero up to rounding keeps the previous bit.

    A value counts as zero if |value| <= 1e-9 * scale, with `scale` the size of the terms it was
    summed from. Without the rule, two ways of summing would give different bits at a tie.
    """
    tie = np.abs(value) <= 1e-9 * scale
    return np.where(tie, previous, np.where(value > 0, 1.0, -1.0))


def row_norms(S: Array, V: Array, B: Array) -> Array:
    """||u^i|| for the rows u^i of l S - V^T B."""
    norms: Array = np.linalg.norm(len(B) * S - V.T @ B, axis=1)
    return norms


def weights(S: Array, V: Array, B: Array) -> Array:
    """d_ii = 1 / (2 ||u^i||), with a floor under the norm."""
    ell, n = B.shape
    norms: Array = np.maximum(row_norms(S, V, B), 1e-8 * ell * np.sqrt(n))
    return 1.0 / (2.0 * norms)


def objective(data: Data, state: State) -> dict[str, float]:
    """Each term of Eq. (7), and their total."""
    V = state.W.T @ data.Y
    terms = {
        "similarity": float(row_norms(data.S, V, state.B).sum()),
        "reconstruction": data.alpha * float(np.sum((data.X - state.P2 @ V) ** 2)),
        "encoding": data.beta * float(np.sum((V - state.P1 @ data.X) ** 2)),
        "regularisation": data.gamma * float(np.sum(state.P2**2) + np.sum(V**2)),
    }
    return terms | {"total": sum(terms.values())}


def dcc(B: Array, H: Array, M: Array, scale: Array, max_sweeps: int) -> Array:
    """Lower b^T H b - 2 b^T m for every column, one bit at a time. Eq. (14).

    `scale` (l x n) is the size of the terms behind each sum, before anything cancels.
    """
    B = B.copy()
    ell = len(B)
    for _ in range(max_sweeps):
        before = B.copy()
        for k in range(ell):
            others = [j for j in range(ell) if j != k]
            value = M[k] - H[k, others] @ B[others]
            B[k] = sgn(value, B[k], scale[k])
        if np.array_equal(B, before):
            break
    return B


def b_l21(S: Array, Y: Array, W: Array, B: Array, D: Array, solver: Solver, sweeps: int) -> Array:
    """B for the reweighted l21 loss. Eq. (10)-(14).

    Expanding Eq. (9) gives M = l R D S. The printed W^T D Q has shapes that do not fit, and
    W^T Q D is the closest that does.
    """
    ell = len(B)
    R = W.T @ Y
    H = R @ np.diag(D) @ R.T
    size = np.abs(R)
    if solver == "exact":
        M = ell * R @ np.diag(D) @ S
        M_scale = ell * size @ np.diag(D) @ np.ones_like(S)
    else:
        M = W.T @ label_similarity(Y, S, ell) @ np.diag(D)
        M_scale = ell * size @ np.ones_like(S) @ np.diag(D)
    H_scale = size @ np.diag(D) @ size.T
    others = H_scale.sum(axis=1, keepdims=True) - np.diag(H_scale)[:, None]
    return dcc(B, H, M, M_scale + others, sweeps)


def b_l1(S: Array, Y: Array, W: Array, B: Array) -> Array:
    """B = sgn(W^T Q), below Eq. (8)."""
    ell = len(B)
    scale = ell * np.abs(W.T @ Y).sum(axis=1, keepdims=True)
    return sgn(W.T @ label_similarity(Y, S, ell), B, scale)


def w_exact(data: Data, B: Array, P1: Array, P2: Array, D: Array) -> Array:
    """The minimiser of Eq. (15), of minimum norm where Y Y^T is singular.

    Y D Y^T W B B^T + Y Y^T W (alpha P2^T P2 + (beta + gamma) I)
        = l Y D S B^T + Y X^T (alpha P2 + beta P1^T),
    with vec(A W C) = (C^T kron A) vec(W) for columns stacked on one another.
    """
    X, Y, S, ell = data.X, data.Y, data.S, data.ell
    inner = data.alpha * P2.T @ P2 + (data.beta + data.gamma) * np.eye(ell)
    system = np.kron((B @ B.T).T, Y @ np.diag(D) @ Y.T) + np.kron(inner.T, Y @ Y.T)
    right = ell * Y @ np.diag(D) @ S @ B.T + Y @ X.T @ (data.alpha * P2 + data.beta * P1.T)
    solution = np.linalg.lstsq(system, right.reshape(-1, order="F"), rcond=1e-14)[0]
    return solution.reshape((len(Y), ell), order="F")


def w_paper(data: Data, B: Array, P1: Array, P2: Array, D: Array) -> Array:
    """Eq. (16), with P1 and P2 P2^T transposed so that the shapes fit."""
    X, Y, ell = data.X, data.Y, data.ell
    L = np.linalg.pinv(Y @ Y.T, hermitian=True)
    Q = label_similarity(Y, data.S, ell)
    left = L @ (Q @ np.diag(D) @ B.T + Y @ X.T @ (data.alpha * P2 + data.beta * P1.T))
    inner = B @ np.diag(D) @ B.T + data.alpha * P2.T @ P2 + (data.beta + data.gamma) * np.eye(ell)
    return np.linalg.solve(inner.T, left.T).T


def polar(A: Array) -> Array:
    """The matrix with orthonormal rows or columns, whichever are fewer, nearest to A."""
    U, _, Vt = np.linalg.svd(A, full_matrices=False)
    isometry: Array = U @ Vt
    return isometry


def p1_exact(X: Array, V: Array, P1: Array, lam: float) -> Array:
    """One step that never raises ||V - P1 X||, for lam >= lambda_max(X X^T). Eq. (17).

    With l < d the constraint is P1 P1^T = I and the step minimises a bound that touches at P1.
    With l >= d it is P1^T P1 = I, ||P1 X|| is constant and the step is the minimiser.
    """
    ell, d = P1.shape
    if ell >= d:
        return polar(V @ X.T)
    return polar((X @ V.T + (lam * np.eye(d) - X @ X.T) @ P1.T).T)


def p1_paper(X: Array, V: Array) -> Array:
    """Lemma 1, transposed to l x d: the compact SVD leaves a partial isometry at low rank."""
    U, values, Vt = np.linalg.svd(X @ V.T, full_matrices=False)
    kept = values > 1e-10 * values[0]
    isometry: Array = U[:, kept] @ Vt[kept]
    return isometry.T


def p2_exact(X: Array, V: Array, alpha: float, gamma: float) -> Array:
    """The minimiser of Eq. (18), alpha X V^T (alpha V V^T + gamma I)^-1.

    Solved as the least-squares problem that it is: minimum norm where the inverse does not exist.
    """
    ell, d = len(V), len(X)
    A = np.vstack([np.sqrt(alpha) * V.T, np.sqrt(gamma) * np.eye(ell)])
    right = np.vstack([np.sqrt(alpha) * X.T, np.zeros((ell, d))])
    P2: Array = np.linalg.lstsq(A, right, rcond=1e-12)[0].T
    return P2


def p2_paper(X: Array, V: Array, alpha: float, gamma: float) -> Array:
    """Eq. (19), (alpha X X^T + gamma I)^-1 X Y^T W."""
    return np.linalg.lstsq(alpha * X @ X.T + gamma * np.eye(len(X)), X @ V.T, rcond=1e-14)[0]


def standardise(X: Array) -> Array:
    """Centre each dimension and give it unit variance; a constant one is only centred."""
    centred = X - X.mean(axis=1, keepdims=True)
    deviation = X.std(axis=1, keepdims=True)
    constant = X.max(axis=1, keepdims=True) == X.min(axis=1, keepdims=True)
    scaled: Array = centred / np.where(constant, 1.0, deviation)
    return scaled


def ridge(X: Array, B: Array, lam: float) -> tuple[Array, Array]:
    """P (l x d) and intercept (l,): the prediction for x is P (x - mean of X) + intercept."""
    d, n = X.shape
    Xc = X - X.mean(axis=1, keepdims=True)
    P = np.linalg.solve(Xc @ Xc.T + lam * n * np.eye(d), Xc @ B.T).T
    return P, B.mean(axis=1)


def iterate(
    start: State,
    data: Data,
    loss: Loss,
    solver: Solver,
    n_iter: int,
    sweeps: int,
    p1_steps: int = 1,
) -> Iterator[tuple[int, Step, State, dict[str, float]]]:
    """Alternate over B, W, P1, P2 as the paper does; yield after every step.

    D is recomputed from the current variables before B and again before W.
    """
    X, Y, S = data.X, data.Y, data.S
    lam = float(np.linalg.eigvalsh(X @ X.T)[-1])
    exact = solver == "exact"
    state = start
    for iteration in range(n_iter):
        D = weights(S, state.W.T @ Y, state.B)
        if loss == "l21":
            moved = replace(state, B=b_l21(S, Y, state.W, state.B, D, solver, sweeps))
        else:
            moved = replace(state, B=b_l1(S, Y, state.W, state.B))
        # sgn(W^T Q) is no minimiser; "exact" takes it only where the objective does not rise.
        guarded = loss == "l1" and exact
        if not guarded or objective(data, moved)["total"] <= objective(data, state)["total"]:
            state = moved
        yield iteration, "B", state, objective(data, state)

        D = weights(S, state.W.T @ Y, state.B)
        w_step = w_exact if exact else w_paper
        state = replace(state, W=w_step(data, state.B, state.P1, state.P2, D))
        yield iteration, "W", state, objective(data, state)

        V = state.W.T @ Y
        P1 = state.P1
        for _ in range(p1_steps):
            P1 = p1_exact(X, V, P1, lam) if exact else p1_paper(X, V)
        state = replace(state, P1=P1)
        yield iteration, "P1", state, objective(data, state)

        p2_step = p2_exact if exact else p2_paper
        state = replace(state, P2=p2_step(X, V, data.alpha, data.gamma))
        yield iteration, "P2", state, objective(data, state)
