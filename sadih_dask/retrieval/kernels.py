"""Loops over query-item pairs, and over the trees of a hash function.

Codes come as 64-bit words. Queries lie in rows, (q, words); a database block lies in columns,
(words, n), so that distances of consecutive items are vector operations. A tile of distances is
computed into a small buffer first and looked at afterwards: most tiles hold nothing near enough,
and one comparison with their minimum says so.

Kernels trust their arguments; their callers, `nearest` and `histograms`, check them. Numba compiles
them when they are first called, for the processor at hand, without the interpreter lock, and keeps
the result on disk for the next process: beside the module, or in the user's cache folder, or where
``NUMBA_CACHE_DIR`` says. Where none of them can be written they are compiled anew in every process,
which takes a few seconds and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from sadih_dask.types import Array, Ints

Function = TypeVar("Function", bound=Callable[..., Any])

TILE = 2048
"""Items whose distances are computed together; their words and distances fit the first cache."""
STRIP = 256
"""Items of a tile that are passed over together."""
LANES = 4
"""Histograms that take turns: an addition need not wait for the one before to the same bin."""
LEVELS = 15
"""Of weights rounded down to four bits."""
ROW_BITS = 46
"""A key is ``distance << ROW_BITS | row``: keys in ascending order are the ranking, ties by row."""


def compiled(function: Function) -> Function:
    """Compile a function of arrays and numbers."""
    fast: Any
    try:
        fast = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep the result in
        fast = njit(nogil=True)(function)
    called_the_same: Function = fast
    return called_the_same


def _popcount(_: Any, __: Any) -> tuple[Any, Any]:
    """Ask for the processor's own instruction, which compilers also use on vectors."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


popcount: Any = intrinsic(_popcount)
"""Bits that are set in a 64-bit word; only inside compiled functions."""


def tile_buffer(n_words: int) -> Array:
    """Room for the distances of one tile, in the narrowest type that holds them."""
    kind: Any = np.uint8 if n_words <= 3 else np.uint16 if n_words <= 1023 else np.uint32
    return np.empty(TILE, kind)


@compiled
def _measure(query: Any, block: Any, start: int, size: int, buffer: Any) -> None:
    """Distances of one query to items ``start .. start + size`` of a block."""
    # Slices, here and below: with an index that might be negative no loop becomes vector code.
    n_words = len(query)
    a, first = query[0], block[0, start : start + size]
    if n_words == 1:
        for j in range(size):
            buffer[j] = popcount(a ^ first[j])
        return
    b, second = query[1], block[1, start : start + size]
    for j in range(size):
        buffer[j] = popcount(a ^ first[j]) + popcount(b ^ second[j])
    for w in range(2, n_words):
        a, first = query[w], block[w, start : start + size]
        for j in range(size):
            buffer[j] += popcount(a ^ first[j])


@compiled
def _least(values: Any) -> Any:
    """Smallest of some distances."""
    least = values[0]
    for j in range(len(values)):
        least = values[j] if values[j] < least else least
    return least


@compiled
def nearest_kernel(
    queries: Any, block: Any, first_row: int, keys: Ints, known: int, buffer: Any
) -> None:
    """Bring each query's ``k`` smallest keys up to date with one more block, in place.

    ``keys`` (q, k) are ascending, of rows before ``first_row``; the first ``known`` of each are in
    use. Candidates are kept in order of rows, with a count for each distance. From the counts
    follows the largest distance that can still be among the ``k``; it only ever falls, and an
    item that is not nearer is passed over. Room for ``2 k`` candidates makes sorting out rare.
    """
    n_words, n = block.shape
    k = keys.shape[1]
    farthest = 64 * n_words
    room = 2 * k + STRIP
    distances, rows = np.empty(room, np.int64), np.empty(room, np.int64)
    counts = np.empty(farthest + 1, np.int64)
    for i in range(len(queries)):
        counts[:] = 0
        for x in range(known):
            distances[x] = keys[i, x] >> ROW_BITS
            rows[x] = keys[i, x] & ((1 << ROW_BITS) - 1)
            counts[distances[x]] += 1
        held = total = known  # candidates in the arrays; those of distance up to `worst`
        worst = farthest if known < k else distances[k - 1]
        for start in range(0, n, TILE):
            size = min(TILE, n - start)
            _measure(queries[i], block, start, size, buffer)
            limit = worst if total >= k else worst + 1
            if _least(buffer[:size]) >= limit:
                continue
            for low in range(0, size, STRIP):
                strip = buffer[low : min(low + STRIP, size)]
                if _least(strip) >= limit:
                    continue
                for j in range(len(strip)):
                    distance = np.int64(strip[j])
                    if distance >= limit:
                        continue
                    if held == room:
                        held = _sort_out(distances, rows, held, worst, k - total + counts[worst])
                    distances[held], rows[held] = distance, first_row + start + low + j
                    held += 1
                    counts[distance] += 1
                    total += 1
                    if total >= k:
                        while total - counts[worst] >= k:
                            total -= counts[worst]
                            worst -= 1
                        limit = worst
        _rank(distances, rows, held, worst, counts, keys[i])


