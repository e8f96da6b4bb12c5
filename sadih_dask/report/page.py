"""The report of a model's retrieval: one HTML file that needs nothing else to be read."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from sadih_dask.cluster.versions import versions_here
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods.sadih import SADIH
from sadih_dask.report.code_statistics import BitCounts, Buckets, NeighbourPictures
from sadih_dask.report.html import count, duration, fill, inline_svg, score, size
from sadih_dask.retrieval.codes import n_bytes
from sadih_dask.retrieval.evaluation import HEADLINE, PROTOCOLS, Evaluation, Protocols

if TYPE_CHECKING:
    from sadih_dask.report.figures import Drawing

TIE_RULE = (
    "Items at equal Hamming distance have no order: every value is the mean over all orders within "
    "a distance, so it does not depend on the order of rows. Queries without a relevant item are "
    "left out of the mean average precision."
)


@dataclass(frozen=True, eq=False)
class Length:
    """Retrieval quality of one code length; seconds are those of learning, if that was done."""

    n_bits: int
    protocols: Protocols
    seconds: float | None = None

    @property
    def known(self) -> dict[str, Evaluation]:
        """Evaluations by protocol, those that were made."""
        return self.protocols.known


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Everything that was measured of a model.

    lengths     evaluations of the same protocols, one for each code length
    model       the model whose codes are looked at more closely; its length is among them
    bits        of the database codes, or of the learned ones where there is no database
    buckets     equal codes of the database, if there is one
    row_bytes   of a row of features
    neighbours  pictures of queries and what they find, where rows have pictures
    classes     names, if any
    """

    lengths: Sequence[Length]
    model: Hasher
    bits: BitCounts | None = None
    neighbours: NeighbourPictures | None = None
    buckets: Buckets | None = None
    row_bytes: int | None = None
    classes: Sequence[str] = ()

    @property
    def own(self) -> Length:
        """The evaluation at the model's own length."""
        n_bits = self.model.hash_function_.n_bits
        return next(length for length in self.lengths if length.n_bits == n_bits)


def drawings(found: Retrieval) -> Iterator[Drawing]:
    """Every figure there is something to show in; needs matplotlib."""
    from sadih_dask.report import figures
    from sadih_dask.report.explore import Comparison

    lengths, own = found.lengths, found.own
    # The paper's protocol and the one that says most; the tables have the others.
    drawn = [name for name in ("learned", own.protocols.headline) if name in own.known]
    compared = Comparison(
        {f"{length.n_bits} bits": length.protocols.only(*drawn) for length in lengths}
    )
    if len(lengths) > 1:
        yield compared.map_against_bits()
    yield compared.precision_recall()
    if any(len(e.precision_curve) for length in lengths for e in length.known.values()):
        yield compared.precision_retrieved()
    pairs = {f"{name}, {own.n_bits} bits": own.known[name] for name in dict.fromkeys(drawn)}
    yield figures.pair_distances({name: (e.similar, e.dissimilar) for name, e in pairs.items()})
    if found.neighbours is not None:
        drawing = figures.neighbour_pictures(found.neighbours)
        chosen = " The queries go from the worst to the best average precision, evenly."
        yield replace(drawing, caption=drawing.caption + chosen)
    if isinstance(model := found.model, SADIH) and (tried := model.openness_curve()):
        opening = getattr(model.hash_function_, "opening", None)
        weight = 0.0 if opening is None else opening.weight
        has = min(tried, key=lambda choice: abs(choice.openness * choice.reach - weight))
        yield figures.openness_curve(tried, has.openness, asked=model.openness != "auto")
    if len(found.model.trace_):
        yield figures.objective_trace(found.model.trace_)
    if found.bits is not None and found.bits.n_rows:
        yield figures.bit_figure(found.bits)


