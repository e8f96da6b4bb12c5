"""The same results on clusters as a deployment starts them, encrypted or not, and on threads."""

import asyncio
import hashlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import dask
import numpy as np
import psutil
import pytest
from click import UsageError
from distributed import Client, Worker
from distributed.comm.core import connect
from distributed.security import Security
from threadpoolctl import threadpool_info

from sadih_dask import SADIH, FeatureStore
from sadih_dask.cli import commands
from sadih_dask.cluster import ClusterSettings, Tls, running
from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.run import run, unique_name
from sadih_dask.errors import ClusterError, ConfigError
from sadih_dask.stores import CodeStore
from tests.support.datasets import rows
from tests.support.models import FAST, same_bits
from tests.support.processes import PATIENCE, DaskProcesses, TlsFiles, dask_processes, tls_files

COMMAND = Path(sys.executable).with_name("sadih")
QUICK = [
    "--bits",
    "16",
    "--anchors",
    "20",
    "--n-init",
    "2",
    "--max-iter",
    "2",
    "--block-rows",
    "512",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def plain() -> Iterator[DaskProcesses]:
    """Workers without a nanny, which nobody has limited to one BLAS thread."""
    environment = {"OPENBLAS_NUM_THREADS": "2"}
    with dask_processes(2, nanny=False, environment=environment) as found:
        yield found


@pytest.fixture(scope="module")
def encrypted(files: TlsFiles) -> Iterator[DaskProcesses]:
    with dask_processes(2, tls=files) as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    X, y = rows(d=64)
    return FeatureStore.create(tmp_path_factory.mktemp("data") / "s", X, y, chunk_rows=300)


def here(*words: object) -> None:
    """A command in this process, which saves the time that imports take."""
    commands([str(word) for word in words], standalone_mode=False)


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=300,
    )


def sadih(*words: object, **environment: str) -> str:
    done = command(*words, **environment)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr


