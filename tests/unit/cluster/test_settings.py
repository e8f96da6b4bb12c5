"""What may be said about a cluster, and what is refused before anything is started."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import pytest

from sadih_dask.cluster import ClusterSettings, Tls, running
from sadih_dask.cluster.launchers import kubernetes_options, slurm_options
from sadih_dask.cluster.security import (
    check_address,
    credentials,
    given_credentials,
    is_loopback,
    tls_files,
)
from sadih_dask.cluster.settings import Kubernetes, Slurm, checked
from sadih_dask.compute.run import default_workers
from sadih_dask.errors import ConfigError, InputError
from tests.support.processes import TlsFiles
from tests.support.processes import tls_files as make_files


@pytest.fixture(autouse=True)
def no_certificates_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.delenv(f"SADIH_TLS_{name}", raising=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_files(tmp_path_factory.mktemp("tls"))


def of(files: TlsFiles, **changes: str | None) -> Tls:
    paths = {"ca_file": files.ca, "cert_file": files.cert, "key_file": files.key}
    return Tls(**{**{name: str(path) for name, path in paths.items()}, **changes})


def test_settings_need_no_dask() -> None:
    program = (
        "import sys; from sadih_dask.cluster.settings import ClusterSettings; ClusterSettings();"
        "from sadih_dask import cluster; cluster.ClusterSettings(kind='processes');"
        "assert not {'distributed', 'dask_jobqueue', 'kubernetes'} & set(sys.modules), 'imported'"
    )
    # The package itself imports Dask; its folder alone must not need it.
    stub = "import sys, types; p = types.ModuleType('sadih_dask'); p.__path__ = [sys.argv[1]]; "
    folder = Path(__file__).parents[3] / "sadih_dask"
    program = f"{stub} sys.modules['sadih_dask'] = p; {program}"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, timeout=300)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "cloud"}, "kind: it should be 'threads'"),
        ({"kind": "scheduler"}, "without an address"),
        ({"kind": "threads", "address": "tcp://x:1"}, "with an address"),
        ({"kind": "processes", "workers": 0}, "workers: it should be greater than"),
        ({"memory_limit": "much"}, "memory_limit: 'much' is no number of bytes"),
        ({"kind": "threads", "options": {"queue": "long"}}, "'threads' has no further options"),
        ({"kind": "slurm", "options": {"colour": "red"}}, "'colour' is not among queue, account"),
        ({"kind": "slurm", "options": {"queue": "a b"}}, "queue: 'a b' is written into a job"),
        (
            {"kind": "scheduler", "address": "tls://h:1", "tls": {"generate": True}},
            "only be made for a cluster that is started here",
        ),
        ({"kind": "kubernetes"}, "needs the name of a DaskCluster"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked(ClusterSettings, given)


def test_options_belong_to_a_kind() -> None:
    settings = ClusterSettings(kind="slurm", options={"queue": "long", "cores": 8})
    assert (settings.slurm.queue, settings.slurm.cores) == ("long", 8)
    settings = ClusterSettings(kind="kubernetes", options={"image": "x", "cores": 2})
    assert settings.kubernetes.cores == "2"


@pytest.mark.parametrize("value", ["a\n#SBATCH --uid=0", "a b", "$(reboot)", "a;b", "`id`", ""])
def test_a_job_script_holds_no_other_commands(value: str) -> None:
    with pytest.raises(ValueError, match="written into a job script"):
        Slurm(queue=value)


# --- plain TCP ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:8786",
        "127.0.0.1:8786",
        "tcp://localhost:1",
        "tcp://[::1]:8786",
        "127.9.9.9:1",
    ],
)
def test_this_machine_may_be_spoken_to_plainly(address: str) -> None:
    assert check_address(address, allow_plain_tcp=False).startswith("tcp://")


@pytest.mark.parametrize(
    "address",
    [
        "tcp://192.0.2.1:8786",
        "192.0.2.1:8786",
        "tcp://0.0.0.0:8786",
        "tcp://[2001:db8::1]:8786",
        "tcp://no.such.host.invalid:8786",
        "tcp://127.0.0.1.example.invalid:8786",
    ],
)
def test_other_machines_may_not_unless_asked_for_by_name(address: str) -> None:
    with pytest.raises(
        ConfigError, match=r"runs whatever it is sent.*tls://.*allow_plain_tcp=True"
    ):
        check_address(address, allow_plain_tcp=False)
    assert check_address(address, allow_plain_tcp=True).endswith(address.removeprefix("tcp://"))
    secure = "tls://" + address.removeprefix("tcp://")
    assert check_address(secure, allow_plain_tcp=False) == secure


@pytest.mark.parametrize(
    "address", ["", "host", "tcp://", "tcp://:8786", "inproc://x:1", "http://h:1", "tcp://h:x"]
)
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match="no address of a scheduler"):
        check_address(address, allow_plain_tcp=True)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        check_address("tls://me:hunter2@host:8786", allow_plain_tcp=False)
    assert "hunter2" not in str(caught.value)


def test_a_name_that_means_this_machine_and_another(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(0, 0, 0, "", ("127.0.0.1", 0)), (0, 0, 0, "", ("192.0.2.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: entries)
    assert not is_loopback("both.invalid")


# --- certificates ------------------------------------------------------------------------------


def test_certificates_come_from_settings_environment_or_dask(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"distributed.comm.tls.ca-file": "dask", "distributed.comm.tls.client.key": "dask"}
    with dask.config.set(found):
        monkeypatch.setenv("SADIH_TLS_KEY", "environment")
        monkeypatch.setenv("SADIH_TLS_CERT", "environment")
        assert tls_files(Tls(cert_file="settings")) == {
            "ca_file": "dask",
            "cert_file": "settings",
            "key_file": "environment",
        }
    security = given_credentials(of(files))
    assert security.require_encryption
    assert security.tls_client_key == security.tls_worker_key == str(files.key)


def test_certificates_that_are_missing_or_none(files: TlsFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key_file is missing. Give key_file or SADIH_TLS_KEY"):
        given_credentials(of(files, key_file=None))
    with pytest.raises(ConfigError, match=r"ca_file .*nowhere cannot be read: No such file"):
        given_credentials(of(files, ca_file=str(tmp_path / "nowhere")))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigError, match=r"cert_file .*text is no PEM file"):
        given_credentials(of(files, cert_file=str(tmp_path / "text")))
    other = make_files(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"cannot be used together: .*KEY_VALUES_MISMATCH"):
        given_credentials(of(files, key_file=str(other.key)))


def test_a_key_in_the_configuration_of_dask_is_never_shown(files: TlsFiles) -> None:
    """Dask takes the text of a key where a path is expected."""
    with dask.config.set({"distributed.comm.tls.client.key": files.key.read_text()}):
        security = given_credentials(of(files, key_file=None))
        with pytest.raises(ConfigError) as caught:
            given_credentials(of(files, cert_file="/nowhere", key_file=None))
    assert "BEGIN" not in str(caught.value)
    assert "BEGIN" not in repr(security)


def test_certificates_are_made_where_none_are_given(files: TlsFiles) -> None:
    assert credentials(of(files)).tls_client_key == str(files.key)
    made = credentials(Tls())
    assert made.require_encryption
    assert made.tls_scheduler_key.startswith("-----BEGIN")
    assert "BEGIN" not in repr(made)


# --- kinds -------------------------------------------------------------------------------------


def test_threads() -> None:
    before = default_workers()
    settings = ClusterSettings(threads=3, memory_limit="2GiB")
    with running(settings) as place:
        assert default_workers() == 3
        assert place.describe() == {
            "kind": "threads",
            "workers": 1,
            "threads": 3,
            "memory_limit": 2 * 2**30,
        }
        assert dask.config.get("sadih.memory-limit") == 2 * 2**30
    assert default_workers() == before


@pytest.mark.parametrize(
    ("kind", "package"), [("slurm", "dask_jobqueue"), ("kubernetes", "dask_kubernetes")]
)
def test_a_kind_without_its_extra(kind: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    options = {"image": "x"} if kind == "kubernetes" else {}
    settings = ClusterSettings(kind=kind, allow_plain_tcp=True, options=options)
    with (
        pytest.raises(InputError, match=rf"pip install 'sadih-dask\[{kind}\]'"),
        running(settings),
    ):
        pass


def test_jobs_of_slurm_do_not_listen_in_the_open() -> None:
    def protocol(**given: Any) -> str:
        return str(slurm_options(ClusterSettings(kind="slurm", **given))["protocol"])

    for options in ({}, {"interface": "lo"}):
        with pytest.raises(ConfigError, match=r"plain TCP between the jobs .* is refused"):
            protocol(options=options)
    with pytest.raises(ConfigError, match="give shared_directory"):
        protocol(tls=Tls(generate=True))
    with pytest.raises(ConfigError, match="interface"):
        protocol(options={"interface": "nope0"})
    assert protocol(allow_plain_tcp=True) == "tcp://"
    assert protocol(options={"shared_directory": "/shared"}) == "tls://"


def test_kubernetes_is_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match=r"plain TCP between its pods.*allow_plain_tcp=True"):
        kubernetes_options(ClusterSettings(kind="kubernetes", options={"image": "x"}))
    with pytest.raises(ValueError, match="Kubernetes takes small letters"):
        Kubernetes(name="Bad_Name")


def test_the_cluster_that_kubernetes_is_given() -> None:
    """The operator's own function makes the resource from our options."""
    operator = pytest.importorskip("dask_kubernetes.operator")
    settings = ClusterSettings(
        kind="kubernetes",
        workers=3,
        threads=2,
        memory_limit="3GiB",
        allow_plain_tcp=True,
        options={
            "name": "sadih",
            "namespace": "ml",
            "image": "repo/sadih:1",
            "cores": "2",
            "memory": "4Gi",
        },
    )
    options = kubernetes_options(settings)
    taken = ("name", "image", "n_workers", "resources", "worker_command")
    spec = operator.make_cluster_spec(**{name: options[name] for name in taken})
    worker = spec["spec"]["worker"]
    container = worker["spec"]["containers"][0]
    assert (spec["kind"], spec["metadata"]["name"], worker["replicas"]) == (
        "DaskCluster",
        "sadih",
        3,
    )
    assert container["image"] == "repo/sadih:1"
    assert container["args"][:4] == ["dask", "worker", "--nthreads", "2"]
    assert container["args"][4:6] == ["--memory-limit", str(3 * 2**30)]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert options["shutdown_on_close"]
    there = kubernetes_options(settings.model_copy(update={"options": {"name": "sadih"}}))
    assert there["create_mode"] == "CONNECT_ONLY"
    assert not there["shutdown_on_close"]
