"""The image, built and run where no container engine runs: buildah in a chroot, and namespaces.

The base cannot be pulled there, so debootstrap and an interpreter make a stand-in for it under the
same name. Mirrors are those of this machine's own configuration of apt and pip.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.deploy.machine import PATIENCE, Process, until
from tests.deploy.manifests import DEPLOY, ROOT
from tests.support.processes import end_groups

NEEDED = ("buildah", "debootstrap", "unshare", "nsenter", "ip")
DOCKERFILE = DEPLOY / "image" / "Dockerfile"
BASE = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)[-1]
NAME = "sadih-dask:tested"
SUITE = "bookworm"
LIBRARIES = (
    "ca-certificates,libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libreadline8,"
    "libsqlite3-0,libssl3,libuuid1,zlib1g"
)
"""What an interpreter that was built from source finds in the real base."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_SECONDS = 3600.0


def missing() -> str:
    """Why no image can be built here; nothing if one can."""
    if os.geteuid() != 0:
        return "buildah's chroot isolation needs root"
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        return f"no {', '.join(absent)} here: apt-get install buildah debootstrap iproute2"
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != SUITE:
        return f"the stand-in for the image's base is made on Debian {SUITE}"
    if interpreter() == Path("/usr"):
        return "the stand-in gets this machine's interpreter, which is not one by itself in /usr"
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
    if subprocess.run(apart, capture_output=True, check=False).returncode != 0:
        return "root may not make namespaces here"
    return ""


def call(*words: object) -> str:
    """Run a command that must succeed; return what it says."""
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Builder:
    """Images in a folder of their own."""

    folder: Path

    def buildah(self, *words: object) -> str:
        """Run buildah on the images of this folder."""
        places = (f"--root={self.folder}/storage", f"--runroot={self.folder}/state")
        return call("buildah", *places, *words)

    def build(self) -> dict[str, Any]:
        """Build the Dockerfile as it is; return the image's configuration."""
        if BASE not in self.buildah("images", "--format={{.Name}}:{{.Tag}}"):
            self._make_base()
        binds = [f"--volume={path}:{inside}:ro" for path, inside in pip_configuration().items()]
        how = ("--isolation=chroot", "--pull-never", "--format=docker", "--network=host")
        what = (f"--tag={NAME}", f"--file={DOCKERFILE}")
        self.buildah("build", *how, *binds, *what, ROOT)
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type=image", NAME))
        return dict(found["Docker"]["config"])

    def forget(self) -> None:
        """Remove the image; the stand-in for its base stays for the next time."""
        self.buildah("rmi", NAME)

    def _make_base(self) -> None:
        root, prefix = self.folder / "base", interpreter()
        shutil.rmtree(root, ignore_errors=True)
        how = ("--variant=minbase", f"--include={LIBRARIES}")
        call("debootstrap", *how, SUITE, root, apt_mirror())
        for folder in ("bin", "lib"):
            left_out = shutil.ignore_patterns("__pycache__", "*.a", "test", "site-packages")
            target = root / "usr" / "local" / folder
            shutil.copytree(
                prefix / folder, target, symlinks=True, ignore=left_out, dirs_exist_ok=True
            )
        (root / "usr/local/bin/python").unlink(missing_ok=True)
        (root / "usr/local/bin/python").symlink_to(f"python{interpreter_version(prefix)}")
        call("chroot", root, "ldconfig")
        made = self.buildah("from", "scratch")
        self.buildah("add", made, root, "/")
        path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.buildah("config", "--env", path, made)
        self.buildah("commit", made, BASE)
        self.buildah("rm", made)
        shutil.rmtree(root)

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        """The files of the image as a container has them."""
        made = self.buildah("from", "--pull-never", NAME)
        try:
            yield Path(self.buildah("mount", made))
        finally:
            self.buildah("rm", made)


def apt_mirror() -> str:
    """The mirror that this machine installs from."""
    found = re.findall(rf"^ *\d+ (\S+) {SUITE}/main ", call("apt-cache", "policy"), re.MULTILINE)
    return str(found[0])


def interpreter() -> Path:
    """The prefix of a Python of the base's version, else of the one that runs the tests."""
    version = re.findall(r"python:([\d.]+)", BASE)[0]
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python{version}"))
    return beside[-1].parents[1] if beside else Path(sys.base_prefix)


def interpreter_version(prefix: Path) -> str:
    """Major and minor version of an interpreter."""
    return call(
        prefix / "bin" / "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
    )


