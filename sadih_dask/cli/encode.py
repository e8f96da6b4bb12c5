"""``sadih encode``."""

from __future__ import annotations

from typing import Any

import click

from sadih_dask.cli import options


@click.command()
@options.store
@click.argument("model")
@click.argument("codes")
@click.option("--learned", is_flag=True, help="Write the learned codes of the rows' labels.")
@options.overwrite
@options.placed
def command(
    store: str, model: str, codes: str, learned: bool, overwrite: bool, **running: Any
) -> None:
    """Hash every row of STORE with MODEL and write the packed codes to the code store CODES.

    An interrupted run goes on when the same command is repeated.
    """
    from sadih_dask import SADIH, FeatureStore
    from sadih_dask.pipeline.encoding import encode

    setting = options.Running(**running)
    opened, learner = FeatureStore.open(store), SADIH.load(model)
    hint = "Codes that are written stay: repeat the same command to go on."
    with options.resumable(hint), setting.prepared(), setting.bar("Encoding") as bar:
        done = encode(
            learner, opened, codes, learned=learned, overwrite=overwrite, progress=bar.over
        )
    kind = "learned codes" if learned else "codes"
    click.echo(
        f"{done.codes.url}: {done.codes.n_rows:,} {kind} of {done.codes.n_bits} bits, "
        f"{done.n_rows_encoded:,} encoded now."
    )
