"""`Drawing`: a figure that can be written as SVG and PDF, the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from sadih_dask.errors import naming
from sadih_dask.report.figures.style import Width, styled
from sadih_dask.report.inline import inline_svg
from sadih_dask.report.palette import css_variables
from sadih_dask.report.templating import environment

Format = Literal["svg", "pdf"]
# Without these, matplotlib writes the time and its own version number.
_METADATA: dict[Format, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "sadih_dask"},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": "sadih_dask"},
}


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure and the words that belong to it.

    name     of its files, without extension
    heading  what it is called in a report
    caption  one sentence on how to read it
    alt      what it shows, for those who cannot see it
    paint    draws it in a given width
    wide     whether it needs the page; otherwise a column is enough
    """

    name: str
    heading: str
    caption: str
    alt: str
    paint: Callable[[Width], Figure]
    wide: bool = False

    def figure(self, width: Width | None = None) -> Figure:
        """Return the matplotlib figure, for those who want to change it."""
        with styled():
            return self.paint(width or self.natural_width)

    @property
    def natural_width(self) -> Width:
        """The width that it is drawn in unless another is asked for."""
        return "page" if self.wide else "column"

    def to_bytes(self, kind: Format, width: Width | None = None) -> bytes:
        """Return the figure as a file."""
        buffer = io.BytesIO()
        with styled():
            figure = self.paint(width or self.natural_width)
            figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
        return buffer.getvalue()

    def svg(self, width: Width | None = None) -> str:
        """Return the figure as an SVG document with outlined text."""
        return self.to_bytes("svg", width).decode("utf-8")

    def __repr__(self) -> str:
        return f"<Drawing {self.name}: {self.alt}>"

    def _repr_html_(self) -> str:
        """Show the figure in a notebook, in the colours of its theme."""
        document = self.svg()
        prefix = f"{self.name}-{sha256(document.encode()).hexdigest()[:8]}-"
        return (
            environment()
            .get_template("drawing.html")
            .render(
                picture=inline_svg(document, prefix, self.alt),
                alt=self.alt,
                wide=self.wide,
                light=css_variables(dark=False),
                dark=css_variables(dark=True),
            )
        )

    def save(
        self, folder: str | Path, formats: Sequence[Format] = ("svg", "pdf")
    ) -> tuple[Path, ...]:
        """Write ``NAME.svg`` and ``NAME.pdf`` into a folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        paths = tuple(target / f"{self.name}.{kind}" for kind in formats)
        for path, kind in zip(paths, formats, strict=True):
            with naming(path):
                path.write_bytes(self.to_bytes(kind))
        return paths
