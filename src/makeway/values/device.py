"""Devices: what one GPU (or CPU host) can hold and how fast it is, as cited facts.

A device file holds what is peculiar to the device and names its architecture; limits that all
devices of an architecture share come from that architecture's file. A device is found by its whole
name or a listed alias (the names that drivers and profilers write), in any case; never by a part of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from makeway.values.errors import DataFileError, UnknownNameError, UnsupportedError, suggestion
from makeway.values.facts import (
    Fact,
    data_files,
    parse_toml,
    read_facts,
    read_file,
    refuse_unknown,
    text,
    texts,
    whole_fact,
)

Vendor = Literal["nvidia", "amd", "cpu"]
Link = Literal["nvlink-switch", "nvlink-bridge", "nvlink-mesh", "xgmi-mesh", "pcie", "loopback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmLimits:
    """What one SM (AMD: one compute unit) can hold.

    AMD maps onto the same words: a partition is a SIMD, a warp is a wavefront, registers are
    VGPRs (all lanes of all SIMDs), shared memory is LDS.
    """

    partitions: int  # a warp and its registers live in one of them
    registers: int  # of the whole SM, 32-bit each
    register_unit: int  # a warp's registers are rounded up to this
    max_registers_per_thread: int
    warp_threads: int
    max_warps: int
    max_blocks: int
    max_threads_per_block: int
    smem_bytes: int  # at the largest carve-out
    smem_block_bytes: int  # the most one block may ask for (NVIDIA: with opt-in)
    smem_default_block_bytes: int  # the most without opt-in
    smem_reserved_bytes: int  # taken by the system from every block's share
    smem_unit_bytes: int
    carveouts_bytes: tuple[int, ...]  # shared-memory sizes an SM can be set to; empty: fixed
    max_cluster: int = 1
    barriers: int | None = None  # None: not a limit on this architecture
    barriers_spare_one_warp_blocks: bool = False  # AMD: a one-wave block needs no barrier
    scalar_registers: int | None = None  # of one partition (AMD SGPRs)

    def __post_init__(self) -> None:
        if self.registers % self.partitions:
            raise DataFileError(f"registers ({self.registers}) must be a multiple of partitions ({self.partitions})")
        if self.smem_block_bytes > self.smem_bytes:
            raise DataFileError("smem_block_bytes is above smem_bytes: a block cannot have more than its SM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Limits and rates of one GPU, or of one CPU host. An unknown rate is None."""

    name: str
    vendor: Vendor
    arch: str
    aliases: tuple[str, ...]
    link: Link
    notes: tuple[str, ...]
    sms: int  # AMD: compute units; CPU: cores
    limits: SmLimits | None  # None for a CPU host
    memory_bytes: int | None = None
    clock_hz: float | None = None
    fp32_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    hbm_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    memory_side_cache_bytes: int | None = None  # between L2 and HBM; copy engines pass through it
    l2_bytes_per_s: float | None = None
    links: int | None = None
    link_bytes_per_s: float | None = None  # all links of the device together, one direction
    pcie_bytes_per_s: float | None = None  # one direction
    copy_engines: int | None = None
    facts: Mapping[str, Fact] = field(repr=False, hash=False)  # the same numbers with their sources

    @property
    def sm(self) -> SmLimits:
        """What one SM can hold; an error for a CPU host."""
        if self.limits is None:
            raise UnsupportedError(
                f"{self.name} is a CPU host: it has no registers or shared memory to share.\n"
                "Ask about a GPU; `makeway devices` lists them."
            )
        return self.limits


