"""What is printed: names cannot steer the terminal, errors name the options of the command."""

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest

import sadih_dask.cli
from sadih_dask.cli import commands, output
from sadih_dask.cli.output import Bar, complain, echo, in_options
from sadih_dask.compute.run import Steps, heard_in, nobody, reporting
from sadih_dask.errors import Argument, ConflictError, Remedy


def command(name: str) -> click.Command:
    found = commands.get_command(click.Context(commands), name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "argument", "words"),
    [
        ("ingest", Argument("chunk_rows", 4096), "--chunk-rows 4096"),
        ("ingest", Argument("mode", "append"), "--append"),
        ("ingest", Argument("mode", "overwrite"), "--overwrite"),
        ("ingest", Argument("transpose", True), "--transpose"),
        ("ingest", Argument("unlabelled", "drop"), "--unlabelled drop"),
        ("ingest", Argument("labels_variable"), "--labels-variable NAME"),
        ("ingest", Argument("separator", "a b"), "--separator 'a b'"),
        ("fit", Argument("random_state", 3), "--seed 3"),
        ("fit", Argument("block_rows", 512), "--block-rows 512"),
        ("fit", Argument("mode", "append"), "mode='append'"),
        ("search", Argument("max_results"), "--max-results"),
        ("export", Argument("n_hashes"), "--hashes"),
        ("evaluate", Argument("block_rows", 512), "block_rows=512"),
        ("run", Argument("on_change", "rebuild"), "--set source.on_change=rebuild"),
        ("run", Argument("block_rows", 512), "--set model.block_rows=512"),
        ("run", Argument("class_names"), "source.class_names"),
        ("run", Argument("k", 3), "k=3"),
        ("run", Argument("allow_plain_tcp", True), "--allow-plain-tcp"),
        ("run", Argument("key_file"), "--tls-key FILE"),
    ],
)
def test_arguments_in_words_of_a_command(name: str, argument: Argument, words: str) -> None:
    assert in_options(argument, command(name)) == words


def test_a_remedy_may_hold_braces() -> None:
    remedy = Remedy("Put {x} where {} was, or {0}", Argument("overwrite", True))
    assert str(ConflictError("there", remedy=remedy)) == (
        "there. Put {x} where overwrite=True was, or {0}"
    )


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    echo("a\x1b[2Jb\x9bc\rd\ne\u202ef", "\udcff ünï 猫")
    complain("one\x07\ntwo")
    out, err = capsys.readouterr()
    assert out == "a\\x1b[2Jb\\x9bc\\rd\\ne\\u202ef\n\\udcff ünï 猫\n"
    assert err == "sadih: one\\x07\ntwo\n"


def test_there_is_one_place_that_prints() -> None:
    for path in Path(sadih_dask.cli.__file__).parent.glob("*.py"):
        calls = {
            ast.unparse(n.func)
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call)
        }
        assert "print" not in calls, path
        assert "click.echo" not in calls or path.name == "output.py", path


@pytest.mark.parametrize("name", [None, *commands.list_commands(click.Context(commands))])
def test_help_does_not_wait_for_libraries(name: str | None) -> None:
    """Of what takes long to import, NumPy alone may be there: defaults of parameters need it."""
    words = ["sadih", *([] if name is None else [name]), "--help"]
    heavy = {"scipy", "sklearn", "numba", "dask", "distributed", "matplotlib", "zarr", "pandas"}
    program = (
        f"import sys, atexit; sys.argv = {words!r}\n"
        "from sadih_dask.cli import main\n"
        f"atexit.register(lambda: print('imported', *({heavy!r} & set(sys.modules))))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: sadih" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "imported"


def test_a_brief_stage_leaves_no_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bar("Scanning"):
        heard_in(10)(10, 10)
        Steps(3, "Solving").end()
        monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0.0)
        steps = Steps(4, "Choosing")
        steps()
        steps()
        steps.end()
        steps()  # more than were announced
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        "Scanning: 10 of 10 rows",
        *(f"Choosing: {done} of 4 steps" for done in (1, 2, 4)),
    ]
    assert " left" in lines[1]
    Steps(1, "nobody hears of it")()
    with reporting(nobody):
        Steps(1, "nor does this one")()
