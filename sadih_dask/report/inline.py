"""Figures inside a page: no ids that clash, no rules that leak, colours that follow the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from markupsafe import Markup

from sadih_dask.errors import FormatError
from sadih_dask.report.palette import SHADES

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
_HREF = f"{{{XLINK}}}href"
_DROPPED = frozenset([f"{{{SVG}}}metadata", f"{{{SVG}}}style"])
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
    if root.tag != f"{{{SVG}}}svg" or "viewBox" not in root.attrib:
        raise FormatError("a figure must be an SVG document with a viewBox")
    _drop(root)
    for element in root.iter():
        _rewrite(element, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("style", "stroke-linejoin: round")
    return Markup(_serialise(root))  # noqa: S704 - serialised from a parsed tree: text is escaped


def _drop(element: ET.Element) -> None:
    for child in list(element):
        if child.tag in _DROPPED:
            element.remove(child)
        else:
            _drop(child)


def _rewrite(element: ET.Element, prefix: str) -> None:
    for name, value in element.attrib.items():
        if name == "id":
            element.set(name, prefix + value)
        elif name in (_HREF, "href"):
            if value.startswith("#"):
                element.set(name, f"#{prefix}{value[1:]}")
        elif "url(#" in value or "#" in value:
            coloured = _HEX.sub(lambda m: _COLOURS.get(m[0], m[0]), value)
            element.set(name, _URL.sub(rf"url(#{prefix}\1)", coloured))


def _serialise(root: ET.Element) -> str:
    """Write the tree as HTML reads it: no prefix for SVG, ``xlink`` for links."""
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    return ET.tostring(root, encoding="unicode")
