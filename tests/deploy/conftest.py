"""Fixtures of the tests of deploy/."""

import subprocess
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, made by the script that deployments use."""
    folder = tmp_path_factory.mktemp("tls") / "made"
    script = DEPLOY / "tls" / "make-certificates.sh"
    subprocess.run([script, folder, "scheduler"], check=True, timeout=300, capture_output=True)
    return folder
