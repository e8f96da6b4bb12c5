"""Other processes: waiting for them, ending them, and real clusters of them for one test module.

`local_cluster` is a cluster that Python starts and looks after; `dask_processes` are the commands
that a deployment runs, `dask scheduler` and `dask worker`, each a process that a test may kill.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

from sadih_dask.cluster.nanny import forked_workers

ROOT = Path(__file__).parents[2]
DASK = Path(sys.executable).with_name("dask")
PATIENCE = 180.0
"""Seconds after which another process is thought to hang; a busy machine may take long."""
Here = Callable[..., tuple[str, str]]
"""What the fixture `here` gives: run a command in this process; return its stdout and stderr."""


def wait_until(condition: Callable[[], object], what: str = "the other process gets on") -> None:
    """Wait for a condition; its deadline is only for what hangs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain: {what}"
        time.sleep(0.002)


def blocks_written(url: Path) -> int:
    """Blocks of a store that are there, be they committed or not."""
    return len(list(url.glob("segments/*/features/c.*")))


def end_groups(processes: Iterable[subprocess.Popen[Any]]) -> None:
    """Leave no process behind, children of those that are dead already included."""
    leaders = list(processes)
    for process in leaders:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for process in leaders:
        process.wait(timeout=PATIENCE)


@contextmanager
def local_cluster(n_workers: int) -> Iterator[LocalCluster]:
    """Workers of one thread each; one that dies is replaced by its nanny.

    Port 0 is any free one, so that modules can run side by side.
    """
    patient = {"distributed.scheduler.no-workers-timeout": "60s"}
    with (
        dask.config.set({**patient, **forked_workers()}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit="2GiB",
            env=dict(os.environ),
        ) as found,
    ):
        yield found


@dataclass(frozen=True)
class TlsFiles:
    """Where a certificate authority, a certificate and its key are, as PEM."""

    ca: Path
    cert: Path
    key: Path

    @property
    def flags(self) -> list[str]:
        """Options of the `dask` commands."""
        words = ["--tls-ca-file", self.ca, "--tls-cert", self.cert, "--tls-key", self.key]
        return ["--protocol", "tls", *map(str, words)]

    @property
    def security(self) -> Security:
        """What a client connects with."""
        ends = {
            f"tls_{role}_{kind}": str(path)
            for role in ("client", "scheduler", "worker")
            for kind, path in (("cert", self.cert), ("key", self.key))
        }
        return Security(require_encryption=True, tls_ca_file=str(self.ca), **ends)


def tls_files(folder: Path) -> TlsFiles:
    """Write a self-signed certificate, which is its own authority, and its key."""
    made = Security.temporary()
    folder.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    files.ca.write_text(made.tls_ca_file)
    files.cert.write_text(made.tls_client_cert)
    files.key.touch(mode=0o600)
    files.key.write_text(made.tls_client_key)
    return files


@dataclass
class DaskProcesses:
    """A running scheduler and its workers, each in a process group of its own."""

    folder: Path
    memory_limit: str
    nanny: bool
    threads: int
    tls: TlsFiles | None
    environment: dict[str, str]
    address: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    scheduler: Any = None
    _started: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    @property
    def scheduler_file(self) -> Path:
        """What `dask worker --scheduler-file` and `Client(scheduler_file=...)` read."""
        return self.folder / "scheduler.json"

    def start_scheduler(self, port: int = 0) -> None:
        """Start the scheduler; again at the same port after it was killed, if one is given."""
        self.scheduler_file.unlink(missing_ok=True)
        words = ["--port", str(port), "--scheduler-file", str(self.scheduler_file)]
        self.scheduler = self._start("scheduler", *words)
        wait_until(self._scheduler_is_up, "the scheduler comes up")

    def _scheduler_is_up(self) -> bool:
        """Whether its file is there and written to its end."""
        assert self.scheduler.poll() is None, f"no scheduler:\n{self.log(self.scheduler)}"
        try:
            self.address = json.loads(self.scheduler_file.read_text())["address"]
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        return True

    def start_worker(
        self, *flags: str, memory_limit: str | None = None, nanny: bool | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one more worker, without waiting for it; see `wait`."""
        words = ["--scheduler-file", str(self.scheduler_file), "--nthreads", str(self.threads)]
        words += ["--memory-limit", memory_limit or self.memory_limit, "--nworkers", "1"]
        forked = ["--nanny", "--preload-nanny", "sadih_dask.cluster.nanny"]  # as deployments do
        words += forked if (self.nanny if nanny is None else nanny) else ["--no-nanny"]
        words += ["--local-directory", str(self.folder / f"spill-{len(self._started)}")]
        worker = self._start("worker", *words, *flags)
        self.workers.append(worker)
        return worker

    def _start(self, command: str, *words: str) -> subprocess.Popen[bytes]:
        flags = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", *words]
        flags += [] if self.tls is None else self.tls.flags
        log = self.folder / f"{command}-{len(self._started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [DASK, command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self._started.append((process, log))
        return process

    def client(self, **options: Any) -> Client:
        """A new client; a context manager, current while it is open."""
        security = None if self.tls is None else self.tls.security
        return Client(self.address, security=security, timeout=PATIENCE, **options)

    def wait(self, n_workers: int | None = None) -> None:
        """Wait until that many workers, or all that were started, have joined."""
        with self.client(set_as_default=False) as client:
            client.wait_for_workers(n_workers or len(self.workers), timeout=PATIENCE)

    def kill(self, process: subprocess.Popen[bytes], how: int = signal.SIGKILL) -> None:
        """Send a signal to a process and its children, a nanny's worker among them."""
        os.killpg(process.pid, how)
        if how == signal.SIGKILL:
            process.wait(timeout=PATIENCE)

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """Everything that a process of this cluster has said."""
        return next(log for one, log in self._started if one is process).read_text()

    def stop(self) -> None:
        """Leave no process behind, workers of dead nannies included."""
        end_groups(process for process, _ in self._started)


@contextmanager
def dask_processes(
    n_workers: int,
    *,
    tls: TlsFiles | None = None,
    memory_limit: str = "1GiB",
    nanny: bool = True,
    threads: int = 1,
    environment: dict[str, str] | None = None,
) -> Iterator[DaskProcesses]:
    """`dask scheduler` and that many `dask worker`, joined; every process is gone at the end.

    ``environment`` is added to that of the processes, for example Dask's own settings as
    ``DASK_DISTRIBUTED__...``.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    with TemporaryDirectory(prefix="dask-processes-") as folder:
        found = DaskProcesses(Path(folder), memory_limit, nanny, threads, tls, variables)
        try:
            found.start_scheduler()
            for _ in range(n_workers):
                found.start_worker()
            if n_workers:
                found.wait()
            yield found
        finally:
            found.stop()


def other_host(name: str) -> list[str]:
    """What makes a command one of another host: other processes, another name."""
    command = ["unshare", "--uts", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare is not permitted here")
    return [*command, "sh", "-c", f'hostname {name} && exec "$0" "$@"']


def clock_set_back(days: int) -> list[str]:
    """What makes a command believe that it is earlier."""
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    return ["faketime", "-f", f"-{days}d"]
