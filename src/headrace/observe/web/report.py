"""A report: the page with its data in one file, to be sent on or kept. It needs no server."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from typing import Any

import msgspec

from headrace.errors.printable import json_printable
from headrace.observe.history import History
from headrace.observe.plain import with_null_times
from headrace.observe.watching import Sight
from headrace.observe.web.assets import MODULES, SCRIPTS, STYLES, assets
from headrace.observe.web.pages import live_of, parts_of

_IMPORT = re.compile(r"^import \{[^}]*\} from \"[^\"]+\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def report_of(sight: Sight) -> str:
    """Return the page of a pipeline as one file of HTML.

    Args:
        sight: a look at its storage.

    Returns:
        the file. It loads nothing, and runs no script but its own.
    """
    data = _data(sight)
    found = {name: asset.data.decode() for name, asset in assets().items()}
    scripts = [found[name] for name in SCRIPTS] + [_bundle({n: found[n] for n in MODULES})]
    styles = [found[name] for name in STYLES]
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = f"{sight.reading.pipeline}, step {_step(sight)}"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{html.escape(title)}</title>",
            *(f"<style>{style}</style>" for style in styles),
            '</head>\n<body>\n<a class="skip" href="#main">Skip to the view</a>',
            '<div id="app"></div>\n<div id="tip" role="tooltip" hidden></div>',
            f'<script type="application/json" id="data">{data}</script>',
            *(f"<script>{script}</script>" for script in scripts[:-1]),
            f'<script type="module">{scripts[-1]}</script>',
            "</body>\n</html>\n",
        ]
    )


def _data(sight: Sight) -> str:
    """Return what the page shows as JSON that cannot end the element that holds it."""
    history = History()
    if sight.seen is not None:
        history.note(sight.seen.window, sight.seen.states)
    facts: dict[str, Any] = {
        "made_s": sight.now_us / 1e6,
        "live": live_of(sight, sight.reading),
        "moments": list(history),
        "parts": {} if sight.seen is None else parts_of(sight.seen, sight.now_us),
    }
    text = json_printable(msgspec.json.encode(with_null_times(facts)).decode())
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _bundle(modules: dict[str, str]) -> str:
    """Return modules as one, each after those that it imports."""
    return "".join(_EXPORT.sub("", _IMPORT.sub("", code)) for code in modules.values())


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _step(sight: Sight) -> str:
    picture = sight.reading.picture
    return "-" if picture is None else str(picture.step)
