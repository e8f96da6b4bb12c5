"""The manifests of deploy/ as data, and the command lines in them."""

import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


@dataclass(frozen=True)
class Command:
    """A command line with its environment, as written."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def documents(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text()))


def in_image(words: list[str], environment: dict[str, str]) -> Command:
    """What a container of the image runs when it is given these words."""
    return Command(["sh", str(DEPLOY / "image" / "entrypoint.sh"), *words], environment)


def compose() -> dict[str, Any]:
    """The services of the compose file by name."""
    services: dict[str, Any] = documents(DEPLOY / "compose" / "compose.yaml")[0]["services"]
    return services


def compose_command(service: str) -> Command:
    """What a service of the compose file runs."""
    found = compose()[service]
    return in_image(found["command"], found.get("environment", {}))


def pod_arguments(pod: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Words and environment of the container of a pod, with Kubernetes's $(NAME) filled in."""
    container = pod["containers"][0]
    environment = {one["name"]: one["value"] for one in container.get("env", [])}
    words = container["args"]
    for name, value in environment.items():
        words = [word.replace(f"$({name})", value) for word in words]
    # Kubernetes hands on a name that it does not know as it is written.
    assert not any("$(" in word for word in words), words
    return words, environment


def pod_command(pod: dict[str, Any]) -> Command:
    """What the container of a pod runs."""
    return in_image(*pod_arguments(pod))


def unit(name: str) -> list[tuple[str, str]]:
    """The settings of a systemd unit, in their order."""
    text = (DEPLOY / name).read_text()
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def unit_command(name: str) -> Command:
    """What a systemd unit starts, with its ${NAME} filled in."""
    settings = unit(name)
    environment: dict[str, str] = {}
    for key, value in settings:
        if key == "Environment":
            environment |= dict(word.split("=", 1) for word in shlex.split(value))
    line = next(value for key, value in settings if key == "ExecStart")
    for variable, value in environment.items():
        line = line.replace(f"${{{variable}}}", value)
    return Command(shlex.split(line), environment)


def helm_commands() -> tuple[Command, Command]:
    """What Dask's chart makes of the values for the scheduler and a worker.

    After the templates of chart 2024.1.1, which is not at hand here.
    """
    values = documents(DEPLOY / "helm" / "values.yaml")[0]
    scheduler, worker = values["scheduler"], values["worker"]
    environment = {
        one["name"]: "secret:" + one["valueFrom"]["secretKeyRef"]["key"] for one in scheduler["env"]
    }
    first = ["dask-scheduler", "--port=8786", "--dashboard-address=:8787", *scheduler["extraArgs"]]
    second = [worker["image"]["dask_worker"], worker["custom_scheduler_url"]]
    second += ["--nthreads", str(worker["threads_per_worker"])]
    second += ["--memory-limit", worker["resources"]["limits"]["memory"], "--no-dashboard"]
    second += ["--dashboard-address", str(worker["portDashboard"]), *worker["extraArgs"]]
    return in_image(first, environment), in_image(second, {})


def operator() -> Any:
    """The Dask operator's own code, which makes pods of a DaskCluster; it warns when imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dask_kubernetes.operator.controller import controller

    return controller


def operator_makes(cluster: dict[str, Any], n_workers: int = 1) -> Iterator[dict[str, Any]]:
    """The scheduler's deployment and service and the workers' deployments of a DaskCluster."""
    made = operator()
    name, labels = cluster["metadata"]["name"], cluster["metadata"]["labels"]
    scheduler, worker = cluster["spec"]["scheduler"], cluster["spec"]["worker"]
    yield made.build_scheduler_deployment_spec(name, scheduler["spec"], {}, labels)
    yield made.build_scheduler_service_spec(name, scheduler["service"], {}, labels)
    group = f"{name}-default"
    for number in range(n_workers):
        yield made.build_worker_deployment_spec(
            group, "sadih", name, f"{number:010}", worker["spec"], {}, labels
        )


def standing_cluster() -> dict[str, Any]:
    """The DaskCluster of the nightly run."""
    found: dict[str, Any] = documents(KUBERNETES / "cluster.yaml")[0]
    return found


def nightly_pod() -> dict[str, Any]:
    """The pod of the nightly run."""
    job = documents(KUBERNETES / "nightly.yaml")[0]["spec"]["jobTemplate"]["spec"]
    pod: dict[str, Any] = job["template"]["spec"]
    return pod
