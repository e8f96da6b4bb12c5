"""Scripts, image, compose file, units and pages before the validators of their readers."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dask.utils import parse_bytes, parse_timedelta

from sadih_dask import __version__
from sadih_dask.cli import commands
from sadih_dask.cluster.settings import ClusterSettings
from sadih_dask.compute import remote
from tests.deploy.machine import BIN, HEALTH
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    ROOT,
    compose,
    documents,
    helm_commands,
    nightly_pod,
    standing_cluster,
    unit,
)
from tests.deploy.validators import passes, tool

RESUMABLE, FINAL = {4, 130}, {1, 2, 3, 6}
SCRIPTS = sorted([*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch")])
UNITS = sorted([*DEPLOY.rglob("*.service"), *DEPLOY.rglob("*.timer")])


def test_shell_scripts() -> None:
    passes(tool("shellcheck"), *SCRIPTS)
    assert all(os.access(script, os.X_OK) for script in SCRIPTS)


def test_dockerfile() -> None:
    passes(tool("hadolint"), "--failure-threshold=style", DEPLOY / "image" / "Dockerfile")


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    text = (DEPLOY / "image" / "Dockerfile").read_text()
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in re.sub(r"--\S+ ", "", line).split()[:-1]
    }
    kept = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


def test_compose_file() -> None:
    schema = "vendor.compose-spec"
    passes(tool("check-jsonschema"), "--builtin-schema", schema, DEPLOY / "compose/compose.yaml")


def test_containers_have_no_rights() -> None:
    for name, service in compose().items():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True), name
        assert service["security_opt"] == ["no-new-privileges:true"], name


@pytest.mark.parametrize("path", UNITS, ids=[path.name for path in UNITS])
def test_systemd_units(path: Path, tmp_path: Path) -> None:
    program = tool("systemd-analyze")
    for one in path.parent.glob("sadih-*.*"):
        if one.suffix in (".service", ".timer"):
            text = one.read_text().replace("/opt/sadih/bin", str(BIN))
            (tmp_path / one.name).write_text(text.replace("/usr/bin/docker", "/bin/true"))
    (tmp_path / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
    assert passes(program, "verify", tmp_path / path.name, SYSTEMD_UNIT_PATH=f"{tmp_path}:") == ""
    if path.suffix == ".service" and path.parent.name == "systemd":
        passes(program, "security", "--offline=true", "--threshold=20", tmp_path / path.name)


def test_exit_codes_mean_the_same_everywhere() -> None:
    for name in ("systemd/sadih-run.service", "compose/sadih-compose.service"):
        settings = dict(unit(name))
        assert settings["RestartForceExitStatus"] == "4"
        assert settings["SuccessExitStatus"] == "5 6 130"
    rules = documents(KUBERNETES / "nightly.yaml")[0]["spec"]["jobTemplate"]["spec"]
    given_up = set(rules["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"])
    assert given_up >= FINAL
    assert not given_up & RESUMABLE
    script = (DEPLOY / "slurm" / "sadih-run.sbatch").read_text()
    assert {int(code) for code in re.findall(r"\$code == (\d+)", script)} == RESUMABLE


def test_containers_have_a_quarter_above_the_memory_of_their_worker() -> None:
    worker = compose()["worker"]
    pod: dict[str, Any] = standing_cluster()["spec"]["worker"]["spec"]["containers"][0]
    chart = documents(DEPLOY / "helm" / "values.yaml")[0]["worker"]
    for words, resources in (
        (worker["command"], worker["deploy"]["resources"]),
        (pod["args"], pod["resources"]),
        (helm_commands()[1].words, chart["resources"]),
    ):
        last = [word.partition("=")[2] for word in words if word.startswith("--memory-limit=")][-1]
        # Kubernetes says 7Gi, compose 5G and means GiB.
        limit = resources["limits"]["memory"].removesuffix("i") + "iB"
        assert parse_bytes(limit) >= 1.25 * parse_bytes(last)


def test_runs_find_the_health_of_the_chart_s_scheduler() -> None:
    (_, address) = nightly_pod()["initContainers"][0]["command"]
    values = documents(DEPLOY / "helm" / "values.yaml")[0]
    port = values["webUI"]["servicePort"]  # of the chart's service; 80 unless told
    assert address == f"http://{values['fullnameOverride']}-scheduler:{port}"


def test_everybody_waits_as_long_for_the_others() -> None:
    text = "".join(path.read_text() for path in DEPLOY.rglob("*.*") if path.suffix != ".md")
    waits = {float(seconds) for seconds in re.findall(r"--death-timeout=(\d+)", text)}
    tries, pause = re.findall(r"for _ in \{1\.\.(\d+)\}; do .*?sleep ([\d.]+)\n", text, re.DOTALL)[
        0
    ]
    waits |= {int(tries) * float(pause), runpy.run_path(str(HEALTH))["PATIENCE"]}
    _, by_default = remote.WORKER_TIMEOUT
    run = ClusterSettings(kind="scheduler", address="tls://scheduler:8786")
    assert waits == {run.seconds_without_workers} == {parse_timedelta(by_default)}


def test_images_are_of_this_version_and_from_no_particular_registry() -> None:
    text = "".join(path.read_text() for path in sorted(DEPLOY.rglob("*.yaml")))
    images = re.findall(r"image: (?:\$\{SADIH_IMAGE:-)?([\w./:-]+)", text)
    assert set(images) == {f"sadih-dask:{__version__}"}
    bases = re.findall(r"^FROM (\S+)", (DEPLOY / "image" / "Dockerfile").read_text(), re.MULTILINE)
    assert set(bases) == {"python:3.12-slim"}


@pytest.mark.parametrize("page", sorted(DEPLOY.rglob("*.md")), ids=lambda page: page.parent.name)
def test_pages_name_commands_and_files_that_exist(page: Path) -> None:
    text = page.read_text()
    known = commands.list_commands(None)  # type: ignore[arg-type]
    for verb in re.findall(
        r"(?<!--namespace )\bsadih ([a-z]+) (?=[\w/$'\"-])", "\n".join(indented(text))
    ):
        assert verb in known, f"sadih {verb}"
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target


def indented(text: str) -> list[str]:
    """The lines of a page that are commands."""
    return [line for line in text.splitlines() if line.startswith("    ")]


def test_certificates_are_kept_renewed_and_refused(tmp_path: Path, tls: Path) -> None:
    script = DEPLOY / "tls" / "make-certificates.sh"
    folder = tmp_path / "tls"
    shutil.copytree(tls, folder)
    assert {path.stat().st_mode & 0o777 for path in tls.glob("*.key")} == {0o600}
    before = {path.name: path.read_bytes() for path in folder.glob("*.pem")}
    assert passes(script, folder) == ""
    (folder / "worker.key").unlink()
    assert passes(script, folder).split() == ["made", f"{folder}/worker.pem"]
    after = {path.name: path.read_bytes() for path in folder.glob("*.pem")}
    assert {name for name in before if before[name] != after[name]} == {"worker.pem"}
    (folder / "ca.key").unlink()
    done = subprocess.run([script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "move" in done.stderr
