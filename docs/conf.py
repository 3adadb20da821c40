"""How Sphinx makes the site: `make docs`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

sys.path.insert(0, str(Path(__file__).parent))
import reference

project = "mpsfunc"
author = "the founders of mpsfunc"
release = version = importlib.metadata.version("mpsfunc")

extensions = [
    *("myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"),
    *("sphinx_copybutton", "sphinx_design"),
]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 85
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Fields", "params_style")]
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

default_role = "py:obj"

html_theme = "furo"
html_title = f"mpsfunc {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]


def fill_reference(app: Sphinx, page: str, text: list[str]) -> None:
    """Puts the names of a family where a page of the reference asks for them."""
    text[0] = reference.filled(text[0])


def refuse_a_dead_link(app: Sphinx, env: Any, node: Any, text: Any) -> None:
    """Of the table of all functions each name leads to its entry."""
    if node.get("refdoc") == "functions":
        getLogger(__name__).warning("docs/functions.md: no entry for %s", node["reftarget"])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("missing-reference", refuse_a_dead_link)
    app.connect("source-read", fill_reference)