_LIMIT_KEYS = (
    "partitions", "registers", "register_unit", "max_registers_per_thread", "warp_threads", "max_warps",
    "max_blocks", "max_threads_per_block", "smem_bytes", "smem_block_bytes", "smem_default_block_bytes",
    "smem_reserved_bytes", "smem_unit_bytes", "carveouts_bytes", "max_cluster", "barriers", "scalar_registers",
)  # fmt: skip
_OPTIONAL_LIMITS = ("carveouts_bytes", "max_cluster", "barriers", "scalar_registers")
_WHOLE_RATES = ("memory_bytes", "l2_bytes", "memory_side_cache_bytes", "links", "copy_engines")
_RATES = (
    "clock_hz", "fp32_flops_per_s", "tf32_flops_per_s", "fp16_flops_per_s", "hbm_bytes_per_s",
    "l2_bytes_per_s", "link_bytes_per_s", "pcie_bytes_per_s",
)  # fmt: skip
# Numbers of the model that belong to a device: docs/model.md.
_MODEL_KEYS = (
    "saturating_warps", "soft_saturation", "overlap_comm_loss", "queue_hold",
    "sms_per_gpc",
)  # fmt: skip
# A calibrated CPU host: what a collective costs, by carrier (docs/bench.md).
HOST_CARRIERS = ("gloo", "direct")
HOST_KINDS = ("all-reduce", "all-gather", "all-to-all")
HOST_STEP_KINDS = (
    *HOST_KINDS,
    "reduce-scatter",
    "send-recv",
)  # that a training step may need; a file may leave them out
_HOST_QUANTITIES = ("latency_ns", "ns_per_byte", "cpu_ns_per_byte")


def host_fact_key(carrier: str, kind: str, quantity: str) -> str:
    """The name of a calibrated fact: "gloo_all_reduce_ns_per_byte"."""
    return f"{carrier}_{kind.replace('-', '_')}_{quantity}"


HOST_COMPRESSIONS = ("fp16", "bf16", "powersgd", "topk")


def compression_fact_key(kind: str) -> str:
    """The name of a calibrated fact: "compress_bf16_ns_per_element", encoder and decoder together."""
    return f"compress_{kind.replace('-', '_')}_ns_per_element"


# Of one core: the time a GEMM takes per element of its result beside the arithmetic.
HOST_OUTPUT_KEY = "gemm_ns_per_output"
# Of a device that is one rank's share of a host: ranks that take turns on a core. One that waits leaves it to the rest.
HOST_SHARING_KEY = "ranks_per_core"
_HOST_KEYS = (
    HOST_OUTPUT_KEY,
    HOST_SHARING_KEY,
    *(
        host_fact_key(carrier, kind, quantity)
        for carrier in HOST_CARRIERS
        for kind in HOST_STEP_KINDS
        for quantity in _HOST_QUANTITIES
    ),
    *map(compression_fact_key, HOST_COMPRESSIONS),
)
_FACT_KEYS = ("sms", *_LIMIT_KEYS, *_WHOLE_RATES, *_RATES, *_MODEL_KEYS, *_HOST_KEYS)
_TOP_KEYS = ("name", "vendor", "arch", "aliases", "link", "notes", "sources", "facts")


@dataclass(frozen=True, slots=True)
class DeviceList:
    """All devices that makeway knows."""

    devices: tuple[Device, ...]


@cache
def known_devices() -> DeviceList:
    """Every device of the package, by name."""
    entries = sorted(data_files("devices").iterdir(), key=lambda entry: entry.name)
    return DeviceList(
        tuple(parse_device(entry.read_bytes(), where=entry.name) for entry in entries if entry.name.endswith(".toml"))
    )


def device_names() -> tuple[str, ...]:
    """Names of all devices that makeway knows."""
    return tuple(device.name for device in known_devices().devices)


def load_device(name_or_path: str) -> Device:
    """The device of that name or alias, in any case, or of that TOML file (a path ending in .toml)."""
    if name_or_path.endswith(".toml"):
        return load_device_file(Path(name_or_path))
    return named_device(name_or_path)


def named_device(name: str) -> Device:
    """The device of that name or alias, in any case. What a driver or a trace calls its GPU is never a path."""
    wanted = name.lower()
    names = {known: device for device in known_devices().devices for known in (device.name, *device.aliases)}
    for known, device in names.items():
        if known.lower() == wanted:
            return device
    matches = tuple({device.name: None for known, device in names.items() if known.lower().startswith(wanted)})
    if len(matches) == 1:
        hint = f"; did you mean {matches[0]!r}?"
    elif wanted and matches:
        hint = f"; it could be {', '.join(matches)}: name one"
    else:
        hint = suggestion(name, names)
    raise UnknownNameError(
        f"no limits known for device {name!r}{hint}\n"
        "List devices with `makeway devices`, or pass your own with `--device FILE.toml`."
    )


