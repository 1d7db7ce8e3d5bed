"""One SM as a page draws it: what compute blocks and a collective's block take, under a pad that can be moved."""

from __future__ import annotations

from dataclasses import asdict
from html import escape

import msgspec

from makeway.show.blocks import Room
from makeway.show.markup import Html, badge, embedded, legend


def room_view(room: Room) -> Html:
    """The picture of an SM; the script redraws it from the numbers in the page as the pad moves."""
    data = {
        "sm": asdict(room.sm),
        "compute": asdict(room.compute),
        "comm": asdict(room.comm) if room.comm is not None else None,
    }
    title = f"One SM of {room.device}: {room.compute_name}" + (f" and {room.comm_name}" if room.comm_name else "")
    marks = [(0, "no pad"), *([(room.pad_bytes, f"as planned: {room.pad_bytes:,} B")] if room.pad_bytes else [])]
    buttons = "".join(
        f'<button type="button" class="plain" data-pad="{pad}">{escape(label)}</button>' for pad, label in marks
    )
    colours = [("compute block", "compute"), ("the collective's block", "comm"), ("does not fit", "exposed")]
    return Html(
        f'<figure class="room" id="{escape(room.name)}" data-room="{escape(room.name)}-data">'
        f"<figcaption>{escape(title)} {badge('predicted')}</figcaption>"
        f"{legend(colours if room.comm else colours[:1])}"
        f'<div class="room-bars"></div><div class="tools"><label>pad per compute block '
        f'<input type="range" min="0" max="{room.most_pad_bytes}" step="{room.sm.smem_unit_bytes}" '
        f'value="{room.pad_bytes}" data-start="{room.pad_bytes}">'
        f'</label>{buttons}</div><output aria-live="polite"></output>'
        "<noscript><p>The picture is drawn by a script, and scripts are off.</p></noscript></figure>\n"
        f"{embedded(f'{room.name}-data', msgspec.json.encode(data).decode())}"
    )
