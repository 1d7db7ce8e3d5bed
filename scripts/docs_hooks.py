"""What MkDocs does besides: a link to a file outside docs/ becomes plain words, since a site has only docs/.

In the repository such links work, and tests/unit/test_docs.py checks that they lead somewhere.
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
