"""The signs of scores, found in float32 and the same as in float64.

Bits are signs, and single precision knows most of them: only rows with a score nearer to zero than
its error can be are computed again in float64, and what float64 leaves open, ties in all but name,
once more, row by row and without BLAS. So the bits of a row follow from its features alone: not
from the rows beside it, nor from the library that multiplies. Anchor features are what the anchor
map makes of them in its own precision: the error of a kernel in float32, 100 u and more, is as
large as a tenth of what decides between two classes, and would leave a third of the rows open.

**How far a computed score can be from the exact one.** u is the unit roundoff (2^-24, 2^-53), t the
smallest normal number, gamma_k = k u / (1 - k u), all norms Euclidean. Rows x are taken about a
point c of the working precision, y = x - c, and the offset becomes o' = o + c p in float64.

1. *Affine maps.* y is rounded twice, p once, and a sum of k products in any order, fused or not,
   has a relative error of gamma_k in sum |y_i p_i| <= ||y|| ||p||. ``PIECE_COLUMNS`` columns are
   multiplied at a time and the q partial sums added, so k is PIECE_COLUMNS + q + 4, and not d:

       |s~ - s| <= e = gamma_k (||y|| ||p|| + |o'|) + e_64 + e_t

   with the longest p and the largest o' of all columns. e_64 = 3 gamma_(d+4) ((||c|| + ||y||) ||p||
   + |o|) in float64 is the error of o', and that of the path in float64 with which the signs are to
   agree; e_t = 4 (d + 2) t (1 + ||y|| + ||p||) is what products may lose that underflow, on
   processors that flush them to zero, too.

2. *The vote* of scores s with weights (s+ / top)^a and codes C. Its sign does not depend on top, so
   let both be divided by the computed one: r = s~+ / top, r' = s+ / top, |r - r'| <= h = e / top.
   At most m of k groups vote in either, those with s~ > -e. By |r^a - r'^a| <= a h (r + h)^(a-1)
   and the inequalities of Hoelder and Minkowski, with S = sum r^a,

       sum |r^a - r'^a| <= a h m^(1/a) (S^(1/a) + h m^(1/a))^(a-1)    if a >= 1,   else m h^a

   The power is computed to (2 a + 16) u, the sums over the groups to gamma_(k+1), twice, since the
   path in float64 rounds as well, and what underflows is below k t: every bit is known to
   delta = max|C| (the above + 2 (gamma_(k+1) + (2 a + 16) u) S + k t). Where all s~ < -e, nobody
   votes in either, and all scores are exactly 0. With an infinite power the highest score decides,
   and is known where the second is more than 2 e below it.

   Scores that are *logarithms* vote with exp(a (s - max s)). The exponent is known to 2 a e, and
   rounded twice; where it is below -E, the logarithm of the smallest number, the weight is lost,
   and elsewhere rounding takes 2 E u of it at most: sum |w - w'| <= S (expm1(2 a e) + 2 E u). The
   vote is as long as top = 1 / S, and top is known to the same part of itself as S.

3. *Unit length.* A vector known to delta in each of l components, of computed length L: with
   kappa = delta / L and kappa sqrt(l) <= 1/2, a component f of it at length 1 is known to
   kappa (1 + |f| sqrt(l)) / (1 - kappa sqrt(l)). No component of a vote exceeds max|C| S / L.

4. *The sum* top v + w z of vote and opening: top times the error of v, that of top (e, if it is the
   highest score) times |v| and that error,
   w times the error of z, and 2 gamma_(l+8) (top |v| + w |z|) for the arithmetic since.

The bounds are rounded, too, by less than the part ``SLACK`` that is added to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.learning.encoders import HashFunction
from sadih_dask.types import Array, Floats, Ints

PIECE_COLUMNS = 128
"""Columns that are multiplied at a time: with fewer, bounds are closer and products slower."""
PIECE_VALUES = 2**20
"""Features of the rows that are worked on at a time: with fewer, the steps of a vote are slow."""
CENTRE_ROWS = 64
FAR = 1.5
"""How much farther from zero than from one another rows are that are taken about their centre."""
SLACK = 2.0**-10
HOPELESS = 0.5
"""Part of the rows so far that float32 has left open, from which on it is not tried any more."""


def signs(function: HashFunction, features: Array) -> tuple[Array, Ints]:
    """Bits (n, l), True where scores are positive, and the rows that needed float64.

    Without anchor features, rows that are not finite are among these.
    """
    mapped = function.mapped(features)
    single = _Bounded.of(function, mapped, np.float32)
    found = np.empty((len(mapped), function.n_bits), bool)
    left, n_left = [np.arange(0)], 0
    for rows in _pieces(function, len(mapped)):
        if n_left <= HOPELESS * rows.start:
            values, bound = single.scores(mapped[rows])
            np.greater(values, 0.0, out=found[rows])
            left.append(rows.start + _open(values, bound))
        else:
            left.append(np.arange(*rows.indices(len(mapped))))
        n_left += len(left[-1])
    again = np.concatenate(left)
    if n_left:
        double = _Bounded.of(function, mapped, np.float64)
        for rows in _pieces(function, n_left):
            found[again[rows]] = _decided(double, mapped[again[rows]]) > 0.0
    return found, again


def scores(function: HashFunction, features: Array) -> Floats:
    """Scores (n, l) in float64, whose signs are those bits."""
    mapped = function.mapped(features)
    double = _Bounded.of(function, mapped, np.float64)
    found = np.empty((len(mapped), function.n_bits))
    for rows in _pieces(function, len(mapped)):
        found[rows] = _decided(double, mapped[rows])
    return found


def _decided(double: _Bounded, part: Array) -> Floats:
    found, bound = double.scores(part)
    with np.errstate(all="ignore"):
        for row in _open(found, bound):
            found[row] = double.function.score(part[[row]].astype(np.float64), _plain_product)
    return np.asarray(found)


def _open(values: Array, bound: Array) -> Ints:
    """Rows with a value that does not exceed its bound; what is not a number does not."""
    places = np.flatnonzero(~(np.abs(values) > bound))
    return np.unique(places // max(1, values.shape[1]))


def _plain_product(a: Floats, b: Floats) -> Floats:
    """The product of one row and a matrix, summed in the order of the rows of the matrix."""
    return np.asarray(np.add.reduce(a[0, :, None] * b, axis=0))[None]


def _pieces(function: HashFunction, n_rows: int) -> list[slice]:
    size = max(16, PIECE_VALUES // max(function.projection.shape))
    return [slice(row, row + size) for row in range(0, n_rows, size)]


@dataclass(frozen=True, eq=False)
class _Affine:
    """Affine maps (m, k), (k,) in one precision, and the error that they can make (1.).

    constant  of the error, for all rows, and slope, which their lengths multiply
    """

    weights: Array
    offset: Array
    constant: float
    slope: float

    @classmethod
    def of(cls, weights: Floats, offset: Floats, centre: Array) -> _Affine:
        """Maps of rows about a centre."""
        d, dtype = len(weights), centre.dtype
        point = centre.astype(np.float64)
        shifted = offset + point @ weights
        length = np.linalg.norm(weights, axis=0).max(initial=0.0)
        near = _gamma(min(d, PIECE_COLUMNS) + -(-d // PIECE_COLUMNS) + 4, dtype)
        exact = 3.0 * _gamma(d + 4, np.float64)
        lost = 4.0 * (d + 2) * float(np.finfo(dtype).tiny)
        constant = near * np.abs(shifted).max(initial=0.0) + lost * (1.0 + length)
        constant += exact * (np.linalg.norm(point) * length + np.abs(offset).max(initial=0.0))
        slope = (near + exact) * length + lost
        wider = 1.0 + SLACK
        return cls(
            weights.astype(dtype),
            shifted.astype(dtype),
            float(constant * wider),
            float(slope * wider),
        )

    def __call__(self, rows: Array, lengths: Array) -> tuple[Array, Array]:
        """Scores (n, k), and the error that none of a row exceeds (n, 1)."""
        found = rows[:, :PIECE_COLUMNS] @ self.weights[:PIECE_COLUMNS]
        for first in range(PIECE_COLUMNS, rows.shape[1], PIECE_COLUMNS):
            cut = slice(first, first + PIECE_COLUMNS)
            found += rows[:, cut] @ self.weights[cut]
        found += self.offset
        return found, self.constant + self.slope * lengths


@dataclass(frozen=True, eq=False)
class _Bounded:
    """A hash function in one precision, with the errors that it can make.

    opening  its weight and maps
    codes    (k, l + 1) of the groups, and a column of ones; None where there is no vote
    """

    function: HashFunction
    centre: Array
    labels: _Affine
    opening: tuple[float, _Affine] | None
    codes: Array | None

    @classmethod
    def of(cls, function: HashFunction, mapped: Array, dtype: Any) -> _Bounded:
        """Prepare the function for rows like the first ones."""
        opening, codes = function.opening, function.mixture
        if codes is not None:
            codes = np.hstack([codes, np.ones((len(codes), 1))]).astype(dtype)
        with np.errstate(all="ignore"):
            centre = _centre(mapped[:CENTRE_ROWS].astype(np.float64)).astype(dtype)
            labels = _Affine.of(function.projection, function.offset, centre)
            opened = None
            if opening is not None:
                affine = _Affine.of(opening.projection, opening.offset, centre)
                opened = opening.weight, affine
        return cls(function, centre, labels, opened, codes)

    def scores(self, part: Array) -> tuple[Array, Array]:
        """Scores (n, l), and the errors of each or of a row that they may have; -1 for none."""
        dtype = self.centre.dtype
        with np.errstate(all="ignore"):
            rows = np.subtract(part, self.centre) if self.centre.any() else part
            rows = rows.astype(dtype, copy=False)
            lengths = _lengths(rows)
            values, bound = self.labels(rows, lengths)
            if self.codes is not None:
                values, bound = self._vote(values, bound, self.codes)
            if self.opening is not None:
                weight, affine = self.opening
                values, bound = _add(weight, values, bound, *affine(rows, lengths))
        return values, bound

    def _vote(self, found: Array, error: Array, codes: Array) -> tuple[Array, Array]:
        """The vote of the groups, as long as the highest score (2., 3.)."""
        power, dtype = self.function.sharpness, codes.dtype
        n_bits = codes.shape[1] - 1
        if np.isinf(power):
            return _winner(found, error, codes[:, :n_bits])
        likely = np.ascontiguousarray(found.T)  # short rows are slow to look through
        highest = likely.max(axis=0)
        logarithmic = self.function.logarithmic
        silent = np.zeros(len(found), bool) if logarithmic else highest < -error[:, 0]
        weigh = _exponentials if logarithmic else _powers
        voted, wrong, top, error = weigh(likely, highest, error, codes, power)
        total, voted = voted[:, n_bits:], voted[:, :n_bits]
        size = float(np.abs(codes[:, :n_bits]).max(initial=0.0))
        length, wrong, root = _unit_length(voted, wrong * (size * (1.0 + SLACK)))
        largest = np.minimum(size * (1.0 + SLACK) * total / length, 1.0)
        wrong = wrong * (1.0 + largest * root)
        bound = top * wrong + error * (largest + wrong)
        bound += 2.0 * _gamma(n_bits + 8, dtype) * top * largest
        bound *= 1.0 + SLACK
        values = voted * (top / np.where(length > 0.0, length, 1.0))
        bound[silent] = -1.0
        return values, bound


def _power(values: Array, power: float) -> Array:
    """Raise to a power, in place: 2, 4, 8 ... by squares, which is no less exact, and faster."""
    if power < 1.0 or not np.log2(power).is_integer():
        return np.power(values, power, out=values)
    for _ in range(int(np.log2(power))):
        np.square(values, out=values)
    return values


def _powers(
    likely: Array, highest: Array, error: Array, codes: Array, power: float
) -> tuple[Array, Array, Array, Array]:
    """Votes by powers of scores, errors of the weights together, lengths, and errors of these."""
    contenders = (likely > -error[:, 0]).sum(axis=0, dtype=codes.dtype)[:, None]
    np.maximum(likely, 0.0, out=likely)
    likely /= np.where(highest > 0.0, highest, 1.0)
    voted = _power(likely, power).T @ codes
    top, total = np.maximum(highest, 0.0)[:, None], voted[:, -1:]
    apart, many = error / top, contenders ** (1.0 / power)
    if power >= 1.0:
        wrong = power * apart * many * (total ** (1.0 / power) + apart * many) ** (power - 1.0)
    else:
        wrong = contenders * apart**power
    return voted, wrong + _rounding(codes, power, total), top, error


def _exponentials(
    likely: Array, highest: Array, error: Array, codes: Array, power: float
) -> tuple[Array, Array, Array, Array]:
    """The same by exponentials of scores."""
    likely -= highest
    likely *= power
    voted = np.exp(likely, out=likely).T @ codes
    total, dtype = voted[:, -1:], codes.dtype
    lost = -2.0 * float(np.log(np.finfo(dtype).smallest_subnormal)) * _unit(dtype)
    wrong = (np.expm1(2.0 * power * error) + lost) * total + _rounding(codes, power, total)
    apart = wrong * (1.0 + SLACK) / total
    known = np.where(apart <= 0.5, apart / (1.0 - apart), np.inf)
    return voted, wrong, 1.0 / total, known / total


def _rounding(codes: Array, power: float, total: Array) -> Array:
    """What the weights and their sums over the groups lose."""
    k, dtype = len(codes), codes.dtype
    part = 2.0 * (_gamma(k + 1, dtype) + (2.0 * power + 16.0) * _unit(dtype))
    return np.asarray(part * total + k * float(np.finfo(dtype).tiny))


def _winner(found: Array, error: Array, codes: Array) -> tuple[Array, Array]:
    """The code of the highest score, known where no other comes within the errors of both."""
    values = codes[found.argmax(axis=1)]
    if found.shape[1] == 1:
        return values, np.zeros_like(error)
    second, first = np.partition(found, -2, axis=1)[:, -2:].T
    return values, np.where((first - second)[:, None] > 2.0 * error, 0.0, np.inf)


def _add(
    weight: float, values: Array, bound: Array, found: Array, error: Array
) -> tuple[Array, Array]:
    """Labels and opening together (3., 4.)."""
    rounding = 2.0 * _gamma(found.shape[1] + 8, found.dtype)
    length, wrong, root = _unit_length(found, error)
    found *= weight / np.where(length > 0.0, length, 1.0)
    errors = np.abs(found)
    errors *= wrong * root + rounding
    errors += np.maximum(bound, 0.0) + weight * wrong
    values = values + found
    errors += np.abs(values) * rounding
    errors *= 1.0 + SLACK
    return values, errors


def _unit_length(rows: Array, error: Array) -> tuple[Array, Array, float]:
    """Lengths L, kappa / (1 - kappa sqrt(l)) and sqrt(l) (3.); infinite where rows may be zero."""
    length = np.sqrt(np.vecdot(rows, rows))[:, None]
    part, root = error / length * (1.0 + SLACK), float(np.sqrt(rows.shape[1]))
    return length, np.where(part * root <= 0.5, part / (1.0 - part * root), np.inf), root


def _centre(rows: Floats) -> Floats:
    """The mean of rows, or zero where it is not far enough from zero to be worth the work."""
    centre = rows.mean(axis=0) if len(rows) else np.zeros(rows.shape[1])
    spread = np.sqrt(np.square(rows - centre).sum(axis=1).mean()) if len(rows) else 0.0
    far = np.isfinite(centre).all() and np.linalg.norm(centre) > FAR * spread
    return centre if far else np.zeros_like(centre)


def _lengths(rows: Array) -> Array:
    """Norms of rows (n, 1), none too small: squares may underflow."""
    d, tiny = rows.shape[1], float(np.finfo(rows.dtype).tiny)
    squares = np.vecdot(rows, rows) + d * tiny
    return np.sqrt(squares)[:, None] * (1.0 + 2.0 * _gamma(d + 2, rows.dtype))


def _unit(dtype: Any) -> float:
    return float(np.finfo(dtype).eps) / 2.0


def _gamma(k: int, dtype: Any) -> float:
    return k * _unit(dtype) / (1.0 - k * _unit(dtype))
