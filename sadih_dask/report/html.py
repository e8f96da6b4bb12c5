"""What pages, cards and figures share: colours, numbers as people read them, templates, pictures.

Every role has a colour for a light and one for a dark background. The series colours stay apart
under the common colour-vision deficiencies and have a contrast of 3:1 or more against their
background; they also differ in lightness, and figures never rely on colour alone. Whatever is
filled into a template is escaped. A figure in a page brings no ids that clash, no rules that leak.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


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


def count(number: int) -> str:
    """Write 1,797."""
    return f"{number:,}"


def score(number: float | None) -> str:
    """Write a share with four digits, or a dash where there is none."""
    return "\N{EN DASH}" if number is None or not math.isfinite(number) else f"{number:.4f}"


def duration(seconds: float) -> str:
    """Write 2.3 s, 4 min 05 s or 3 h 12 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(n_bytes: int) -> str:
    """Write 12 bytes, 3.4 KiB, 5.6 GiB."""
    if n_bytes < 1024:
        return f"{n_bytes} bytes"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(n_bytes * 1.00005, 1024)), len(units))
    return f"{n_bytes / 1024**power:.1f} {units[power - 1]}"


def value(thing: object) -> str:
    """Write any value of a parameter or fact."""
    if isinstance(thing, bool) or thing is None:
        return str(thing)
    if isinstance(thing, int):
        return count(thing)
    if isinstance(thing, float):
        return f"{thing:.6g}"
    return str(thing)


def fill(template: str, **values: object) -> str:
    """Fill a template; it is an error if a name in it has no value."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("sadih_dask.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {words.__name__: words for words in (count, duration, score, size, value)}
    found.globals |= {"light": css_variables(dark=False), "dark": css_variables(dark=True)}
    return found


SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
_HREF = f"{{{XLINK}}}href"
_COLOURS = {shade.light: shade.variable for shade in SHADES}
_HEX = re.compile(r"#[0-9a-f]{6}\b")
_URL = re.compile(r"url\(#([^)]+)\)")


def inline_svg(document: str, prefix: str, label: str) -> Markup:
    """Turn an SVG document into an element of a page.

    Every id gets the prefix; the document's style sheet, which would hold for the whole page, moves
    into the root element; palette colours become CSS variables, so that a page can show the figure
    in the dark; the size comes from the page. ``label`` says what the figure shows.
    """
    root = ET.fromstring(document)  # noqa: S314 - our own drawing
    for element in list(root.iter()):
        for child in element.findall(f"{{{SVG}}}metadata") + element.findall(f"{{{SVG}}}style"):
            element.remove(child)
    seen = set()
    for element in root.iter():
        # A picture that is there twice has one id, made of its bytes.
        if element.get("id", "") in seen:
            del element.attrib["id"]
        seen.add(element.get("id"))
        _rewrite(element, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("style", "stroke-linejoin: round")
    # As HTML reads it: no prefix for SVG, ``xlink`` for links.
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    found = ET.tostring(root, encoding="unicode")
    return Markup(found)  # noqa: S704 - serialised from a parsed tree: text is escaped


def _rewrite(element: ET.Element, prefix: str) -> None:
    for name, text in element.attrib.items():
        if name == "id":
            element.set(name, prefix + text)
        elif name in (_HREF, "href"):
            if text.startswith("#"):
                element.set(name, f"#{prefix}{text[1:]}")
        elif "#" in text:
            coloured = _HEX.sub(lambda m: _COLOURS.get(m[0], m[0]), text)
            element.set(name, _URL.sub(rf"url(#{prefix}\1)", coloured))
