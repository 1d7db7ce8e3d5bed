"""Layouts in one word, as the command line takes them and reports print them: "tp=8,pp=4,dp=32,mbs=1,gbs=512"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from makeway.values.control import method_word
from makeway.values.errors import InputError, suggestion
from makeway.values.layout import Compression, CompressionKind, Layout
from makeway.values.units import MIB, parse_bytes

_COUNTS = {
    "tp": "tp", "cp": "cp", "ep": "ep", "pp": "pp", "vp": "vp", "dp": "dp", "mbs": "micro_batch", "gbs": "global_batch",
    "shard-group": "shard_group",
}  # fmt: skip
_CHOICES = ("sharding", "recompute", "schedule", "precision", "gradients", "dispatcher")
_OVERLAPS = ("dp", "tp", "pp", "ep")
_FLAGS = ("sp", "graphs", "adapters")
_KEYS = (*_COUNTS, *_CHOICES, *_FLAGS, "overlap", "bucket", "compression", "stages")
_EXAMPLE = "tp=8,pp=4,dp=32,mbs=1,gbs=512,recompute=selective,schedule=interleaved,vp=2,sp"
_MOST_DIGITS = 9
_BUCKET_BYTES = Layout().bucket_bytes


def parse_layout(text: str, *, gpus: int | None = None, global_batch: int | None = None) -> Layout:
    """The layout that a word describes.

    With `gpus`, dp follows from the rest, and one that is given must agree; `global_batch` fills in for gbs.
    """
    fields: dict[str, Any] = {}
    for item in text.split(","):
        key, _, value = item.strip().partition("=")
        if key not in _KEYS:
            raise InputError(
                f"unknown part {item.strip()!r} of a layout{suggestion(key, _KEYS)}\n"
                f"Known: {', '.join(_KEYS)}. Write for example {_EXAMPLE}"
            )
        changes = _parsed(key, value)
        if repeated := set(changes) & set(fields):
            raise InputError(f"the layout sets {min(repeated).replace('_', ' ')} twice; keep one")
        fields |= changes
    inside = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    if gpus is not None:
        fields["dp"] = _replicas(gpus, inside, fields.get("dp"))
    if "global_batch" not in fields:
        fields["global_batch"] = global_batch or fields.get("dp", 1) * fields.get("micro_batch", 1)
    if fields.get("vp", 1) > 1 and "schedule" not in fields:
        fields["schedule"] = "interleaved"
    return Layout(**fields)


def _replicas(gpus: int, inside: int, asked: int | None) -> int:
    if asked is not None and asked * inside != gpus:
        raise InputError(
            f"tp x cp x pp x dp = {asked * inside:,} GPUs, but --gpus is {gpus:,}; leave dp out, or give --gpus "
            f"{asked * inside:,}"
        )
    if gpus % inside:
        below, above = gpus // inside * inside, (gpus // inside + 1) * inside
        nearest = f"{above:,} GPUs" if not below else f"{below:,} or {above:,} GPUs"
        raise InputError(
            f"{gpus:,} GPUs do not divide by tp x cp x pp = {inside:,}; take {nearest}, or a product that divides "
            f"{gpus:,}"
        )
    return gpus // inside


def _parsed(key: str, value: str) -> dict[str, Any]:
    """The fields of a layout that one part sets."""
    if key in _COUNTS:
        return {_COUNTS[key]: _count(key, value)}
    if key in _CHOICES:
        return {key: value}
    if key in _FLAGS:
        return {key: _switch(key, value)}
    if key == "bucket":
        return {"bucket_bytes": parse_bytes(value)}
    if key == "compression":
        return {"compression": parse_compression(value)}
    if key == "stages":
        return {"stage_layers": tuple(_count(key, part) for part in value.split("+"))}
    parts = [] if value == "none" else value.split("+")
    if wrong := [part for part in parts if part not in _OVERLAPS]:
        raise InputError(f"overlap={value}: {wrong[0]!r} is not one of {', '.join(_OVERLAPS)}; write overlap=dp+tp")
    return {f"overlap_{part}": part in parts for part in _OVERLAPS}


def _count(key: str, value: str) -> int:
    if not value.isdecimal() or len(value) > _MOST_DIGITS or int(value) < 1:
        raise InputError(f"{key} takes a whole number of 1 or more, got {value!r}; write for example {_EXAMPLE}")
    return int(value)


def _switch(key: str, value: str) -> bool:
    if value not in ("", "on", "off"):
        raise InputError(f"{key} is on or off, got {value!r}; write {key}, {key}=on or {key}=off")
    return value != "off"


def parse_compression(text: str) -> Compression:
    """The compression that "fp8", "powersgd:8" or "topk:0.001" names."""
    word, _, value = text.partition(":")
    kind = method_word(word)
    if kind not in get_args(CompressionKind):
        raise InputError(
            f"unknown compression {kind!r}{suggestion(kind, get_args(CompressionKind))}\n"
            f"Known: {', '.join(get_args(CompressionKind))}; powersgd:4 is rank 4, topk:0.01 sends 1 % of the elements"
        )
    if not value:
        return Compression(kind=kind)  # type: ignore[arg-type]
    if kind == "powersgd":
        return Compression(kind="powersgd", rank=_count("powersgd", value))
    if kind != "topk":
        raise InputError(f"compression {kind} takes no value, got {value!r}")
    try:
        return Compression(kind="topk", share=float(value))
    except ValueError:
        raise InputError(f"topk takes the share of elements that is sent, such as 0.01, got {value!r}") from None


# --- and back --------------------------------------------------------------------------------------


def layout_word(layout: Layout) -> str:
    """The word that describes a layout; `parse_layout` reads it back. Defaults are left out."""
    default = Layout()
    counts = {key: getattr(layout, field) for key, field in _COUNTS.items()}
    parts = [f"{key}={value}" for key, value in counts.items() if value not in (None, 1) or key in _ALWAYS]
    shown: Mapping[str, Callable[[], str | None]] = {
        "sp": lambda: "sp" if layout.sp else None,
        "choices": lambda: ",".join(
            f"{key}={getattr(layout, key)}" for key in _CHOICES if getattr(layout, key) != getattr(default, key)
        ),
        "overlap": lambda: _overlap_word(layout, default),
        "graphs": lambda: "graphs" if layout.graphs else None,
        "adapters": lambda: "adapters" if layout.adapters else None,
        "bucket": lambda: None if layout.bucket_bytes == _BUCKET_BYTES else f"bucket={_size_word(layout.bucket_bytes)}",
        "compression": lambda: f"compression={compression_word(layout.compression)}" if layout.compression else None,
        "stages": lambda: f"stages={'+'.join(map(str, layout.stage_layers))}" if layout.stage_layers else None,
    }
    return ",".join([*parts, *(text for make in shown.values() if (text := make()))])


_ALWAYS = ("tp", "pp", "dp", "mbs", "gbs")


def _overlap_word(layout: Layout, default: Layout) -> str | None:
    chosen = [part for part in _OVERLAPS if getattr(layout, f"overlap_{part}")]
    if chosen == [part for part in _OVERLAPS if getattr(default, f"overlap_{part}")]:
        return None
    return f"overlap={'+'.join(chosen) or 'none'}"


def _size_word(size_bytes: int) -> str:
    return f"{size_bytes // MIB}MiB" if size_bytes % MIB == 0 else str(size_bytes)


def compression_word(compression: Compression) -> str:
    """The word that names a compression; `parse_compression` reads it back."""
    match compression.kind:
        case "powersgd":
            return f"powersgd:{compression.rank}"
        case "topk":
            return f"topk:{compression.share:g}"
        case kind:
            return kind
