"""Reports to look at, of real digits and with hostile names, and reading figures back."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sadih_dask import SADIH, FeatureStore
from sadih_dask.jobs.evaluate import Collection, look_closer, measure
from sadih_dask.report import figures
from sadih_dask.report.page import Retrieval, drawings, render
from tests.support.models import GIVEN

LENGTHS = (8, 16, 32, 64)
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=http://evil.example/x onerror=alert(1)>',
    "'; background: url(http://evil.example/)",
    "{{ 7 * 7 }}",
    "</style></title><b>",
)
SVG = "{http://www.w3.org/2000/svg}"


@cache
def digits() -> Retrieval:
    """A model of the digits, and everything that a report shows of it at every length."""
    data = load_digits()
    halves = train_test_split(
        np.arange(len(data.target)), test_size=0.2, stratify=data.target, random_state=0
    )
    pictures = (data.images * 255 / 16).astype(np.uint8)
    with TemporaryDirectory() as folder:
        database, queries = (
            FeatureStore.create(
                Path(folder) / name, data.data[rows], data.target[rows], thumbnails=pictures[rows]
            )
            for name, rows in zip(("database", "queries"), halves, strict=True)
        )
        model = SADIH(n_bits=LENGTHS[-1], anchors=300, **GIVEN).fit(database)
        rows = Collection(queries, database)
        return look_closer(model, rows, measure(model, rows, LENGTHS).lengths)


STARTED = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def digits_report(files: Mapping[Path, str] = MappingProxyType({})) -> str:
    """The report of that run, with every figure there is."""
    data = {"source": "scikit-learn, load_digits"}
    drawn = list(drawings(digits()))
    return render(
        "Handwritten digits", digits(), drawn, data=data, files=files, started=STARTED, seconds=12.3
    )


def hostile_report() -> str:
    """Every text that others may choose, chosen to do harm."""
    x = np.array([8.0, 16.0])
    lines = [figures.Curve(name, x, np.array([0.5, 0.6]), name) for name in HOSTILE]
    return render(
        HOSTILE[0],
        replace(digits(), classes=HOSTILE),
        [figures.map_against_bits(lines)],
        data={name: name for name in HOSTILE},
        files={Path(name + "\udc80"): name for name in HOSTILE},
        started=STARTED,
        seconds=0.0,
    )


def parse(document: str) -> ET.Element:
    return ET.fromstring(document, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True)))


def texts(document: str) -> list[str]:
    """What a figure says: text is outlined, and each outline follows a comment with it."""
    comments = (e.text or "" for e in parse(document).iter() if e.tag is ET.Comment)
    return [_unescape(text.strip()) for text in comments]


def groups(document: str, pattern: str) -> list[ET.Element]:
    """Elements of a figure whose id matches as a whole."""
    return [e for e in parse(document).iter() if re.fullmatch(pattern, e.get("id", ""))]


def n_points(group: ET.Element) -> int:
    """Points of the longest path in a group."""
    paths = [e.get("d", "") for e in group.iter(f"{SVG}path")]
    return max((len(re.findall("[ML]", d)) for d in paths), default=0)


def _unescape(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
