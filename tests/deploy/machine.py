"""One machine on which commands of a deployment run as plain processes, in a temporary folder."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TypeAlias

from tests.deploy.manifests import DEPLOY, ROOT, Command
from tests.support.processes import end_groups

BIN = Path(sys.executable).parent
HEALTH = DEPLOY / "image" / "healthcheck.py"
PATIENCE = 300.0
"""Seconds for what is bound to happen, on a busy machine."""
Process: TypeAlias = subprocess.Popen[bytes]
SMALL_RUN = {
    "SADIH__MODEL__N_BITS": "16",
    "SADIH__MODEL__ANCHORS": "20",
    "SADIH__REPORT__ENABLED": "false",
    "SADIH__EVALUATION__CLASS_FOLDS": "0",
}
"""Settings that make a run short, given as a deployment gives them."""


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of Dask and sadih, and with their commands."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DASK_", "SADIH_"))
    }
    path = f"{BIN}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(true: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that is bound to happen."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what} did not happen in {seconds:.0f} s"
        time.sleep(0.3)


@dataclass
class Machine:
    """Paths and addresses of a deployment, and where they are here."""

    folder: Path
    tls: Path
    port: int = field(default_factory=free_port)
    started: list[tuple[Process, Path]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for role in ("scheduler", "worker", "client"):
            made = self.folder / f"tls-{role}"
            made.mkdir()
            for name, file in (("ca.pem", "ca.pem"), ("tls.crt", f"{role}.pem")):
                (made / name).symlink_to(self.tls / file)
            (made / "tls.key").symlink_to(self.tls / f"{role}.key")
        for name in ("data", "config", "spill"):
            (self.folder / name).mkdir()

    def here(self, text: str, role: str) -> str:
        """A word or a file of the deployment as it is on this machine."""
        if text.startswith("secret:"):
            return (self.folder / f"tls-{role}" / text.removeprefix("secret:")).read_text()
        for there, here in (
            ("/opt/sadih/bin", str(BIN)),
            ("/run/secrets", str(self.tls)),
            ("/etc/sadih/tls", str(self.tls)),
            ("/etc/sadih", str(self.folder / "config")),
            ("/var/cache/sadih", str(self.folder / "spill")),
            ("/var/lib/sadih", str(self.folder / "data")),
            ("/tls", f"{self.folder}/tls-{role}"),
            *((f"/{name}", str(self.folder / name)) for name in ("data", "config", "spill")),
        ):
            text = re.sub(rf"(?<![\w.-]){there}(?=/|$)", here, text)
        text = re.sub(r"tls://[\w.-]+:8786", f"tls://127.0.0.1:{self.port}", text)
        return text.replace("--port=8786", f"--port={self.port}")

    def start(self, command: Command, role: str, **more: str) -> Process:
        """Start a command of the deployment; a scheduler or worker listens on the loopback only."""
        words = [self.here(word, role) for word in command.words]
        if role != "client":
            door = f"127.0.0.1:{free_port()}"
            for number, word in enumerate(words):
                if word == "--dashboard-address":
                    words[number + 1] = door
                elif word.startswith("--dashboard-address="):
                    words[number] = f"--dashboard-address={door}"
            words += ["--host=127.0.0.1"]
        given = {name: self.here(value, role) for name, value in command.environment.items()}
        log = self.folder / f"{role}-{len(self.started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                words,
                env={**clean_environment(), **given, **more},
                cwd=self.folder / "data",
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append((process, log))
        return process

    def run(self, command: Command, **more: str) -> tuple[int, str]:
        """Run a command of a client; return its exit code and what it said."""
        process = self.start(command, "client", **more)
        code = process.wait(timeout=PATIENCE)
        return code, self.log(process)

    def log(self, process: Process) -> str:
        """Everything that a process has said."""
        return next(log for one, log in self.started if one is process).read_text()

    def status(self, process: Process, path: str) -> int:
        """What a scheduler or worker answers on its HTTP port."""
        words = [str(word) for word in process.args]  # type: ignore[union-attr]
        door = next(w.partition("=")[2] for w in words if w.startswith("--dashboard-address="))
        with closing(HTTPConnection(door, timeout=PATIENCE)) as connection:
            connection.request("GET", path)
            with connection.getresponse() as answer:
                return answer.status

    def healthy(self, process: Process) -> bool:
        """What the image's health check says of a process, as if it were a container's first."""
        words = [sys.executable, str(HEALTH), str(process.pid)]
        asked = subprocess.run(words, capture_output=True, timeout=PATIENCE, check=False)
        return asked.returncode == 0

    def until_healthy(self, process: Process) -> None:
        """Wait for a scheduler or worker as the deployments do."""

        def well() -> bool:
            assert process.poll() is None, self.log(process)
            return self.healthy(process)

        until(well, f"the health of\n{process.args!r}")

    def stop(self) -> None:
        """Leave no process behind."""
        end_groups(process for process, _ in self.started)


@contextmanager
def machine(folder: Path, tls: Path) -> Iterator[Machine]:
    """A machine whose processes are gone at the end."""
    found = Machine(folder, tls)
    try:
        yield found
    finally:
        found.stop()
