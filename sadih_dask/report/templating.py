"""The templates of pages and cards. Everything that is filled in is escaped."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from sadih_dask.report import wording


@cache
def environment() -> Environment:
    """Return the one environment: escapes always, and refuses names that it does not know."""
    found = Environment(
        loader=PackageLoader("sadih_dask.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for filter_ in (wording.count, wording.duration, wording.score, wording.size, wording.value):
        found.filters[filter_.__name__] = filter_
    return found
