"""Where a report comes from: the last section of each."""

from __future__ import annotations

from collections.abc import Sequence

from makeway import __version__
from makeway.show.blocks import Block, Facts, Notes, Section


def provenance(
    arguments: str, *, numbers: str, facts: Sequence[tuple[str, str]] = (), notes: Sequence[str] = ()
) -> Section:
    """The command, the version, where the numbers come from, and what else a reader may ask."""
    pairs = (("command", arguments), ("makeway", __version__), ("numbers", numbers), *facts)
    blocks: tuple[Block, ...] = (Facts(pairs=pairs, code=("command",)), Notes(sentences=tuple(notes)))
    return Section(name="provenance", title="Provenance", blocks=blocks, detail=True)
