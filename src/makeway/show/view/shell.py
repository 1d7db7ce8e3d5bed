"""The live page itself: a form, places for answers, and its scripts. It is one file and loads nothing."""

from __future__ import annotations

import json
from html import escape

import msgspec

from makeway.model.presets import preset_names, preset_summary
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.show.markup import Html, embedded
from makeway.show.page import asset
from makeway.show.view.question import Question
from makeway.values.device import known_devices

# Only the page's own script and style run, and it talks to its own server alone; style attributes draw bars.
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src-elem 'nonce-{nonce}'; style-src-attr 'unsafe-inline'; "
    "connect-src 'self'; frame-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FIRST = Question(workload="gemm-ar", device="H100-SXM5-80GB")
_USUAL = 100 * BLOCK_SPREAD
_COPY_ENGINES = ("parallel-copy", "broadcast", "one-engine", "swap")
_COMPRESSIONS = ("bf16", "fp16", "powersgd", "topk")


def shell(first: Question | None, *, nonce: str) -> str:
    """The page; `first` is what its form shows at the start."""
    start = embedded("first", json.dumps(msgspec.to_builtins(first or FIRST)))
    scripts = "".join(asset(name) for name in ("page.js", "timeline.js", "room.js", "view.js"))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f'<title>makeway view</title>\n<style nonce="{nonce}">\n{asset("page.css")}{asset("view.css")}</style>\n'
        "</head>\n"
        f'<body class="live">\n{_HEADER}<main>\n<div id="explore" role="tabpanel" aria-label="explore">\n'
        f"{_form()}{_ANSWER}</div>\n"
        '<div id="opened" hidden></div>\n</main>\n<div id="tip" role="status" hidden></div>\n'
        f'{start}<script nonce="{nonce}">\n{scripts}</script>\n</body>\n</html>\n'
    )


_HEADER = """<header><div class="top"><strong>makeway view</strong>
<span id="mini" aria-hidden="true"></span> <span class="soft" id="server" role="status">connected</span></div>
<div class="tabs" role="tablist" aria-label="what to look at">
<button type="button" class="plain" role="tab" id="tab-explore" aria-controls="explore" aria-selected="true">
Explore</button>
</div>
<div id="drop" class="drop">Drop traces, a plan or a result anywhere on this page, or
<label class="file"><input type="file" id="files" multiple> <span>choose files</span></label>.
<span class="soft">Several at once are the ranks of one run. They stay on this machine.</span>
<ul id="sending" class="notes"></ul><div id="jobs" class="acts"></div></div></header>
"""

_ANSWER = """<section id="answer" aria-label="answer">
<div class="over"><span id="stage" role="status" class="stage">asking</span> <span id="took" class="soft"></span></div>
<h1 id="headline">...</h1><div id="lead"></div>
<p id="problem" class="problem" role="alert" hidden></p>
<div id="figures" class="figures"></div>
<div id="sections"></div>
<section id="again" hidden><h2>The same elsewhere</h2>
<p>These digits come from <code>simulate</code>. The same on the command line:</p>
<p><code id="command"></code></p>
<p><button type="button" class="plain" id="copy">copy the command</button>
<button type="button" class="plain" id="save">save as JSON</button></p></section>
</section>
"""


# --- the form --------------------------------------------------------------------------------------


def _form() -> Html:
    devices = [(device.name, device.name) for device in known_devices().devices if device.limits is not None]
    presets = [(name, f"{name}: {preset_summary(name)}") for name in preset_names()]
    return Html(
        '<form id="form" aria-label="what to simulate" autocomplete="off">'
        + _group(
            "What runs",
            _select("workload", "workload", presets)
            + _select("device", "device", devices)
            + _range("ranks", "GPUs", 0, 64, 2, "as the preset"),
        )
        + _group(
            "Controls",
            _range("pad", "pad per block", 0, 0, 128, "none")
            + _box("priority", "comm at high priority")
            + _box("comm-first", "comm launched first")
            + _range("comm-blocks", "comm blocks", 0, 64, 1, "the library's")
            + _select("comm-threads", "comm threads", [("", "the library's")])
            + _range("partition", "SMs for comm", 0, 64, 1, "none")
            + _select("copy-engine", "copy engines", [("", "off"), *((name, name) for name in _COPY_ENGINES)])
            + _box("prelaunch", "copies prelaunched")
            + _range("chunks", "pieces", 1, 16, 1, "whole")
            + _text("tile", "tile", "64x64x32")
            + _select("compress", "compress (lossy)", [("", "off"), *((name, name) for name in _COMPRESSIONS)])
            + '<div id="others" class="others"></div>',
        )
        + _group(
            "The GEMM's block",
            _range("threads", "threads", 32, 1024, 32, "")
            + _range("registers", "registers", 16, 255, 1, "")
            + _range("smem", "shared memory", 0, 232448, 1024, ""),
        )
        + _group(
            "Unknowns of the hardware",
            _range("jitter", "spread of block times", 0, 40, 1, f"{_USUAL:g} %, as evidenced", usual=_USUAL)
            + _select("dispatch", "dispatch policy", [("", "the vendor's"), *((name, name) for name in DISPATCHES)])
            + _select("hbm", "HBM is shared", [(name, name) for name in HBM_POLICIES])
            + _range("skew", "last rank late by", 0, 1000, 10, "not at all"),
        )
        + '<div class="acts"><button type="button" class="plain" id="reset">no controls</button>'
        '<button type="button" class="plain" id="find">find a plan</button></div>'
        "</form>\n"
    )


def _group(title: str, fields: str) -> str:
    return f'<details class="group" open><summary>{escape(title)}</summary><div class="fields">{fields}</div></details>'


def _range(name: str, label: str, low: int, high: int, step: int, at_rest: str, *, usual: float | None = None) -> str:
    """A slider; at its least value, or at its usual one, it shows `at_rest` and asks for nothing."""
    start = low if usual is None else usual
    return (
        f'<label for="f-{name}">{escape(label)}</label>'
        f'<input type="range" id="f-{name}" name="{name}" min="{low}" max="{high}" step="{step}" value="{start:g}" '
        f'data-usual="{start:g}" data-rest="{escape(at_rest)}"><output for="f-{name}"></output>'
    )


def _select(name: str, label: str, options: list[tuple[str, str]]) -> str:
    rows = "".join(f'<option value="{escape(value)}">{escape(title)}</option>' for value, title in options)
    return (
        f'<label for="f-{name}">{escape(label)}</label><select id="f-{name}" name="{name}" class="long">{rows}</select>'
    )


def _box(name: str, label: str) -> str:
    return f'<label class="box"><input type="checkbox" id="f-{name}" name="{name}"> {escape(label)}</label>'


def _text(name: str, label: str, example: str) -> str:
    return (
        f'<label for="f-{name}">{escape(label)}</label><input type="text" id="f-{name}" name="{name}" class="long" '
        f'placeholder="{escape(example)}" spellcheck="false" maxlength="40">'
    )
