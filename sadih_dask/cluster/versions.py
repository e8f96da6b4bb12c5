"""Whether workers run the same versions as this process.

Other versions of the numerical libraries give other last bits, other versions of Dask or of this
package errors that are hard to understand.
"""

from __future__ import annotations

import logging
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sadih_dask.compute.remote import settle
from sadih_dask.errors import ClusterError

logger = logging.getLogger(__name__)

PACKAGES = ("sadih-dask", "numpy", "scipy", "dask", "distributed", "zarr", "numba", "scikit-learn")


def versions_here() -> dict[str, str]:
    """Versions of everything that takes part in the numbers, in this process."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a folder that was not installed
            found[package] = "unknown"
    return found


def check_versions(client: Any) -> None:
    """Warn of a scheduler or workers with other versions; refuse ones without this package."""
    here = versions_here()
    there = settle(client, client.run(versions_here, on_error="return", asynchronous=True))
    for address, found in {**there, "scheduler": settle(client, _of_scheduler(client))}.items():
        if isinstance(found, OSError):  # of the connection: it has died since; others come
            continue
        if isinstance(found, Exception):  # a plain one, whatever was raised there
            raise ClusterError(
                f"{_name(address)} cannot run sadih-dask ({found}); install version "
                f"{here['sadih-dask']} there"
            )
        other = [
            f"{name} {has} (here {here[name]})" for name, has in found.items() if has != here[name]
        ]
        if other:
            logger.warning(
                "%s has %s; results may differ in their last bits, or fail",
                _name(address),
                ", ".join(other),
            )


async def _of_scheduler(client: Any) -> dict[str, str] | Exception:
    try:
        found: dict[str, str] = await client.run_on_scheduler(versions_here, asynchronous=True)
    except OSError:  # of the connection
        raise
    except Exception as error:
        return error
    return found


def _name(address: str) -> str:
    return "the scheduler" if address == "scheduler" else f"the worker at {address}"
