"""Settings of the documentation site; `make docs` builds it."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

project = "Headrace"
author = "The Headrace authors"
copyright = "Apache License 2.0"
release = version = version_of("headrace")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
# The source directory is the repository's root, so that pages can link to its other files.
root_doc = "docs/index"
include_patterns = [
    "docs/**", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "tests/README.md",
]  # fmt: skip
exclude_patterns = ["docs/README.md", "docs/conf.py"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = "Headrace"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = "$ "