@compiled
def _sort_out(distances: Ints, rows: Ints, held: int, worst: int, wanted: int) -> int:
    """Drop what is beyond ``worst``, and at it all but the first ``wanted``; keep the order."""
    kept = 0
    for x in range(held):
        distance = distances[x]
        if distance == worst:
            wanted -= 1
        if distance < worst or (distance == worst and wanted >= 0):
            distances[kept], rows[kept] = distance, rows[x]
            kept += 1
    return kept


@compiled
def _rank(distances: Ints, rows: Ints, held: int, worst: int, counts: Ints, keys: Ints) -> None:
    """Write candidates as ascending keys: a counting sort, which keeps the order of rows."""
    place = 0
    for distance in range(worst + 1):
        here = counts[distance]
        counts[distance] = place
        place += here
    for x in range(held):
        distance = distances[x]
        if distance <= worst:
            place = counts[distance]
            counts[distance] += 1
            if place < len(keys):
                keys[place] = (distance << ROW_BITS) | rows[x]


@compiled
def weighted_kernel(
    queries: Any,
    weights: Any,
    planes: Any,
    block: Any,
    first_row: int,
    keys: Ints,
    known: int,
    buffer: Any,
) -> None:
    """As `nearest_kernel`, where bit ``b`` of query ``i`` counts ``weights[i, b]``, not 1.

    ``weights`` (q, 64 words) are whole numbers. Rounded down to one of ``LEVELS`` levels of a
    query's largest, they are numbers of a few bits, and ``planes`` (q, bits, words) has each of
    these bits for all weights: so a lower bound of a distance is a sum of a few popcounts. It
    passes over nearly all items; the others are measured by a table of sums for each byte.
    """
    n_words, n = block.shape
    k = keys.shape[1]
    held = np.empty(2 * k, np.int64)
    sums = np.zeros((8 * n_words, 256), np.int32)
    for i in range(len(queries)):
        _sum_weights(weights[i], sums)
        heaviest = weights[i].max()
        held[:known] = keys[i, :known]
        count = known
        worst = held[k - 1] >> ROW_BITS if known == k else np.int64(weights[i].sum()) + 1
        near = (worst * LEVELS - 1) // heaviest  # levels that may still be nearer
        for start in range(0, n, TILE):
            size = min(TILE, n - start)
            _bound(queries[i], planes[i], block, start, size, buffer)
            if _least(buffer[:size]) > near:
                continue
            for low in range(0, size, STRIP):
                strip = buffer[low : min(low + STRIP, size)]
                if _least(strip) > near:
                    continue
                for j in range(len(strip)):
                    if strip[j] > near:
                        continue
                    distance = 0
                    for w in range(n_words):
                        differing = queries[i, w] ^ block[w, start + low + j]
                        for b in range(8 * w, 8 * w + 8):
                            distance += sums[b, differing & np.uint64(255)]
                            differing >>= np.uint64(8)
                    if distance >= worst:
                        continue
                    held[count] = (distance << ROW_BITS) | (first_row + start + low + j)
                    count += 1
                    if count == len(held):
                        held.sort()
                        count = k
                        worst = held[k - 1] >> ROW_BITS
                        near = (worst * LEVELS - 1) // heaviest
        held[:count].sort()
        keys[i, : min(k, count)] = held[: min(k, count)]


@compiled
def _bound(query: Any, planes: Any, block: Any, start: int, size: int, buffer: Any) -> None:
    """Lower bounds of weighted distances to items ``start .. start + size``, in levels."""
    one, two = np.uint64(1), np.uint64(2)
    buffer[:size] = 0
    for w in range(len(query)):
        a, items = query[w], block[w, start : start + size]
        p, q, r, s = planes[0, w], planes[1, w], planes[2, w], planes[3, w]
        for j in range(size):
            x = a ^ items[j]
            low = popcount(x & p) + (popcount(x & q) << one)
            buffer[j] += low + ((popcount(x & r) + (popcount(x & s) << one)) << two)


@compiled
def _sum_weights(weights: Any, sums: Any) -> None:
    """Sums of the weights of the bits of every value of a byte, (bytes, 256)."""
    for byte in range(len(sums)):
        for bit in range(8):
            weight, half = weights[8 * byte + bit], 1 << bit
            known, new = sums[byte, :half], sums[byte, half : 2 * half]
            for value in range(half):
                new[value] = known[value] + weight


