#!/usr/bin/env python3
"""Whether what this container runs is well: ask a scheduler or worker, believe in anything else.

    sadih-healthcheck [PID | http://HOST:PORT]

The command line of process 1 (or PID) says the role. A scheduler and a worker answer on the
address that was given them as --dashboard-address, also with --no-dashboard; a process that hangs
does not. A run has no such door: it is well for as long as it lasts, and then its exit code counts.
With an address, wait until it answers: how a run begins that comes up together with its cluster.
"""

import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT = {"scheduler": "127.0.0.1:8787", "worker": "127.0.0.1:8788"}
"""Where the image's entry point lets them answer if they are not told."""
SECONDS = 5
PATIENCE = 600


def address_of(words: list[str]) -> str | None:
    """Where the process of this command line answers, if it does."""
    # Process 1 may be an init, whose words still have the names of Dask's Helm chart.
    plain = [
        part
        for word in words
        for part in (word.split("-") if word in ("dask-scheduler", "dask-worker") else [word])
    ]
    for number, word in enumerate(plain[:-1]):
        if Path(word).name == "dask" and plain[number + 1] in DEFAULT:
            role, flags = plain[number + 1], plain[number + 2 :]
            break
    else:
        return None
    given = DEFAULT[role]
    for number, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name == "--dashboard-address":
            given = value if equals else flags[number + 1]
    host, _, port = given.rpartition(":")
    everywhere = host in ("", "0.0.0.0")  # noqa: S104 (asked, not bound)
    return f"{'127.0.0.1' if everywhere else host}:{port}"


def trouble_at(address: str) -> str:
    """What is wrong with a door; nothing if it opens."""
    connection = HTTPConnection(address, timeout=SECONDS)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse().read()
        return "" if answer == b"ok" else f"answers {answer[:80]!r}"
    except (OSError, HTTPException) as error:
        return str(error)
    finally:
        connection.close()


def wait_for(address: str) -> str:
    """Ask again and again, as long as images may take to be pulled."""
    end = time.monotonic() + PATIENCE
    while (trouble := trouble_at(address)) and time.monotonic() < end:
        time.sleep(1)
    return trouble


def main() -> int:
    """Return 0 if all is well, and 1 with the reason if not."""
    asked = sys.argv[1] if len(sys.argv) > 1 else "1"
    if asked.startswith("http://"):
        address = urlsplit(asked).netloc
        trouble = wait_for(address)
    else:
        try:
            line = Path("/proc", asked, "cmdline").read_bytes()
        except OSError as error:
            print(f"process {asked}: {error.strerror}")
            return 1
        address = address_of(line.decode(errors="replace").rstrip("\0").split("\0")) or ""
        if not address:
            print("no scheduler or worker: nothing to ask")
            return 0
        trouble = trouble_at(address)
    print(f"{address}: {trouble or 'ok'}")
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
