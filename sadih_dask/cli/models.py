"""``sadih fit``, ``sadih tune`` and ``sadih evaluate``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sadih_dask.cli import options
from sadih_dask.cli.output import complain, echo, echo_json
from sadih_dask.errors import lacking
from sadih_dask.model.methods import METHODS
from sadih_dask.model.parameters import (
    ALL_PARAMETERS,
    CLASS_FOLDS,
    DEFAULT_GRID,
    MAX_BITS,
    MAX_QUERIES,
    PARAMETERS,
    Parameter,
)

if TYPE_CHECKING:
    from sadih_dask.report.page import Length


class _Or(click.ParamType[Any]):
    """A number, or a word that stands for something else."""

    def __init__(self, number: click.ParamType[Any], word: str | None) -> None:
        self._number, self._meaning, self._word = number, word, word or "none"
        self.name = f"N|{self._word}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == self._word:
            return self._meaning
        try:
            return self._number.convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message} Or say {self._word}.", param, ctx)


_LENGTH = click.IntRange(1, MAX_BITS)
_FLAGS = {"n_bits": "--bits", "random_state": "--seed"}
"""Where an option is called otherwise than the parameter."""


def _option(name: str) -> options.Decorator:
    """An option for a parameter of the estimator."""
    parameter, kind = ALL_PARAMETERS[name], _type_of(ALL_PARAMETERS[name])
    return click.option(
        _FLAGS.get(name, f"--{name.replace('_', '-')}"),
        name,
        type=kind,
        default=parameter.default,
        metavar=kind.name if isinstance(kind, _Or) else None,
        help=f"{parameter.help[0].upper()}{parameter.help[1:]}.",
    )


def _type_of(parameter: Parameter) -> click.ParamType[Any]:
    kind: click.ParamType[Any]
    if parameter.kind is str:
        return click.Choice(parameter.choices)
    if parameter.kind is int:
        kind = click.IntRange(parameter.least, parameter.most)
    else:
        kind = click.FloatRange(0, parameter.most, min_open=parameter.positive)
    return _Or(kind, parameter.also[0]) if parameter.also else kind


def _parameters(known: Sequence[str], *without: str) -> options.Decorator:
    """Options for parameters of the estimator but some."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(known):
            if name not in without:
                function = _option(name)(function)
        return function

    return add


