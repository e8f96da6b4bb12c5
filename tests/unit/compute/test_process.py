"""What tasks want of the process that they run in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS_OF_BLOCKS = """
import resource, sys
import numpy as np
from sadih_dask.compute.process import prepared

def blocks():
    for _ in range(32):
        np.empty(16 << 20, np.uint8).fill(1)

def run(task):
    task[0](*task[1:])

run(task := prepared((blocks,)) if sys.argv[1] == "prepared" else (blocks,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
run(task)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
def test_below_a_nanny_blocks_take_the_memory_of_those_before_them() -> None:
    nanny = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}  # as Dask's nannies set it

    def faults(way: str) -> int:
        command = [sys.executable, "-c", FAULTS_OF_BLOCKS, way]
        done = subprocess.run(command, env=nanny, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("prepared") * 10 < faults("plain")
