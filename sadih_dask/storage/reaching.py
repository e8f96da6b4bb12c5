"""Errors of client libraries, of which the system knows nothing, with the name of the place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_CLIENTS = frozenset(["botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs"])


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn what a client library raises, such as missing credentials, into a ConnectionError."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS or isinstance(error, OSError):
            raise
        raise ConnectionError(
            f"{url} cannot be reached: {error}. Address and credentials come from the environment: "
            "for s3://, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"
        ) from error
