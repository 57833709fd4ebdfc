"""The files of the page, read once and compressed once."""

from __future__ import annotations

import gzip
from importlib.resources import files

import msgspec

#: The files that the page loads, with their kinds. Nothing else is served.
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Scripts that define a name each, and are no modules.
SCRIPTS = ("vendor/uplot.min.js", "vendor/dagre.min.js")
STYLES = ("vendor/uplot.min.css", "page.css")
#: The modules of the page, each after those that it imports.
MODULES = (
    "dom.js",
    "texts.js",
    "definitions.js",
    "parts.js",
    "charts.js",
    "drawing.js",
    "views.js",
    "app.js",
)
PAGE = "index.html"


class Asset(msgspec.Struct, frozen=True):
    """A file of the page.

    Attributes:
        kind: its media type.
        data: its content.
        packed: the same, compressed by gzip.
    """

    kind: str
    data: bytes
    packed: bytes


def assets() -> dict[str, Asset]:
    """Return the files of the page by their paths."""
    names = [PAGE, "icon.svg", *STYLES, *SCRIPTS, *MODULES]
    return {name: _asset(name) for name in names}


def _asset(name: str) -> Asset:
    data = files("headrace.observe.web").joinpath("static", *name.split("/")).read_bytes()
    return Asset(KINDS[f".{name.rpartition('.')[2]}"], data, gzip.compress(data, mtime=0))
