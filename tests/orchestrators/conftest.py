"""What the tests of all orchestrators share: the real command, and a small pipeline."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.orchestrators.pipelines import Digits

# Read when the orchestrators are imported: they tell nobody that they were used.
os.environ.update(DO_NOT_TRACK="1", PREFECT_SERVER_ANALYTICS_ENABLED="false")


@pytest.fixture(scope="session", autouse=True)
def sadih_command() -> None:
    """The command may be in another environment than the orchestrator: `make test` names it."""
    beside = Path(sys.executable).with_name("sadih")
    if "SADIH_COMMAND" not in os.environ:
        found = str(beside) if beside.exists() else shutil.which("sadih")
        assert found, "set SADIH_COMMAND to the path of the sadih command"
        os.environ["SADIH_COMMAND"] = found


@pytest.fixture
def digits(tmp_path: Path) -> Digits:
    """A pipeline that has never run."""
    return Digits.under(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """A pipeline for tests that take turns with it; the first of them makes it complete."""
    return Digits.under(tmp_path_factory.mktemp("finished"), report=True)