def render(
    title: str,
    found: Retrieval,
    drawn: Sequence[Drawing] = (),
    *,
    data: Mapping[str, object],
    files: Mapping[Path, str],
    started: datetime,
    seconds: float,
) -> str:
    """Return the report as HTML.

    data    facts about the data, name -> value
    files   files and folders that were written -> what they hold
    """
    model, protocols = found.model, found.own.protocols
    evaluation = protocols.widest
    sizes = {"database rows": evaluation.n_database, "queries": evaluation.n_queries}
    sizes |= {"classes": len(model.classes_), "label groups": model.groups_.n_groups}
    rows = [_metrics(length) for length in found.lengths]
    page = fill(
        "report.html",
        title=title,
        started=started,
        tiles=dict(_tiles(found.lengths, sizes)) | {"run time": duration(seconds)},
        sizes=sizes,
        quality=list(zip(found.lengths, rows, strict=True)),
        best=_best(rows),
        n_bits=found.own.n_bits,
        rankings=protocols.rankings,
        baselines=protocols.baselines,
        absent=protocols.absent,
        worst_classes=protocols.worst_classes,
        codes=dict(_codes(found)),
        figures=as_figures(drawn),
        data={
            **sizes,
            "features": model.n_features_in_,
            **data,
            "queries drawn from": evaluation.n_drawn_from,
            "standard error of MAP": ", ".join(
                f"{e.standard_errors['MAP']:.4f} {name}" for name, e in found.own.known.items()
            ),
            "model": model.fingerprint_,
            "run time": duration(seconds),
        },
        classes=list(found.classes or model.classes_),
        parameters=model.get_params(deep=False),
        versions={"system": f"{platform.system()} {platform.machine()}", **versions_here()},
        files=as_files(files),
        tie_rule=TIE_RULE,
        protocols=PROTOCOLS,
    )
    return page.encode("utf-8", "replace").decode()  # names of files may be no text at all


def _tiles(lengths: Sequence[Length], sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The numbers that a reader looks for first, each after what it counts."""
    known = lengths[0].known
    for protocol in sorted(known, key=[*HEADLINE, *PROTOCOLS].index):
        maps = [(length.known[protocol].map, length.n_bits) for length in lengths]
        finite = [pair for pair in maps if math.isfinite(pair[0])]
        if finite:
            best, n_bits = max(finite, key=lambda pair: pair[0])
            yield f"best MAP, {protocol}, {n_bits} bits", score(best)
    for name, number in sizes.items():
        if name != "label groups" or number != sizes["classes"]:
            yield name, count(number)


def _codes(found: Retrieval) -> Iterator[tuple[str, str]]:
    """What codes cost and how well they use their bits, each after what it is."""
    n_bits, buckets, bits = found.own.n_bits, found.buckets, found.bits
    width = n_bytes(n_bits)
    yield "bytes a row, code", size(width)
    if found.row_bytes is not None:
        times = found.row_bytes / width
        yield "bytes a row, features", f"{size(found.row_bytes)}, {times:,.0f} times as much"
    if buckets is not None:
        looked = f"{count(buckets.n_distinct)} of {count(buckets.n_rows)} codes"
        yield "different codes", looked
        yield "rows that share the most frequent code", count(buckets.largest)
        yield (
            f"search, 10 of {count(buckets.n_rows)} codes, one thread",
            f"{1000 * buckets.seconds:.2g} ms a query",
        )
    if bits is not None and bits.n_rows:
        numbers = ", ".join(map(str, bits.constant[:20])) + (" ..." * (len(bits.constant) > 20))
        remark = f"{numbers}; they tell nothing apart, so fewer bits would do"
        yield "bits that are the same in all codes", remark if numbers else "none"


def _metrics(length: Length) -> dict[str, dict[str, float]]:
    """The few numbers of each protocol that a table on a page has room for."""
    shown = {}
    for protocol, found in length.known.items():
        first = next(iter(found.precision_at), None)
        names = ["MAP", f"precision@{first}"]
        shown[protocol] = {name: v for name, v in found.numbers.items() if name in names}
    return shown


def _best(rows: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[tuple[str, str], float]:
    """The best of each protocol and metric, where lengths differ in it."""
    best = {}
    for protocol, metrics in rows[0].items():
        for metric in metrics:
            column = [row[protocol][metric] for row in rows]
            highest = max(filter(math.isfinite, column), default=math.nan)
            if any(found != highest for found in column):
                best[protocol, metric] = highest
    return best


def as_files(files: Mapping[Path, str]) -> list[tuple[str, str, int]]:
    """Files and folders as the page lists them: name, what they hold, size."""
    return [(os.fspath(path), what, _n_bytes(path)) for path, what in files.items()]


def _n_bytes(path: Path) -> int:
    """Size of a file or of all files in a folder."""
    parts = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in parts)


def as_figures(drawn: Sequence[Drawing]) -> list[tuple[Drawing, list[tuple[str, Markup]]]]:
    """Figures in the widths that each needs: one, or one each for wide and for small screens."""
    return [
        (
            drawing,
            [
                (width, inline_svg(drawing.svg(width), f"f{k}{width[0]}-", drawing.alt))
                for width in ("page", "column")
                if drawing.wide or width == "column"
            ],
        )
        for k, drawing in enumerate(drawn)
    ]