def _said(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that were given: the defaults of a method are its own."""
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in parameters.items()
        if source(name) is not ParameterSource.DEFAULT
    }


SEARCHED = (*DEFAULT_GRID, "alpha", "beta")
"""Parameters that the command line offers to search."""


def _searched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options for values to try; those that matter are tried unless any is given."""
    for name in reversed(SEARCHED):
        parameter = PARAMETERS[name]
        default = ", ".join(f"{value:g}" for value in DEFAULT_GRID.get(name, ()))
        function = click.option(
            f"--{name}",
            type=_type_of(parameter),
            multiple=True,
            metavar="N",
            help=f"A value of {name} ({parameter.help}) to try; may be repeated."
            + (f"  [default, if no value of any is given: {default}]" if default else ""),
        )(function)
    return function


@contextmanager
def _scanning(model: str, running: options.Running) -> Iterator[None]:
    """Show a scan; who is interrupted is told how to go on."""
    hint = (
        f"{model} is as it was before. What a long scan has come to stays in {model}.scan: repeat "
        "the same command to go on."
    )
    bar = running.bar("Scanning", goes_on=True)
    with options.resumable(hint), running.prepared(), bar:
        yield


@click.command()
@options.store
@click.argument("model", type=click.Path(dir_okay=False))
@click.option(
    "--method",
    type=click.Choice(list(METHODS)),
    default="sadih",
    help="What learns it; each has some of the parameters below.",
)
@_parameters([*ALL_PARAMETERS])
@options.overwrite
@options.running
def fit_command(
    store: str,
    model: str,
    method: str,
    overwrite: bool,
    running: options.Running,
    **parameters: Any,
) -> None:
    """Learn codes and a hash function from STORE and write them to the file MODEL.

    If MODEL has learned from the first rows of STORE with the same parameters, only the rows that
    were added since are read. Any other model is replaced with --overwrite only.

    What a long scan has come to is kept in MODEL.scan until MODEL is written: an interrupted run
    goes on when the same command is repeated.
    """
    from sadih_dask.jobs.fit import fit
    from sadih_dask.stores import FeatureStore

    opened = FeatureStore.open(store)
    said, scan = _said(parameters), f"{model}.scan"
    with _scanning(model, running):
        fitted = fit(opened, model, said, method=method, overwrite=overwrite, checkpoint=scan)
    if fitted.n_rows_known == fitted.n_rows and not fitted.n_rows_removed:
        known = fitted.model.coverage_
        without = len(known.forgotten) if known is not None else 0
        but = f", but for {without:,} that it was made to forget" if without else ""
        echo(f"{model}: has learned from all {fitted.n_rows:,} rows already{but}.")
        return
    loaded = fitted.n_rows_loaded
    before = f"{loaded:,} before the interruption, " if loaded else ""
    gone = f", {fitted.n_rows_removed:,} deleted ones taken out" if fitted.n_rows_removed else ""
    echo(
        f"{model}: {fitted.model.n_bits} bits from {fitted.n_rows:,} rows "
        f"({fitted.n_rows_read:,} read now, {before}{fitted.n_rows_known:,} known before{gone}), "
        f"{fitted.model.groups_.n_groups:,} label groups."
    )
    if fitted.n_anchors_left:
        complain(
            f"warning: {fitted.n_anchors_left:,} of its anchors are deleted rows, and stay in it. "
            "To draw others, and read all rows again: --overwrite"
        )


@click.command()
@options.store
@click.argument("model", type=click.Path(dir_okay=False))
@click.option("--ids", required=True, metavar="FILE", help="Ids of the rows, one each.")
@click.option("--ids-variable", metavar="NAME", help="Variable or column of the ids.")
def forget_command(store: str, model: str, ids: str, ids_variable: str | None) -> None:
    """Take the rows of STORE with the ids in a file out of MODEL, which has learned from STORE.

    MODEL is then that of a fit without these rows; they are read, and no others. They stay in
    STORE: sadih delete takes them out of it, and the next sadih fit out of MODEL. Anchors are rows
    that were learned from, and stay in MODEL until it is fitted anew (sadih fit --overwrite).
    """
    from sadih_dask.jobs.fit import forget
    from sadih_dask.sources import open_ids
    from sadih_dask.stores import FeatureStore

    source = open_ids(ids, ids_variable)
    with options.resumable(f"{model} is as it was before."):
        done = forget(FeatureStore.open(store), model, source.read(0, source.n_rows))
    echo(f"{model}: {done.n_rows:,} rows forgotten.")
    if done.n_anchors:
        complain(
            f"warning: {done.n_anchors:,} of its anchors are forgotten rows, and stay in it. To be "
            f"rid of them: sadih delete {store} --ids {ids}, then sadih fit {store} {model} with "
            "--overwrite"
        )


def _output(help_: str) -> options.Decorator:
    """The folder for what is written beside a model."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("-o", "--output", type=kind, metavar="FOLDER", help=help_)


_lengths = click.option(
    "-b",
    "--bits",
    type=_LENGTH,
    multiple=True,
    default=(16, 32, 64),
    show_default="16, 32 and 64",
    help="A code length; may be repeated.",
)


@click.command()
@options.store
@click.argument("model", type=click.Path(dir_okay=False))
@_lengths
@_searched
@click.option("--folds", type=click.IntRange(min=2), default=5)
@click.option(
    "--queries", type=options.COUNT, default=1000, help="Rows of each fold that are looked up."
)
@_parameters([*PARAMETERS], "n_bits", *SEARCHED)
@_output("Write all results as JSON, and a figure of them, here; earlier ones are replaced.")
@options.overwrite
@options.running
def tune_command(
    store: str,
    model: str,
    bits: tuple[int, ...],
    folds: int,
    queries: int,
    output: Path | None,
    overwrite: bool,
    running: options.Running,
    **parameters: Any,
) -> None:
    """Choose parameters for STORE by cross-validation and write the best model to the file MODEL.

    STORE is read once, for all folds, values and code lengths. Every combination is scored by the
    mean average precision of rows of a fold among the rows of the others.

    What a long scan has come to is kept in MODEL.scan until MODEL is written: an interrupted run
    goes on when the same command is repeated.
    """
    from sadih_dask.jobs.tune import tune
    from sadih_dask.stores import FeatureStore

    opened = FeatureStore.open(store)
    searched = {name: parameters.pop(name) for name in SEARCHED}
    grid = {name: values for name, values in searched.items() if values} or DEFAULT_GRID
    with _scanning(model, running):
        tuned = tune(
            opened,
            model,
            parameters,
            grid,
            bits,
            folds,
            queries,
            results=output,
            overwrite=overwrite,
            checkpoint=f"{model}.scan",
        )
    echo(*tuned.search.table().splitlines())
    echo("", f"{model}: {tuned.model.n_bits} bits from {tuned.fitted.n_rows:,} rows.")
    if output is not None:
        _list_files(tuned.files, lacking("matplotlib", "a figure"))


_max_queries = click.option(
    "--max-queries",
    type=click.IntRange(min=0),
    default=MAX_QUERIES,
    help="Of more QUERIES look so many up, drawn at random, always the same; 0: all of them.",
)
_class_folds = click.option(
    "--class-folds",
    type=click.IntRange(min=0),
    default=CLASS_FOLDS,
    help="Parts of the classes that are left out in turn, to see how unseen ones fare; 0: none.",
)


@click.command()
@options.store
@click.option("--queries", required=True, metavar="STORE", help="Labelled rows not learned from.")
@click.option(
    "--method",
    "methods",
    type=click.Choice(list(METHODS)),
    multiple=True,
    help="One to try; may be repeated.  [default: all]",
)
@_lengths
@_max_queries
@_class_folds
@_output("Write every number, a figure and report.html there; the same command goes on from it.")
@_parameters(("anchors", "sigma", "block_rows", "random_state"))
@options.running
def compare_methods_command(
    store: str,
    queries: str,
    methods: tuple[str, ...],
    bits: tuple[int, ...],
    max_queries: int,
    class_folds: int,
    output: Path | None,
    running: options.Running,
    **parameters: Any,
) -> None:
    """Learn from STORE by every method and print what each reaches.

    Every method is scored under every protocol of `sadih evaluate`, at every code length. Methods
    that read the same features share one scan; a method that fails does not stop the others.
    Methods have anchors of their own unless --anchors is given.
    """
    from sadih_dask.errors import InputError
    from sadih_dask.jobs.methods import compare_methods
    from sadih_dask.report.methods import Outcome, as_table
    from sadih_dask.stores import FeatureStore

    def told(one: Outcome) -> None:
        shown = one.failure or ", ".join(f"{p} {v['MAP']:.4f}" for p, v in one.numbers.items())
        if not running.quiet:
            echo(f"{one.method}, {one.n_bits} bits: {shown}")

    hint = "Repeat the same command with -o FOLDER to go on from what is there."
    with options.resumable(hint), running.prepared():
        found = compare_methods(
            FeatureStore.open(store),
            FeatureStore.open(queries),
            methods,
            bits,
            parameters=_said(parameters),
            max_queries=max_queries,
            class_folds=class_folds,
            results=output,
            told=told,
        )
    echo("", *as_table(found).splitlines())
    if all(one.failure for one in found):
        raise InputError("no method could be measured; the table says why")


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@click.argument("queries")
@click.argument("database", required=False)
@click.option("--codes", metavar="CODES", help="DATABASE as hashed by MODEL (sadih encode).")
@click.option(
    "-b",
    "--bits",
    type=_LENGTH,
    multiple=True,
    help="A further code length, solved from the model's statistics; may be repeated.",
)
@_max_queries
@_class_folds
@_output("Write metrics.json, figures and report.html here; earlier ones are replaced.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as a JSON object.")
@options.placed
def evaluate_command(
    model: str,
    queries: str,
    database: str | None,
    codes: str | None,
    bits: tuple[int, ...],
    max_queries: int,
    class_folds: int,
    output: Path | None,
    as_json: bool,
    running: options.Running,
) -> None:
    """Look the rows of the store QUERIES up by their codes and compare labels.

    QUERIES should be rows that MODEL has not learned from. Under `learned` they are looked up among
    the rows that it has learned from, each with the code of its labels; under `encoded` among the
    rows of the store DATABASE, hashed by MODEL; under `fresh` among each other; under `unseen`
    among each other too, by models that learn from a sample of DATABASE without their classes. A
    row is relevant if it shares a label with the query.

    Beside these codes stand, for the same rows: real-valued queries with these codes, ITQ, a
    classifier with one code per class, product quantisation to as many bytes (if FAISS is
    installed), and the cosine of the features.
    """
    from sadih_dask.jobs.evaluate import (
        TIE_RULE,
        Collection,
        document,
        measure,
        nothing_to_find,
        write_metrics,
        write_page,
    )
    from sadih_dask.model.methods import load_model
    from sadih_dask.stores import CodeStore, FeatureStore

    began = time.time()
    if codes is not None and database is None:
        raise click.UsageError("--codes are those of DATABASE, which has their labels; give both")
    learner = load_model(model)
    rows = Collection(
        FeatureStore.open(queries),
        None if database is None else FeatureStore.open(database),
        None if codes is None else CodeStore.open(codes),
    )
    rows.check(learner)
    missing = lacking("matplotlib", "a report")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)  # an unusable folder is found before the work
        if missing is not None:
            complain(f"there will be no figures and no report: {missing}")
    with options.resumable("Repeat the same command."), running.prepared():
        with running.bar("Evaluating"):
            found = measure(learner, rows, bits, max_queries, class_folds)
        if as_json:
            echo_json(document(learner, rows, found))
        else:
            _print_metrics(found.lengths, learner.hash_function_.n_bits, TIE_RULE)
        for remark in nothing_to_find(rows, found.lengths):
            complain(f"warning: {remark}.")
        if output is None:
            return
        written = [write_metrics(output, learner, rows, found)]
        if missing is None:
            with running.bar("Looking at codes"):
                written += write_page(
                    output,
                    learner,
                    rows,
                    found.lengths,
                    title=f"Retrieval with {PurePath(model).name}",
                    began=began,
                    files=written,
                )
    _list_files(written, missing, to_stderr=as_json)


def _print_metrics(lengths: Sequence[Length], own: int, ties: str) -> None:
    """The whole table of the model's own length, and MAP of the others."""
    from sadih_dask.retrieval.evaluation import PROTOCOLS

    shown = next(length.protocols for length in lengths if length.n_bits == own)
    said = [f"{name}: {PROTOCOLS[name]}." for name in shown.known]
    echo(*repr(shown).splitlines(), "", *said, ties)
    if len(lengths) < 2:
        return
    names = list(lengths[0].known)
    echo("", f"{'bits':>6}" + "".join(f"{f'MAP {name}':>18}" for name in names))
    for length in lengths:
        found = (length.known[name] for name in names)
        values = "".join(f"{e.map:>9.4f} ± {e.standard_errors['MAP']:.4f}" for e in found)
        echo(f"{length.n_bits:>6}{values}")


def _list_files(files: Sequence[Path], missing: str | None, *, to_stderr: bool = False) -> None:
    """Say what was written, and why not more; stdout may be a JSON object's own."""
    echo("", "Written:", err=to_stderr)
    for path in files:
        if path.suffix in (".svg", ".pdf"):
            continue
        echo(f"  {path}", err=to_stderr)
    folders = sorted({str(path.parent) for path in files if path.suffix == ".svg"})
    for folder in folders:
        echo(f"  {folder}/*.svg, *.pdf", err=to_stderr)
    if missing is not None:
        echo(f"No figures and no report: {missing}", err=True)
