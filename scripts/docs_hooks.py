"""A hook of MkDocs: a link to a file outside docs/ becomes plain text, since the site holds only docs/.

In the repository such links work, and tests/unit/test_docs.py checks them.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as MkDocs should read it."""
    folder = PurePosixPath(page.file.src_uri).parent
    return _LINK.sub(lambda link: link[1] if normpath(str(folder / link[2])).startswith("..") else link[0], markdown)