def load_device_file(path: Path) -> Device:
    """The device that a user's TOML file describes."""
    return parse_device(read_file(path, "device file"), where=str(path))


def parse_device(content: bytes, *, where: str) -> Device:
    """The device that a device file's content describes; the error of a bad file names the key."""
    document = parse_toml(content, where=where)
    refuse_unknown(document, _TOP_KEYS, where=where)
    arch = text(document, "arch", where=where)
    vendor = _choice(document, "vendor", get_args(Vendor), where)
    facts = {**_architecture_facts(arch), **read_facts(document, "facts", where=where)}
    refuse_unknown(facts, _FACT_KEYS, where=f"{where}: facts")
    try:
        return built_device(
            name=text(document, "name", where=where),
            vendor=vendor,  # type: ignore[arg-type]
            arch=arch,
            aliases=texts(document, "aliases", where=where),
            link=_choice(document, "link", get_args(Link), where),  # type: ignore[arg-type]
            notes=texts(document, "notes", where=where),
            facts=facts,
            where=where,
        )
    except DataFileError as error:
        message = str(error)
        raise error if message.startswith(where) else DataFileError(f"{where}: {message}") from None


def built_device(
    *,
    name: str,
    vendor: Vendor,
    arch: str,
    link: Link,
    facts: Mapping[str, Fact],
    aliases: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    where: str = "device",
) -> Device:
    """The device with these facts; a missing or impossible one is an error that names it."""
    return Device(
        name=name,
        vendor=vendor,
        arch=arch,
        aliases=aliases,
        link=link,
        notes=notes,
        sms=whole_fact(facts, "sms", where=where, low=1),
        limits=None if vendor == "cpu" else _sm_limits(facts, vendor, where),
        facts=facts,
        **_rates(facts, where),
    )


@cache
def architecture_names() -> tuple[str, ...]:
    """The architectures whose shared limits are known."""
    names = (entry.name for entry in data_files("architectures").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


@cache
def _architecture_facts(arch: str) -> Mapping[str, Fact]:
    """Facts that all devices of an architecture share; none for an unknown one."""
    where = f"{arch}.toml"
    file = data_files("architectures").joinpath(where)
    if not arch.replace("_", "").isalnum() or not file.is_file():
        return {}
    document = parse_toml(file.read_bytes(), where=where)
    refuse_unknown(document, ("sources", "facts"), where=where)
    return read_facts(document, "facts", where=where)


def _sm_limits(facts: Mapping[str, Fact], vendor: str, where: str) -> SmLimits:
    present = [key for key in _LIMIT_KEYS if key not in _OPTIONAL_LIMITS or key in facts]
    numbers: dict[str, Any] = {
        key: whole_fact(facts, key, where=where, low=0 if key == "smem_reserved_bytes" else 1)
        for key in present
        if key != "carveouts_bytes"
    }
    steps = facts["carveouts_bytes"].value if "carveouts_bytes" in facts else ()
    if not isinstance(steps, tuple):
        raise DataFileError(f"{where}: facts.carveouts_bytes must be a list of sizes")
    return SmLimits(**numbers, carveouts_bytes=steps, barriers_spare_one_warp_blocks=vendor == "amd")


def _rates(facts: Mapping[str, Fact], where: str) -> dict[str, Any]:
    whole = {key: whole_fact(facts, key, where=where, low=1) for key in _WHOLE_RATES if key in facts}
    return whole | {key: _rate(facts, key, where) for key in _RATES if key in facts}


def _rate(facts: Mapping[str, Fact], key: str, where: str) -> float:
    value = facts[key].value
    if isinstance(value, tuple) or value <= 0:
        raise DataFileError(f"{where}: facts.{key} must be a number above 0, got {value!r}")
    return float(value)


def _choice(document: Mapping[str, Any], key: str, choices: tuple[str, ...], where: str) -> str:
    value = text(document, key, where=where)
    if value not in choices:
        raise DataFileError(f"{where}: {key} is {value!r}; it must be one of {', '.join(choices)}")
    return value