def digest(model: Path, codes: Path) -> str:
    """SHA-256 of a model file and of the codes that it gave."""
    held = CodeStore.open(codes).read("codes")
    return hashlib.sha256(model.read_bytes() + held.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def on_threads(tmp_path_factory: pytest.TempPathFactory, store: FeatureStore) -> str:
    folder = tmp_path_factory.mktemp("threads")
    here("fit", store.url, folder / "m", *QUICK, "--quiet")
    here("encode", store.url, folder / "m", folder / "c", "--quiet")
    return digest(folder / "m", folder / "c")


def test_the_commands_on_an_encrypted_cluster(
    encrypted: DaskProcesses,
    files: TlsFiles,
    store: FeatureStore,
    on_threads: str,
    tmp_path: Path,
) -> None:
    assert encrypted.address.startswith("tls://")
    flags = ["--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key]
    there = ["--scheduler", encrypted.address]
    sadih("fit", store.url, tmp_path / "m", *QUICK, *there, *flags)
    variables = {
        "SADIH_TLS_CA": str(files.ca),
        "SADIH_TLS_CERT": str(files.cert),
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": str(files.key),
    }
    sadih("encode", store.url, tmp_path / "m", tmp_path / "c", *there, **variables)
    assert digest(tmp_path / "m", tmp_path / "c") == on_threads


def test_the_commands_on_a_plain_cluster_of_this_machine(
    plain: DaskProcesses,
    store: FeatureStore,
    on_threads: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here("fit", store.url, tmp_path / "m", *QUICK, "--scheduler", plain.address)
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", plain.address)
    here("encode", store.url, tmp_path / "m", tmp_path / "c")
    assert digest(tmp_path / "m", tmp_path / "c") == on_threads
    said = capsys.readouterr().err.splitlines()
    whole = [line.split(":")[0] for line in said if "(100%)" in line]
    assert whole == ["Scanning", "Encoding"]  # once each


def test_an_encrypted_scheduler_lets_no_stranger_in(
    encrypted: DaskProcesses, files: TlsFiles, tmp_path: Path
) -> None:
    openly = encrypted.address.replace("tls://", "tcp://")
    with (
        pytest.raises(ClusterError, match="no Dask scheduler answers at tcp://127"),
        running(ClusterSettings(kind="scheduler", address=openly, connect_timeout=2)),
    ):
        pass
    other = tls_files(tmp_path / "other")  # certificates, but of another authority
    for ca in (files.ca, other.ca):
        mixed = Tls(ca_file=str(ca), cert_file=str(other.cert), key_file=str(other.key))
        settings = ClusterSettings(kind="scheduler", address=encrypted.address, tls=mixed)
        with (
            pytest.raises(ConfigError, match="do not accept each other's certificates"),
            running(settings),
        ):
            pass


def test_wrong_certificates_are_a_wrong_configuration(
    encrypted: DaskProcesses, files: TlsFiles, store: FeatureStore, tmp_path: Path
) -> None:
    other = tls_files(tmp_path / "other")
    words = ["encode", store.url, tmp_path / "m", tmp_path / "c", "--scheduler", encrypted.address]
    SADIH(**FAST, anchors=20).fit(*rows(d=64)).save(tmp_path / "m")
    for ca, key, said in (
        (other.ca, other.key, "do not accept each other's certificates"),
        (files.ca, files.key, "cannot be used together"),
        (files.ca, tmp_path / "m", "is no PEM file"),
    ):
        flags = ["--tls-ca", ca, "--tls-cert", other.cert, "--tls-key", key]
        done = command(*words, *flags)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    done = command(*words)
    assert done.returncode == 2
    assert "ca_file is missing. Give --tls-ca FILE or SADIH_TLS_CA" in done.stderr


def test_the_scheduler_speaks_tls(encrypted: DaskProcesses) -> None:
    host, port = encrypted.address.removeprefix("tls://").split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=120) as raw,
        context.wrap_socket(raw) as wrapped,
    ):
        assert wrapped.version() in ("TLSv1.2", "TLSv1.3")


def test_plain_tcp_to_another_machine_is_refused(store: FeatureStore, tmp_path: Path) -> None:
    words = ["fit", store.url, tmp_path / "m", *QUICK, "--scheduler", "tcp://192.0.2.1:8786"]
    with pytest.raises(ConfigError, match=r"runs whatever it is sent.*--allow-plain-tcp"):
        here(*words)
    with pytest.raises(UsageError, match="give them or --scheduler"):
        here(*words, "--processes", 2)
    assert not (tmp_path / "m").exists()


def test_processes_of_this_machine(store: FeatureStore, tmp_path: Path) -> None:
    X, y = rows(d=64)
    expected = SADIH(**FAST, anchors=20).fit(X, y)
    settings = ClusterSettings(kind="processes", workers=2)
    with running(settings) as cluster:
        described = cluster.describe()
        found = SADIH(**FAST, anchors=20).fit(store)
        workers = cluster.client.scheduler_info(n_workers=-1)["workers"]
        nannies = [worker["nanny"] for worker in workers.values()]
        asyncio.run(nobody_gets_in([described["address"], *workers, *nannies]))
        nobody_looks_in()
    same_bits(found, expected, tmp_path)
    assert (described["workers"], described["threads"]) == (2, 2)
    assert described["address"].startswith("tls://127.0.0.1:")
    assert "dashboard" not in described


def nobody_looks_in() -> None:
    """Whatever else listens answers whether it lives, and nothing else."""
    children = psutil.Process().children()  # clusters of other tests among them
    [server] = [one for one in children if "forkserver" in " ".join(one.cmdline())]
    family = [psutil.Process(), *server.children()]
    found = [one.net_connections("inet") for one in family]
    ports = {one.laddr for some in found for one in some if one.status == psutil.CONN_LISTEN}
    answers = {
        (port, path): status(f"http://{host}:{port}/{path}")
        for host, port in ports
        for path in (
            "",
            "health",
            "status",
            "info/main/workers.html",
            "json/identity.json",
            "metrics",
        )
    }
    assert {host for host, _ in ports} == {"127.0.0.1"}
    assert len(ports) >= 8  # two of each worker, one of each nanny, two of the scheduler
    said = {path: code for (_, path), code in answers.items() if code not in (None, 404)}
    assert said == {"health": 200}  # None is a port that does not speak HTTP


def status(url: str) -> int | None:
    with suppress(HTTPException, ConnectionError):
        try:
            with urlopen(url, timeout=PATIENCE) as answer:
                return answer.status
        except HTTPError as error:
            return error.code
        except URLError as error:
            raise error.reason from None  # type: ignore[misc]
    return None


def imported() -> tuple[bool, str | None, list[int]]:
    return "sadih_dask.compute.scan" in sys.modules, os.environ.get("SADIH_TOLD"), blas_threads()


def test_a_worker_that_died_is_forked_from_a_process_that_has_imported_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for told in ("one", "two"):  # the second time the process to fork from is there already
        monkeypatch.setenv("SADIH_TOLD", told)
        with running(ClusterSettings(kind="processes", workers=1)) as cluster:
            [(address, pid)] = cluster.client.run(os.getpid).items()
            parent = psutil.Process(pid).parent()
            assert cluster.client.run(imported) == {address: (True, told, [1, 1])}
            os.kill(pid, signal.SIGKILL)
            new = cluster.client.submit(os.getppid, pure=False).result(timeout=PATIENCE)
            assert parent is not None
            assert new == parent.pid
            assert "forkserver" in " ".join(parent.cmdline())


def test_what_workers_put_on_disk_is_where_nobody_else_can_write(tmp_path: Path) -> None:
    """Though somebody was there first, with folders of the names that are to be expected."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("dask-scratch-space", f"sadih-{os.getuid()}"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "global.lock").symlink_to(precious)
    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        running(ClusterSettings(kind="processes", workers=1)) as cluster,
    ):
        [folder] = cluster.client.run(folder_of).values()
        scheduler = cluster.client.cluster.scheduler.local_directory
    for found in map(Path, (folder, scheduler)):
        private = tmp_path / found.relative_to(tmp_path).parts[0]
        assert private.stat().st_mode & 0o777 == 0o700
    assert precious.read_text() == "mine"


def folder_of(dask_worker: Worker) -> str:
    return str(dask_worker.local_directory)


async def nobody_gets_in(addresses: list[str]) -> None:
    """Scheduler, workers and nannies let only those in who have the cluster's credentials."""
    assert len(addresses) == 5
    stranger = Security.temporary().get_connection_args("client")
    for address in addresses:
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match="TCP"):
            await connect(address.replace("tls://", "tcp://"), timeout=2)
        with pytest.raises(OSError, match=r"TLS|SSL"):
            await connect(address, timeout=2, **stranger)


