"""How Sphinx makes the site: `make docs`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
import reference

project = "mpsfunc"
author = "the founders of mpsfunc"
release = version = importlib.metadata.version("mpsfunc")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True

autodoc_typehints = "none"  # the docstrings say what arguments are
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


def fill_reference(app: Sphinx, page: str, text: list[str]) -> None:
    """Puts the names of a family where a page of the reference asks for them."""
    text[0] = reference.filled(text[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", fill_reference)
