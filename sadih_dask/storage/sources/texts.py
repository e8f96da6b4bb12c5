"""Text cells of any stored form, as Python strings."""

from __future__ import annotations

from collections.abc import Callable

from sadih_dask.errors import FormatError
from sadih_dask.storage.sources.contract import Block

Where = Callable[[int], str]
"""Names the row of a value of a block, for a message."""


def texts_of(block: Block, where: Where) -> list[str]:
    """Return text without surrounding blanks; bytes must be UTF-8."""
    if block.dtype.kind != "S":
        return [str(text).strip() for text in block.tolist()]
    texts = []
    for position, raw in enumerate(block.tolist()):
        try:
            texts.append(raw.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{where(position)}: the text {raw[:20]!r} is not UTF-8. "
                "Save it as text in that encoding."
            ) from error
    return texts
