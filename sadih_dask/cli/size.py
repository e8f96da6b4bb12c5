"""``sadih size``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from sadih_dask.cli import options
from sadih_dask.cli.output import echo, echo_json

if TYPE_CHECKING:
    from sadih_dask.jobs.rates import Rates
    from sadih_dask.jobs.size import Size


def _whole(
    ctx: click.Context,  # noqa: ARG001 (click's signature)
    parameter: click.Parameter,  # noqa: ARG001
    value: float | None,
) -> int | None:
    """A whole number, also as 2e8."""
    if value is not None and not (1 <= value < 1e15 and value == int(value)):
        raise click.BadParameter(f"{value:g} is no whole number from 1 on, such as 2e8")
    return None if value is None else int(value)


def _number(*words: str, text: str, **how: Any) -> options.Decorator:
    return click.option(*words, type=float, callback=_whole, metavar="N", help=text, **how)


@click.command()
@_number("--rows", "n_rows", text="For example 2e8.", required=True)
@_number("--features", "n_features", text="Of a row.", required=True)
@_number("--workers", text="Processes.", default=1)
@_number("--cores", text="Of a worker.", default=2)
@_number("--threads", text="Of a worker.  [default: its cores]")
@click.option(
    "--memory", callback=options.parse_size, metavar="BYTES", help="Of a worker, to be checked."
)
@click.option(
    "--store",
    type=click.Choice(["local", "s3"]),
    default="local",
    help="Where rows and codes are: a disk that all share, or an object store.",
)
@click.option(
    "--bandwidth",
    callback=options.parse_size,
    metavar="BYTES",
    help="What the store gives in a second to all workers.",
)
@click.option("--anchors", type=click.IntRange(min=0), default=1000, help="0: none.")
@_number("--bits", "n_bits", text="Of a code.", default=64)
@_number("--classes", "n_classes", text="Or label groups.", default=100)
@_number("--chunk-rows", text="Of the store.  [default: as ingest]")
@click.option("--measure", is_flag=True, help="Measure what a row costs on this machine first.")
@click.option(
    "--rates",
    "rates_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Rates of your own machine, by tests/benchmarks/bench_sizing.py.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as a JSON object.")
def size_command(as_json: bool, measure: bool, rates_file: str | None, **given: Any) -> None:
    """Say what a collection takes: time, memory, storage, requests.

    sadih size --rows 2e8 --features 768 --workers 16 --store s3

    Nothing is read or started. Times are computed from measured rates, memory is predicted by the
    plan that fit checks, storage and requests are counted.
    """
    from sadih_dask.jobs import size as job
    from sadih_dask.jobs.rates import Rates

    case = job.Case(**{name: value for name, value in given.items() if value is not None})
    rates = Rates.load(rates_file)
    if measure:
        rates = rates.measured_here(case.n_features, case.anchors, case.n_bits)
    found = job.size(case, rates)
    if as_json:
        echo_json({**job.to_json(found), "rates": rates.machine})
        return
    echo(*_lines(found, rates))
    if found.fitting_threads is not None:
        click.get_current_context().exit(2)


def _lines(found: Size, rates: Rates) -> Iterator[str]:
    from dask.utils import format_bytes

    from sadih_dask.jobs.size import HEADROOM, KINDS, PLACES

    case = found.case
    yield (
        f"{case.n_rows:,} rows x {case.n_features:,} float32, {case.anchors:,} anchors, "
        f"{case.n_bits} bits, chunks of {case.chunk_rows:,} rows; {case.workers:,} workers of "
        f"{case.cores} cores and {case.threads} threads, {case.store}"
    )
    yield ""
    paid = ("stage", "time (c)", "held up by", "core-hours (c)", "tasks (c)", "requests (c)")
    stages = [
        (
            stage.name,
            _time(stage.seconds),
            stage.limit,
            _digits(stage.core_hours),
            f"{stage.tasks:,}",
            f"{stage.requests:,}" if case.store == "s3" else "",
        )
        for stage in (*found.stages, found.total)
    ]
    yield from table(paid, stages)
    yield ""
    yield from table(
        ("memory of", "peak", "ask for"),
        [
            (name, f"{format_bytes(size)} ({KINDS[name][0]})", format_bytes(int(size * HEADROOM)))
            for name, size in found.memory.items()
        ],
    )
    yield ""
    kept = found.storage | {"all": sum(found.storage.values())}
    yield from table(
        ("storage of", "bytes (c)"), [(name, format_bytes(n)) for name, n in kept.items()]
    )
    yield ""
    yield "c: computed from rates measured on " + rates.machine
    yield "p: predicted by the plan that fit checks before it starts; it hardly grows with the rows"
    if case.store == "s3":
        place = PLACES["s3"]
        total = (case.bandwidth or place.total) / 1e9
        yield (
            f"assumed of the store: {1e3 * place.latency:.0f} ms a request, "
            f"{place.connection / 1e6:.0f} MB/s a connection, "
            f"{total:g} GB/s and {place.requests:,.0f} requests/s in all"
        )
    if found.fitting_threads is not None:
        remedy = (
            f"--threads {found.fitting_threads} would fit"
            if found.fitting_threads
            else "not even one thread fits: fewer anchors, or more memory"
        )
        yield f"does NOT fit into {format_bytes(case.memory or 0)} a worker; {remedy}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table that is Markdown, too, the first column to the left."""
    cells = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        first = f"{row[0]:<{widths[0]}}"
        others = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        return f"| {' | '.join([first, *others])} |"

    yield line(cells[0])
    yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    yield from map(line, cells[1:])


def _time(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{_digits(seconds / length)} {unit}"
    return f"{_digits(seconds)} s"


def _digits(value: float) -> str:
    """Two digits: more would not be true."""
    return f"{float(f'{value:.2g}'):,g}"
