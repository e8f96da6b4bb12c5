"""The command as a child process: its record, and what its exit codes mean."""

import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.orchestrators.command import Repeatable, RunFailed, SadihRun
from pipelines.orchestrators.record import headline, markdown, warnings
from tests.orchestrators.pipelines import DONE, RESUMED, REUSED, UNREACHABLE, Digits, actions

StandIn = Callable[[str], None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A shell script in place of the command, for what the real one does too rarely."""

    def use(script: str) -> None:
        path = tmp_path / "sadih"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(stat.S_IRWXU)
        monkeypatch.setenv("SADIH_COMMAND", str(path))

    return use


def test_what_was_done_then_nothing_to_do_then_refused_by_the_gate(digits: Digits) -> None:
    said: list[str] = []
    record = SadihRun(digits.config).run(said.append)
    assert record["outcome"] == "complete"
    assert actions(record) == DONE
    assert any("fit" in line for line in said)

    again = SadihRun(digits.config).run(said.append)
    assert again["outcome"] == "nothing to do"
    assert actions(again) == REUSED
    assert again["id"] == record["id"]

    with pytest.raises(RunFailed, match=r"the quality gate refused.*: sadih: .*map_min") as refused:
        SadihRun(digits.config, ["model.n_bits=4", UNREACHABLE]).run(said.append)
    assert refused.value.record["outcome"] == "refused"
    assert list(refused.value.record["metrics"]["lengths"]) == ["4"]


def test_a_run_that_skipped_files_is_done_and_says_which(tmp_path: Path) -> None:
    digits = Digits.one_of_two_files(tmp_path)
    record = SadihRun(digits.config).run(lambda _: None)
    assert actions(record) == DONE
    (line,) = warnings(record)
    assert line.startswith("skipped: ")
    assert "bad.csv" in line
    assert headline(record).endswith("; 1 skipped, see the log")
    assert f"- {line}" in markdown(record).splitlines()
    assert warnings({}) == []


def test_a_terminated_run_may_be_repeated_and_goes_on(digits: Digits) -> None:
    with digits.interrupted_once(), pytest.raises(Repeatable, match="with 130, interrupted"):
        SadihRun(digits.config).run(lambda _: None)
    assert actions(SadihRun(digits.config).run(lambda _: None)) == RESUMED


def test_a_busy_run_directory_may_be_free_later(digits: Digits) -> None:
    with digits.held(), pytest.raises(Repeatable, match="with 5, another run holds"):
        SadihRun(digits.config).run(lambda _: None)


def test_a_wrong_configuration_stays_wrong(digits: Digits) -> None:
    with pytest.raises(RunFailed, match=r"(?s)with 2, wrong usage or configuration.*n_bitz"):
        SadihRun(digits.config, ["model.n_bitz=3"]).run(lambda _: None)


def test_missing_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SADIH_COMMAND", "/nowhere/sadih")
    with pytest.raises(RunFailed, match=r"/nowhere/sadih.*set SADIH_COMMAND"):
        SadihRun("x.toml").run(lambda _: None)


@pytest.mark.parametrize("code", [4, 5, 130, 137])
def test_codes_that_repeating_may_help(code: int, stand_in: StandIn) -> None:
    stand_in(f"exit {code}")
    with pytest.raises(Repeatable) as error:
        SadihRun("x.toml").run(lambda _: None)
    assert error.value.code == code


@pytest.mark.parametrize("code", [1, 2, 3, 77])
def test_codes_that_it_does_not_help(code: int, stand_in: StandIn) -> None:
    stand_in(f"echo why >&2; exit {code}")
    with pytest.raises(RunFailed, match=f"with {code}, .*: why") as error:
        SadihRun("x.toml").run(lambda _: None)
    assert error.value.record == {}


def test_a_killed_run_may_be_repeated(stand_in: StandIn) -> None:
    stand_in("kill -KILL $$")
    with pytest.raises(Repeatable, match="killed by signal 9"):
        SadihRun("x.toml").run(lambda _: None)


def test_much_output_on_both_sides_does_not_block(stand_in: StandIn) -> None:
    stand_in("""printf '{"text": "'; yes x | head -c 300000 | tr -d '\\n'; printf '"}'
yes line | head -n 60000 >&2""")
    said: list[str] = []
    record = SadihRun("x.toml").run(said.append)
    assert len(record["text"]) == 150_000
    assert len(said) == 60_000


def test_an_interrupted_caller_stops_the_command(digits: Digits) -> None:
    def log(line: str) -> None:
        if "fit" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SadihRun(digits.config).run(log)
    assert digits.was_stopped()


def test_stop_from_a_signal_handler_or_another_thread(digits: Digits) -> None:
    run = SadihRun(digits.config)
    run.stop()  # nothing to stop yet
    stopper = threading.Thread(target=run.stop)

    def log(line: str) -> None:
        if "fit" in line:
            stopper.start()

    with pytest.raises(Repeatable) as error:
        run.run(log)
    stopper.join()
    assert error.value.code in (130, -signal.SIGTERM)
