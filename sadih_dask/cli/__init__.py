"""The ``sadih`` command: options in, words out; what is done is in `jobs` and `runs`.

Read this module first (commands by name, errors in the words of the command line, exit codes), then
`options` (each declared once), `output`, and the modules of commands: `ingest`,
`models` (fit, tune, evaluate, compare-methods), `codes` (encode, search, export), `stores`
(inspect, verify), `size` and `runs`. A module is imported when one of its commands is called:
``--help`` does not wait for numerical libraries.
"""

from __future__ import annotations

import signal
import sys
import warnings
from importlib import import_module
from typing import Any, NoReturn

import click

from sadih_dask import __version__
from sadih_dask.cli.options import Interrupted
from sadih_dask.cli.output import complain, in_options
from sadih_dask.errors import Advice, ClusterError, ConfigError, Remedy, RunBusyError, SadihError
from sadih_dask.files.redaction import redact

_COMMANDS = {
    "run": ("runs", "Bring a collection up to date as a configuration says, with a report."),
    "runs": ("runs", "List the runs of a run directory."),
    "compare": ("runs", "Show what changed between two runs."),
    "rollback": ("runs", "Make an earlier run the latest again."),
    "ingest": ("ingest", "Pour feature files and labels into a store."),
    "inspect": ("stores", "Describe a store or a model file."),
    "delete": ("stores", "Delete rows of a store by their ids."),
    "compact": ("stores", "Join small segments of a store and drop deleted rows."),
    "restore": ("stores", "Make a former commit of a store the latest again."),
    "verify": ("stores", "Read a whole store and name every damaged chunk."),
    "fit": ("models", "Learn a model from a store, or bring one up to date."),
    "compare-methods": ("models", "Learn by every method and tell what each reaches."),
    "forget": ("models", "Take rows out of a model by their ids."),
    "tune": ("models", "Choose weights by cross-validation and write the best model."),
    "encode": ("codes", "Write the codes of all rows of a store."),
    "search": ("codes", "Find the nearest codes of queries."),
    "evaluate": ("models", "Measure retrieval and write figures and a report."),
    "export": ("codes", "Write codes for FAISS, usearch, Parquet, NumPy or SQL."),
    "size": ("size", "Say what a collection takes: time, memory, storage, requests."),
}


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
_SHOW = warnings.showwarning


class _Commands(click.Group):
    """Commands that are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        home, _ = _COMMANDS[cmd_name]
        module = import_module(f"sadih_dask.cli.{home}")
        found: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; its errors name its options where they name arguments."""
        try:
            return super().invoke(ctx)
        except SadihError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            if error.remedy is not None and command is not None:
                error.remedy = Remedy(error.remedy.worded(lambda a: in_options(a, command)))
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="sadih")
def commands() -> None:
    """Learn binary codes whose Hamming distance follows labels."""


def main() -> NoReturn:
    """Run the command line; a wrong input or an unusable file is one line, not a traceback.

    Exit codes: 0 done, 1 bad data or damage, 2 wrong usage or configuration, 3 refused by the
    quality gate, 4 the cluster failed, 5 another run is at work, 6 done but for files that were
    skipped, 130 interrupted.
    """
    warnings.showwarning = _show
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as cleanly as with Ctrl-C
    try:
        code = commands(prog_name="sadih", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Interrupted as interrupt:
        complain(f"interrupted. {interrupt}")
        sys.exit(130)
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted before anything was begun.")
        sys.exit(130)
    except (SadihError, OSError) as error:
        complain(redact(str(error)))
        sys.exit(_exit_code(error))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # all is done; the interpreter may take a moment
    sys.exit(code if isinstance(code, int) else 0)


def _show(message: Warning | str, *where: Any, **given: Any) -> None:
    """Show a remark of ours as one, without the line of code that it comes from."""
    if isinstance(message, Advice):
        complain(f"warning: {message}.")
    else:
        _SHOW(message, *where, **given)


def _exit_code(error: BaseException) -> int:
    for kind, code in ((RunBusyError, 5), (ClusterError, 4), (ConfigError, 2)):
        if isinstance(error, kind):
            return code
    return 1
