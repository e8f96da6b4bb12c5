"""A real Slurm of one node for one test module: controller, node daemon and munge."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.machine import PATIENCE, clean_environment, free_port, until

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmdParameters=config_overrides
SlurmUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=4
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; nothing if there can."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    path = f"{os.environ['PATH']}:/usr/sbin"
    if absent := [name for name in NEEDED if shutil.which(name, path=path) is None]:
        needs = "apt-get install munge slurmctld slurmd slurm-client"
        return f"no {', '.join(absent)} here: {needs}"
    return ""


@dataclass(frozen=True)
class Slurm:
    """Commands of a running Slurm."""

    folder: Path
    environment: dict[str, str]

    def call(self, *words: object) -> str:
        """Run one of Slurm's commands and return what it says."""
        done = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of a job."""
        text = self.call("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start all three daemons on free ports; they, and what they run, are gone at the end."""
    host = socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(
        host=host, folder=folder, controller=free_port(), daemon=free_port()
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    found = clean_environment()
    found |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{found['PATH']}:/usr/sbin"}
    running = Slurm(folder, found)
    names = {"--key-file": "munge.key", "--socket": "munge.sock", "--pid-file": "munged.pid"}
    names |= {"--log-file": "munged.log", "--seed-file": "munge.seed"}
    munge = ["munged", "--force", "--foreground", *(f"{a}={folder / b}" for a, b in names.items())]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for words in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            with (folder / f"{words[0]}.out").open("wb") as out:
                daemons.append(subprocess.Popen(words, env=found, stdout=out, stderr=out))
            until((folder / "munge.sock").exists, "munge's socket")
        until(lambda: _is_idle(running), "a node that is idle")
        yield running
        subprocess.run(["scancel", "--user=root"], env=found, check=False, timeout=PATIENCE)
        until(lambda: running.call("squeue", "--noheader") == "", "the end of all jobs")
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=PATIENCE)


def _is_idle(running: Slurm) -> bool:
    words = ["sinfo", "--noheader", "--format=%T"]
    done = subprocess.run(words, env=running.environment, capture_output=True, check=False)
    return done.stdout.strip() == b"idle"