def pip_configuration() -> dict[Path, Path]:
    """Files and folders that pip is told of on this machine, and where they are in a build."""
    found = {CERTIFICATES: CERTIFICATES} if CERTIFICATES.exists() else {}
    said = call(sys.executable, "-m", "pip", "config", "debug")
    for text in re.findall(r"^  (/\S+), exists: True$", said, re.MULTILINE):
        path = Path(text)
        is_users = path.is_relative_to(Path.home())
        # Root's in a build, which is not the user's home here.
        found[path] = Path("/root") / path.relative_to(Path.home()) if is_users else path
        for folder in re.findall(r"(?:^|[\s=]|file://)(/[^\s'\"]+)", path.read_text()):
            local = Path(folder)
            if local.is_dir():
                found[local.parent if local.name == "simple" else local] = (
                    local.parent if local.name == "simple" else local
                )
    return found


@dataclass
class Sandbox:
    """Containers of one image beside each other, on a loopback of their own.

    Each sees the image read-only, and what is bound into it; it runs as its user without any right.
    """

    image: Path
    config: dict[str, Any]
    folder: Path
    started: list[tuple[Process, Path]]
    network: int = 0

    def start(
        self,
        words: list[str],
        binds: dict[str, Path],
        user: int = 10001,
        hosts: tuple[str, ...] = (),
        **environment: str,
    ) -> Process:
        """Start a container; ``binds`` are folders by their names inside."""
        number = len(self.started)
        root, log = self.folder / f"root-{number}", self.folder / f"log-{number}.txt"
        names = self.folder / f"hosts-{number}"
        root.mkdir()
        names.write_text(f"127.0.0.1 localhost {' '.join(hosts)}\n")
        script = [
            "mount --make-rprivate /",
            f"mount --bind {self.image} {root}",
            *(
                f"mount -t tmpfs -o mode=1777 none {root}/{name}"
                for name in ("tmp", "spill", "run")
            ),
            f"mount --bind {names} {root}/etc/hosts",
            f"mount -t proc none {root}/proc",
            f"mount --rbind /dev {root}/dev",
        ]
        for inside, outside in binds.items():
            # Mount points of a volume: a container engine makes them in its own layer.
            script += [f"mkdir -p {root}{inside}", f"mount --bind {outside} {root}{inside}"]
        script += [
            f"mount -o remount,ro,bind {root}",
            f"exec chroot {root} setpriv --reuid={user} --regid={user} --clear-groups "
            '--no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"',
        ]
        given = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        inside_words = ["env", "-i", "-C", self.config["WorkingDir"], *given]
        line = ["nsenter", f"--net=/proc/{self.network}/ns/net", "--"]
        line += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--"]
        line += ["sh", "-euc", "\n".join(script), "sh", *inside_words]
        line += [*self.config["Entrypoint"], *words]
        with log.open("wb") as file:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        self.started.append((process, log))
        return process

    def first_process(self, process: Process) -> psutil.Process:
        """Process 1 of a container."""
        return psutil.Process(process.pid).children()[0]

    def healthy(self, process: Process) -> bool:
        """What the image's health check says inside."""
        assert process.poll() is None, self.log(process)
        children = psutil.Process(process.pid).children()
        if not children or "chroot" in (name := children[0].name()) or name in ("sh", "unshare"):
            return False
        words = ["nsenter", f"--target={children[0].pid}", "--mount", "--pid", "--net", "--root"]
        words += ["--wd=/", "setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--"]
        asked = subprocess.run(
            [*words, "env", "-i", *self.config["Env"], *self.config["Healthcheck"]["Test"][1:]],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return asked.returncode == 0

    def until_healthy(self, process: Process) -> None:
        """Wait for a container as an engine does."""
        until(lambda: self.healthy(process), "the health of a container")

    def run(self, words: list[str], binds: dict[str, Path], **more: Any) -> tuple[int, str]:
        """Run a container to its end; return its exit code and what it said."""
        process = self.start(words, binds, **more)
        return process.wait(timeout=PATIENCE), self.log(process)

    def log(self, process: Process) -> str:
        """Everything that a container has said."""
        return next(log for one, log in self.started if one is process).read_text()


@contextmanager
def sandbox(image: Path, config: dict[str, Any], folder: Path) -> Iterator[Sandbox]:
    """A network with nothing but a loopback, and containers that are gone at the end."""
    words = ["unshare", "--net", "sh", "-euc", "ip link set lo up; echo up; exec sleep infinity"]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdout is not None
    found = Sandbox(image, config, folder, [], holder.pid)
    try:
        assert holder.stdout.readline() == b"up\n"
        yield found
    finally:
        end_groups([*(process for process, _ in found.started), holder])
        holder.stdout.close()
