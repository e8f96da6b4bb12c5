"""The colours of figures and pages, each for a light and for a dark background.

The series colours stay apart under the common colour-vision deficiencies and have a contrast of 3:1
or more against their background; they also differ in lightness, and figures never rely on colour
alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shade:
    """One role and its two colours. Pages know it as the CSS variable ``--sadih-NAME``."""

    name: str
    light: str
    dark: str

    @property
    def variable(self) -> str:
        """CSS for this colour: light where nobody sets the variable."""
        return f"var(--sadih-{self.name}, {self.light})"


INK = Shade("ink", "#1c1c21", "#ececf1")
MUTED = Shade("muted", "#5d5d67", "#a9a9b6")
GRID = Shade("grid", "#dddde3", "#3a3a44")
PAPER = Shade("paper", "#fefefe", "#17171c")
SERIES = (
    Shade("blue", "#08508c", "#5aa6f5"),
    Shade("vermilion", "#b83a07", "#ff7f41"),
    Shade("green", "#0a9b72", "#3ddba6"),
    Shade("pink", "#cf70bd", "#f2a3dd"),
    Shade("brown", "#452a12", "#c98a72"),
    Shade("gold", "#b09010", "#f2dc6d"),
)
BLUE, VERMILION, GREEN = SERIES[:3]
SHADES = (INK, MUTED, GRID, PAPER, *SERIES)


def css_variables(*, dark: bool) -> str:
    """Declarations that set every colour for one background."""
    return " ".join(f"--sadih-{s.name}: {s.dark if dark else s.light};" for s in SHADES)
