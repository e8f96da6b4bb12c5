"""Reading figures back: what an SVG document holds."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def parse(document: str) -> ET.Element:
    return ET.fromstring(document, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True)))


def texts(document: str) -> list[str]:
    """Text is outlined; each outline follows a comment with what it says."""
    comments = (e.text or "" for e in parse(document).iter() if e.tag is ET.Comment)
    return [_unescape(text.strip()) for text in comments]


def groups(document: str, pattern: str) -> list[ET.Element]:
    """Elements whose id matches as a whole."""
    return [e for e in parse(document).iter() if re.fullmatch(pattern, e.get("id", ""))]


def n_points(group: ET.Element) -> int:
    """Points of the longest path in a group."""
    paths = [e.get("d", "") for e in group.iter(f"{SVG}path")]
    return max((len(re.findall("[ML]", d)) for d in paths), default=0)


def _unescape(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
