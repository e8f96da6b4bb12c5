"""Where tests put their files: in memory, if there is room.

Stores, models and runs wait for the disk after every file that they write, which is milliseconds
each, and tests write hundreds of thousands. What a disk keeps when its power is cut is tested by
replaying what was written (`tests.faults.power_cut`), not by waiting for one.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

MEMORY = "/dev/shm"
ROOM = 4 << 30


def pytest_configure() -> None:
    """Choose before the first file is made; processes that tests start do as this one."""
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY  # pytest has asked for it already


def _has_room() -> bool:
    """Whether there is a file system in memory, and programs on it may be run."""
    if not os.access(MEMORY, os.W_OK) or not os.path.ismount(MEMORY):
        return False
    executable = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    return executable and shutil.disk_usage(MEMORY).free >= ROOM


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Tasks on two threads of this process, whatever the machine has."""
    import dask  # orchestrators have an environment without it

    with dask.config.set(scheduler="threads", num_workers=2):
        yield
