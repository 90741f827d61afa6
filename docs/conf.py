"""The documentation site: `make docs` builds it into out/site.

Pages are Markdown that reads on a code host as well; `_extensions/repository_links.py` leads links
that leave this folder to their pages of the site. Nothing is fetched from the network.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER / "_extensions"))
sys.path.insert(0, str(FOLDER.parent / "src"))

import vbreg  # noqa: E402

project = "vbreg"
author = "The vbreg authors"
version = release = vbreg.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "repository_links",
    "docstrings",
]
exclude_patterns = ["_extensions"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "attrs_block"]
nitpicky = True

html_theme = "furo"
html_title = "vbreg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#2c6ec8",  # the target's blue in every picture of ours
        "color-brand-content": "#2058a5",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8ab6f0",
        "color-brand-content": "#8ab6f0",
    },
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# --- the reference, from docstrings
default_role = "code"  # `x` in a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "show-inheritance": False,
    "exclude-members": "__new__, __init__, training",
}
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
# Names that have no page here: of other libraries, and of types that are written out elsewhere.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|scipy|nn|collections|contextlib|pathlib|os|typing|types)\..*"),
    ("py:.*", r"(Tensor|Module|ArrayLike|NDArray|Path|PathLike|Iterator|Iterable|Callable)$"),
    ("py:.*", r"(Mapping|Sequence|Any|Generator|vbreg\.training\.config\.[TM])$"),
    ("py:.*", r"(Float64|Float32|Bool|Int64|Points|Cloud|Ignore|IgnorePair|Descriptors)$"),
    ("py:.*", r"vbreg\.(backends\.neighbors\.Searchable|verification\.evidence\.\w+)$"),
    ("py:.*", r"(Viewpoint|Keypoints|Gravity|Clock|Colour|\w+Choice|\w+Name)$"),
]
