"""``sadih fit``."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import click

from sadih_dask.cli import options
from sadih_dask.cli.progress import Bar
from sadih_dask.estimator import SADIH
from sadih_dask.parameters import CHOICES
from sadih_dask.pipeline.training import train
from sadih_dask.storage import FeatureStore

_DEFAULTS = {name: given.default for name, given in signature(SADIH).parameters.items()}


class _CountOr(click.ParamType[int | str | None]):
    """A number of one or more, or a word that stands for something else."""

    def __init__(self, word: str, meaning: str | None) -> None:
        self.name = f"N|{word}"
        self._word = word
        self._meaning = meaning

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str | None:
        if value in (self._word, self._meaning):
            return self._meaning
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither a number of 1 or more nor {self._word!r}", param, ctx)
        return int(value)


def _parameter(
    flag: str, name: str, kind: click.ParamType[Any], text: str | None = None
) -> Callable[[options.Decorated], options.Decorated]:
    """Return an option for a parameter of the estimator, with the estimator's default."""
    shown = kind.name if isinstance(kind, _CountOr) else None
    default = _DEFAULTS[name]
    return click.option(
        flag, name, type=kind, default=default, show_default=True, metavar=shown, help=text
    )


_COUNT = click.IntRange(min=1)
_WEIGHT = click.FloatRange(min=0)
_COUNT_OR_ZERO = click.IntRange(min=0)


@click.command()
@options.store
@click.argument("model", type=click.Path(dir_okay=False))
@_parameter("--bits", "n_bits", _COUNT, "Code length.")
@_parameter("--encoder", "encoder", click.Choice(CHOICES["encoder"]))
@_parameter("--loss", "loss", click.Choice(CHOICES["loss"]))
@_parameter("--solver", "solver", click.Choice(CHOICES["solver"]))
@_parameter("--anchors", "anchors", _CountOr("none", None), "Radial basis functions.")
@_parameter("--alpha", "alpha", _WEIGHT, "Weight of reconstruction.")
@_parameter("--beta", "beta", _WEIGHT, "Weight of encoding.")
@_parameter("--gamma", "gamma", _WEIGHT, "Weight of regularisation.")
@_parameter("--ridge", "ridge", _WEIGHT, "Penalty of the encoder.")
@_parameter("--similarity", "similarity", click.Choice(CHOICES["similarity"]))
@_parameter("--n-init", "n_init", _CountOr("auto", "auto"), "Starts to try.")
@_parameter("--max-iter", "max_iter", _COUNT_OR_ZERO, "Iterations of a start.")
@_parameter("--block-rows", "block_rows", _COUNT, "Rows that are read at a time.")
@_parameter("--seed", "random_state", _COUNT_OR_ZERO)
@options.overwrite
@options.running
def command(
    store: str,
    model: str,
    overwrite: bool,
    scheduler: str | None,
    threads: int | None,
    memory_limit: int | None,
    verbose: bool,
    quiet: bool,
    **parameters: Any,
) -> None:
    """Learn codes and a hash function from STORE and write them to the file MODEL.

    If MODEL has learned from the first rows of STORE with the same parameters, only the rows that
    were added since are read. Any other model is replaced with --overwrite only.

    What a long scan has come to is kept in MODEL.scan until MODEL is written: an interrupted run
    goes on when the same command is repeated.
    """
    setting = options.Running(scheduler, threads, memory_limit, verbose, quiet)
    opened = FeatureStore.open(store)
    checkpoint = f"{model}.scan"
    hint = (
        f"{model} is as it was before. What a long scan has come to stays in {checkpoint}: repeat "
        "the same command to go on."
    )
    bar = Bar("Scanning", goes_on=True, quiet=quiet)
    with options.resumable(hint), setting.prepared(), bar:
        trained = train(
            opened,
            model,
            parameters,
            overwrite=overwrite,
            progress=bar.over,
            checkpoint=checkpoint,
        )
    if trained.n_rows_known == trained.n_rows:
        click.echo(f"{model}: has learned from all {trained.n_rows:,} rows already.")
        return
    loaded = trained.n_rows_loaded
    before = f"{loaded:,} before the interruption, " if loaded else ""
    click.echo(
        f"{model}: {trained.model.n_bits} bits from {trained.n_rows:,} rows "
        f"({trained.n_rows_read:,} read now, {before}{trained.n_rows_known:,} known before), "
        f"{trained.model.groups_.n_groups:,} label groups."
    )
