"""A report in pieces that the live page exchanges one by one."""

from __future__ import annotations

import json as plain_json
from html import escape
from typing import Any

from makeway.model.simulate.predict import Prediction
from makeway.show.blocks import Lines, Report, Section
from makeway.show.json import json
from makeway.show.markup import badge, joined, text
from makeway.show.numbers import percent, time_text
from makeway.show.page import block_view
from makeway.show.timeline_view import timeline_view


def fragments(report: Report, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The headline and each section as markup, and the document of `--json`."""
    return {
        "headline": joined(text(report.headline.sentence), text(" "), badge(report.headline.origin)),
        "lead": "".join(f"<p>{escape(words.text)}</p>" for words in report.lead),
        "notes": list(report.notes),
        "sections": [_section(part) for part in report.sections if part.name not in without],
        "document": plain_json.loads(json(report)),
    }


def _section(part: Section) -> dict[str, str]:
    views = {
        block.name: timeline_view(block.ranks, name=block.name) for block in part.blocks if isinstance(block, Lines)
    }
    markup = "".join(block_view(block, views) for block in part.blocks)
    return {"name": part.name, "title": part.title, "html": markup}


def figures(prediction: Prediction) -> list[dict[str, str]]:
    """The figures that the page shows large: name, value, and what to compare it with."""
    naive, share, rate = prediction.t_naive_ns, prediction.share_of_ideal, prediction.overlap_rate
    change = "" if naive is None or not prediction.controls else percent(100 * (prediction.t_ns / naive - 1), "+.1f")
    return [
        {
            "name": "time",
            "value": time_text(prediction.t_ns),
            "beside": f"{change} against no controls" if change else "without controls",
        },
        {
            "name": "share of ideal",
            "value": "–" if share is None else percent(100 * share),
            "beside": f"ideal {time_text(prediction.ideal_ns)}, sequential {time_text(prediction.t_sequential_ns)}",
        },
        {
            "name": "comm beside compute",
            "value": "–" if rate is None else percent(100 * rate),
            "beside": f"of {time_text(prediction.t_comm_ns)} alone",
        },
    ]