@compiled
def within_kernel(
    queries: Any,
    block: Any,
    first_row: int,
    radius: int,
    ends: Ints,
    keys: Ints,
    buffer: Any,
) -> None:
    """Find the items within a radius of each query, in order of rows.

    With no room in ``keys``, ``ends`` (q,) becomes the number of finds of each query. Otherwise
    ``ends`` says where each query's finds begin in ``keys``, and becomes where they end.
    """
    n = block.shape[1]
    count_only = len(keys) == 0
    for i in range(len(queries)):
        end = 0 if count_only else ends[i]
        for start in range(0, n, TILE):
            size = min(TILE, n - start)
            _measure(queries[i], block, start, size, buffer)
            if count_only:
                for j in range(size):
                    end += np.int64(buffer[j]) <= radius
                continue
            for low in range(0, size, STRIP):
                strip = buffer[low : min(low + STRIP, size)]
                if _least(strip) > radius:
                    continue
                for j in range(len(strip)):
                    distance = np.int64(strip[j])
                    if distance <= radius:
                        keys[end] = (distance << ROW_BITS) | (first_row + start + low + j)
                        end += 1
        ends[i] = end


@compiled
def histogram_kernel(
    queries: Any,
    query_groups: Ints,
    labels: tuple[Ints, Ints],
    block: Any,
    block_groups: Any,
    holders: tuple[Ints, Ints],
    marks: Any,
    weights: Ints,
    relevant: Ints,
    total: Ints,
    buffer: Any,
) -> None:
    """Count items by distance and relevance for every query, (q, 64 words + 1) each.

    ``labels`` are the labels of each query group, ``holders`` the block's groups that carry each
    label, both as (indptr, indices). ``marks`` (groups of the block,), zero at first, says which
    groups are relevant to the query at hand, so that a pair costs one look. It is redrawn when the
    query's group changes: queries should come sorted by group. ``weights`` are how many items each
    row of the block stands for; empty, every row is one.
    """
    n_words, n = block.shape
    bins = 64 * n_words + 1
    lanes = np.empty((LANES, 2 * bins), np.int64)
    two = np.uint64(2)  # indices are unsigned, which spares a comparison with zero
    drawn = -1
    for i in range(len(queries)):
        if query_groups[i] != drawn:
            if drawn >= 0:
                _mark(drawn, labels, holders, marks, 0)
            drawn = query_groups[i]
            _mark(drawn, labels, holders, marks, 1)
        lanes[:] = 0
        for start in range(0, n, TILE):
            size = min(TILE, n - start)
            _measure(queries[i], block, start, size, buffer)
            groups = block_groups[start : start + size]
            if len(weights):
                here = weights[start : start + size]
                for j in range(size):
                    lanes[0, two * buffer[j] + marks[groups[j]]] += here[j]
                continue
            whole = size - size % LANES
            for j in range(0, whole, LANES):
                for lane in range(LANES):
                    lanes[lane, two * buffer[j + lane] + marks[groups[j + lane]]] += 1
            for j in range(whole, size):
                lanes[0, two * buffer[j] + marks[groups[j]]] += 1
        for d in range(bins):
            for lane in range(LANES):
                relevant[i, d] += lanes[lane, 2 * d + 1]
                total[i, d] += lanes[lane, 2 * d] + lanes[lane, 2 * d + 1]
    if drawn >= 0:
        _mark(drawn, labels, holders, marks, 0)


@compiled
def _mark(
    group: int, labels: tuple[Ints, Ints], holders: tuple[Ints, Ints], marks: Any, value: int
) -> None:
    """Set the marks of all groups of the block that share a label with a query group."""
    for x in range(labels[0][group], labels[0][group + 1]):
        label = labels[1][x]
        if label + 1 < len(holders[0]):
            for y in range(holders[0][label], holders[0][label + 1]):
                marks[holders[1][y]] = value


@compiled
def vote_kernel(rows: Any, feature: Any, threshold: Any, vote: Any, scores: Any) -> None:
    """Votes of trees, (n, l), added in their order; arguments are those of `trees.BoostedTrees`."""
    n_bits, n_trees, n_nodes = feature.shape
    for i in range(len(rows)):
        row = rows[i]
        for bit in range(n_bits):
            total = 0.0
            for tree in range(n_trees):
                node = 0
                while node < n_nodes:
                    right = row[feature[bit, tree, node]] > threshold[bit, tree, node]
                    node = 2 * node + (2 if right else 1)
                total += vote[bit, tree, node - n_nodes]
            scores[i, bit] = total
