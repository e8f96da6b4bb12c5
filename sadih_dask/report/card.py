"""The form of a card: a heading, facts, a table, small pictures, a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from sadih_dask.report.templating import environment

SHOWN_NAMES = 8


def card(
    name: str,
    about: str,
    facts: Mapping[str, object],
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[object]] = (),
    *,
    pictures: Sequence[Markup] = (),
    note: str = "",
) -> str:
    """Return a card as HTML; everything but pictures is escaped."""
    return (
        environment()
        .get_template("card.html")
        .render(
            name=name,
            about=about,
            facts=facts,
            columns=columns,
            rows=rows,
            pictures=pictures,
            note=note,
        )
    )


def listed(names: Sequence[object] | np.ndarray[Any, Any]) -> str:
    """Return the first names of many."""
    shown = ", ".join(str(name) for name in names[:SHOWN_NAMES])
    rest = len(names) - SHOWN_NAMES
    return f"{shown} and {rest:,} more" if rest > 0 else shown
