"""How tests call validators, programs of others."""

import os
import shutil
import subprocess

import pytest

from tests.deploy.machine import BIN


def tool(name: str) -> str:
    """A program beside this Python or on the PATH."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def passes(*words: object, **environment: str) -> str:
    """Run a validator that has nothing to say against it; return what it says."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
