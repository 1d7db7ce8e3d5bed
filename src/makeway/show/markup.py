"""Markup: words made safe for a page, and the few elements that every part of one is made of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NewType

ORIGINS = {
    "measured": "timed by makeway, in a run on real hardware",
    "imported": "read from a file or a publication",
    "predicted": "computed by a model; nothing ran",
}
Html = NewType("Html", str)  # markup that is safe as it is; all else goes through `text`


def text(words: object) -> Html:
    """Plain words as markup."""
    return Html(escape(str(words)))


def joined(*parts: Html) -> Html:
    return Html("".join(parts))


def badge(origin: str) -> Html:
    """Whether numbers were measured, imported or predicted: one look for each on every page."""
    meaning = ORIGINS.get(origin)
    kind, hint = (f" {origin}", f' title="{escape(meaning)}"') if meaning else ("", "")
    return Html(f'<span class="origin{kind}"{hint}>{escape(origin)}</span>')


def figure(name: str, caption: str, origin: str | None, body: Html, *, style: str = "") -> Html:
    """A figure below its caption."""
    title = escape(caption) + (f" {badge(origin)}" if origin else "")
    kind = f' class="{style}"' if style else ""
    return Html(f'<figure id="{escape(name)}"{kind}><figcaption>{title}</figcaption>{body}</figure>\n')


def notes(sentences: Sequence[str]) -> Html:
    """A list of sentences; nothing for none."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return Html(f'<ul class="notes">{items}</ul>' if items else "")


def legend(names: Sequence[tuple[str, str]]) -> Html:
    """What the colours stand for: (name, colour) pairs."""
    items = "".join(
        f'<li><span class="swatch" style="--colour: var(--{escape(colour)})"></span>{escape(name)}</li>'
        for name, colour in names
    )
    return Html(f'<ul class="legend">{items}</ul>')


def embedded(name: str, json_text: str) -> Html:
    """Data for the page's script. No text in it can end the element: "<" does not occur."""
    safe = json_text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Html(f'<script type="application/json" id="{escape(name)}">{safe}</script>\n')