def blas_threads(pause: float = 0.0) -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    time.sleep(pause)
    ours = ("numpy", "scipy")  # other tests of this process may have loaded FAISS, with its own
    return [
        one["num_threads"]
        for one in threadpool_info()
        if one["user_api"] == "blas" and any(name in one["filepath"] for name in ours)
    ]


@pytest.mark.skipif(os.cpu_count() == 1, reason="BLAS has one thread on one core")
def test_tasks_have_one_blas_thread_also_without_a_nanny(plain: DaskProcesses) -> None:
    with plain.client() as client:
        before = client.run(blas_threads)
        assert {n for found in before.values() for n in found} == {2}
        name = unique_name("threads")
        graph = {(name, k): (blas_threads,) for k in range(4)}
        found = run({**graph, "all": (list, list(graph))}, "all", name)
        assert {n for one in found for n in one} == {1}
        assert client.run(blas_threads) == before


def test_the_limit_of_one_thread_holds_until_the_last_has_left() -> None:
    def limited(pause: float) -> list[int]:
        with one_blas_thread():
            return blas_threads(pause)

    before = blas_threads()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(limited, [0.01, 0.2, 0.05, 0.4]))
    assert {n for one in found for n in one} == {1}
    assert blas_threads() == before


def test_a_client_of_ones_own(plain: DaskProcesses, store: FeatureStore, tmp_path: Path) -> None:
    """The library needs no settings where Dask has a client; threads leave it alone."""
    with plain.client(), running(ClusterSettings()) as cluster:
        assert cluster.describe()["address"] == plain.address
        found = SADIH(**FAST, anchors=20).fit(store)
    same_bits(found, SADIH(**FAST, anchors=20).fit(*rows(d=64)), tmp_path)
    assert isinstance(cluster.client, Client)
