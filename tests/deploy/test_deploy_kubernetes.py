"""Kubernetes resources before its schemas and those of the Dask operator, and in its hands."""

import copy
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from dask.utils import parse_bytes

from tests.deploy.manifests import (
    KUBERNETES,
    documents,
    nightly_pod,
    operator,
    operator_makes,
    standing_cluster,
)
from tests.deploy.validators import passes, tool

pytest.importorskip("kubernetes_validate", reason="needs pip install kubernetes-validate")
pytest.importorskip("dask_kubernetes", reason="needs pip install dask-kubernetes")

MANIFESTS = sorted(set(KUBERNETES.glob("*.yaml")) - {KUBERNETES / "kustomization.yaml"})
NAMES = [path.name for path in MANIFESTS]
VERSIONS = ("1.31.0", "1.37.0")
"""The oldest release in which all of it is stable, and the newest."""


def kubernetes_trouble(document: Any, version: str) -> str:
    import kubernetes_validate as validator

    try:
        validator.validate(document, version, strict=True)
    except validator.ValidationError as error:
        return f"{list(error.path)}: {error.message}"
    return ""


def strict(schema: Any) -> Any:
    """A schema that refuses what Kubernetes would drop without a word."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def custom_trouble(document: Any) -> str:
    """What the Dask operator's definitions have against a resource of its kinds."""
    charts = files("dask_kubernetes") / "operator" / "deployment" / "helm"
    folder = charts / "dask-kubernetes-operator" / "crds"
    definition = yaml.safe_load((folder / f"{document['kind'].lower()}.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = strict(schema["properties"]["spec"])
    errors = jsonschema.Draft202012Validator(spec).iter_errors(document["spec"])
    return "\n".join(f"{list(error.path)}: {error.message}" for error in errors)


def trouble(document: Any) -> str:
    if document["apiVersion"] == "kubernetes.dask.org/v1":
        return custom_trouble(document)
    return "".join(kubernetes_trouble(document, version) for version in VERSIONS)


@pytest.mark.parametrize("path", MANIFESTS, ids=NAMES)
def test_kubernetes_resources(path: Path) -> None:
    assert [trouble(one) for one in documents(path)] == ["" for _ in documents(path)]


def test_the_validators_can_say_no() -> None:
    cluster = copy.deepcopy(standing_cluster())
    cluster["spec"]["worker"]["spec"]["containers"][0]["imag"] = "x"
    assert "'imag' was unexpected" in trouble(cluster)
    job = documents(KUBERNETES / "nightly.yaml")[0]
    job["spec"]["jobTemplate"]["spec"]["backofLimit"] = 1
    assert "'backofLimit' was unexpected" in trouble(job)


def test_kustomize_puts_it_together() -> None:
    made = list(yaml.safe_load_all(passes(tool("kubectl"), "kustomize", KUBERNETES)))
    kinds = sorted(one["kind"] for one in made)
    names = [path for path in MANIFESTS if path.name != "job.yaml"]
    assert kinds == sorted(["ConfigMap", *(one["kind"] for p in names for one in documents(p))])
    assert [trouble(one) for one in made] == ["" for _ in made]


def test_without_a_shared_volume(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "own")
    page = tmp_path / "own" / "kustomization.yaml"
    page.write_text(page.read_text().replace("# components", "components"))
    made = list(yaml.safe_load_all(passes(tool("kubectl"), "kustomize", page.parent)))
    assert [trouble(one) for one in made] == ["" for _ in made]
    assert "sadih-data" not in str(made)
    kinds = {one["kind"]: one["spec"] for one in made if "spec" in one}
    pods = (
        kinds["CronJob"]["jobTemplate"]["spec"]["template"]["spec"],
        *(kinds["DaskCluster"][role]["spec"] for role in ("worker", "scheduler")),
    )
    for pod in pods:
        assert {one["name"] for one in pod["volumes"]} == {
            one["name"] for one in container(pod)["volumeMounts"]
        }


def test_what_the_operator_makes_of_the_cluster() -> None:
    scheduler, service, worker = made = list(operator_makes(standing_cluster()))
    assert [trouble(one) for one in made] == ["", "", ""]
    # The run's address is the service's; the service, and the network's policy, find the pods.
    assert (
        f"--scheduler=tls://{service['metadata']['name']}:8786" in container(nightly_pod())["args"]
    )
    labels = scheduler["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    policy = documents(KUBERNETES / "network.yaml")[0]["spec"]["ingress"][0]["from"][0]
    for one in (scheduler, worker):
        found = one["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= found.items()
    address = f"tls://{service['metadata']['name']}:8786"
    environment = container(worker["spec"]["template"]["spec"])["env"]
    assert {"name": "DASK_SCHEDULER_ADDRESS", "value": address} in environment


def container(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["containers"][0]
    return found


def test_the_single_job_has_the_pods_of_the_nightly_one() -> None:
    job = documents(KUBERNETES / "job.yaml")[0]
    text = yaml.safe_dump(job["spec"]).replace(job["metadata"]["name"], "sadih")
    assert yaml.safe_load(text) == {
        "job": {"spec": nightly_pod()},
        "cluster": {"spec": standing_cluster()["spec"]},
    }


@pytest.mark.parametrize("pod", ["scheduler", "worker", "run"])
def test_pods_have_no_rights(pod: str) -> None:
    spec = nightly_pod() if pod == "run" else standing_cluster()["spec"][pod]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container(spec)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("pod", ["scheduler", "worker", "run"])
def test_pods_ask_for_the_disk_that_their_volumes_may_fill(pod: str) -> None:
    spec = nightly_pod() if pod == "run" else standing_cluster()["spec"][pod]["spec"]
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if "emptyDir" in volume]
    asked = container(spec)["resources"]["requests"]["ephemeral-storage"]
    assert parse_bytes(f"{asked}B") == sum(parse_bytes(f"{size}B") for size in sizes)


def test_budgets_find_their_pods_and_spot_nodes_get_workers_only() -> None:
    scheduler, _, worker = operator_makes(standing_cluster())
    for budget, made in zip(
        documents(KUBERNETES / "disruption.yaml"), (worker, scheduler), strict=True
    ):
        labels = made["spec"]["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    specs = [one["spec"]["template"]["spec"] for one in (scheduler, worker)]
    assert ["affinity" in spec for spec in (*specs, nightly_pod())] == [True, False, True]


def test_the_operator_takes_the_names() -> None:
    for path in ("cluster.yaml", "job.yaml"):
        operator().validate_cluster_name(documents(KUBERNETES / path)[0]["metadata"]["name"])
