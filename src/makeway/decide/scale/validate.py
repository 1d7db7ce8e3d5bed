"""Published training steps beside predicted ones: every row of every table, covered or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal

from makeway.decide.scale.rows import COLUMNS, Described, describe
from makeway.decide.scale.step import predict_step
from makeway.model.validate.rows import parse_csv
from makeway.values.errors import DataFileError, MakewayError, UnsupportedError
from makeway.values.facts import data_files, read_file

CLOSE = 0.15  # of the published figure
SWEEP_LEAST = 10  # layouts of one model on one cluster
SWEEP_TOP = 3
_SIMUMAX = "SimuMax predicted ms"
_Metric = Callable[[float, Described], float]


def _per_second(amount: Callable[[Described], float]) -> _Metric:
    """Step time from a rate per GPU, and the rate from the step time: the same formula."""
    return lambda value, row: amount(row) / row.layout.gpus / value * 1e9


def _tokens(row: Described) -> float:
    return float(row.layout.global_batch * row.model.seq)


# Published figure -> step in nanoseconds, and back.
_METRICS: dict[str, tuple[_Metric, _Metric]] = {
    "iteration_ms": (lambda value, _: value * 1e6, lambda ns, _: ns / 1e6),
    "iteration_s": (lambda value, _: value * 1e9, lambda ns, _: ns / 1e9),
    "tokens_per_s_per_gpu": (_per_second(_tokens),) * 2,
    "samples_per_gpu_per_s": (_per_second(lambda row: float(row.layout.global_batch)),) * 2,
}

RowStatus = Literal["calibration", "test", "uncovered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """One published step, what the model says, and what that assumes."""

    SHOWN: ClassVar = ("covered", "error")

    id: str
    table: str
    device: str
    case: str
    metric: str
    published: float | None
    predicted: float | None
    status: RowStatus
    dense: bool = True
    vendor: str = ""
    generation: str = ""
    reason: str = ""  # why it is not covered
    assumed: tuple[str, ...] = ()
    peer: float | None = None  # what SimuMax predicts for the same row

    @property
    def covered(self) -> bool:
        return self.status != "uncovered"

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to the published figure."""
        if self.predicted is None or not self.published:
            return None
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSummary:
    """Relative errors of a group of rows."""

    name: str
    rows: int
    mean_error: float  # of absolute values
    bias: float
    largest: float
    close: float  # share of the rows within CLOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSweep:
    """Layouts of one model on as many GPUs: whether the predicted best is a good one."""

    name: str
    layouts: int
    best: str  # id of the layout that is predicted to be fastest
    rank: int  # that it has among the measured ones
    loss: float  # of its measured time over the best measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePeer:
    """Another tool's published predictions and ours on the same rows."""

    name: str
    rows: int
    peer_error: float
    error: float
    test_rows: int  # of them that none of our numbers was fitted to
    test_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleValidation:
    """Published steps beside predicted ones; calibration and test rows apart."""

    SHOWN: ClassVar = ("covered_rows", "uncovered")

    rows: tuple[ScaleRow, ...]
    summary: tuple[ScaleSummary, ...]
    sweeps: tuple[ScaleSweep, ...]
    peers: tuple[ScalePeer, ...]

    @property
    def covered_rows(self) -> int:
        return sum(row.covered for row in self.rows)

    @property
    def uncovered(self) -> dict[str, dict[str, int]]:
        """Rows that are not covered, by table and reason."""
        counts: dict[str, dict[str, int]] = {}
        for row in self.rows:
            if not row.covered:
                reasons = counts.setdefault(row.table, {})
                reasons[row.reason] = reasons.get(row.reason, 0) + 1
        return counts


def metric_of(row: Mapping[str, str]) -> str | None:
    """The metric of a row, if it is the time of a step."""
    metric = (row.get("metric") or "").strip()
    return metric if metric in _METRICS else None


def published(row: Mapping[str, str], described: Described) -> float:
    """The published step in nanoseconds."""
    metric = metric_of(row)
    if metric is None:
        raise UnsupportedError(f"metric {row.get('metric')!r} is not the time of a step")
    return _METRICS[metric][0](_value(row.get("value")), described)


def _value(text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise UnsupportedError(f"value {text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise UnsupportedError(f"value {text!r} is not above 0")
    return value


def validate_scale(data: Path | None = None) -> ScaleValidation:
    """Published steps beside predicted ones: the package's tables, a table of your own, or a directory of them."""
    if data is None:
        files = sorted(data_files("validation").joinpath("scale").iterdir(), key=lambda item: item.name)
        return validate_rows([(item.name, parse_csv(item.read_text())) for item in files])
    paths = sorted(data.glob("*.csv")) if data.is_dir() else [data]
    tables = [(path.name, _table(path)) for path in paths]
    steps = [(name, table) for name, table in tables if table and is_scale_table(table[0])]
    if not steps:
        raise DataFileError(f"{data}: no table of training steps; it needs the columns {', '.join(sorted(COLUMNS))}")
    return validate_rows(steps)


def is_scale_table(columns: Iterable[str]) -> bool:
    """Whether these are the columns of published training steps."""
    return set(columns) >= COLUMNS


def _table(path: Path) -> list[dict[str, str]]:
    try:
        return parse_csv(read_file(path, "table").decode())
    except UnicodeDecodeError as error:
        raise DataFileError(f"cannot read {str(path)!r}: {error}") from None


def validate_rows(tables: Iterable[tuple[str, Sequence[Mapping[str, str]]]]) -> ScaleValidation:
    """All rows of named tables."""
    rows, sweeps = [], defaultdict(list)
    for name, table in tables:
        for given in table:
            row = _row(name.removesuffix(".csv"), given)
            rows.append(row)
            if row.covered:
                sweeps[_sweep_key(row, given)].append(row)
    return ScaleValidation(
        rows=tuple(rows),
        summary=tuple(_summaries(rows)),
        sweeps=tuple(_sweep(key, group) for key, group in sweeps.items() if len(group) >= SWEEP_LEAST),
        peers=tuple(_peers(rows)),
    )


def _row(table: str, given: Mapping[str, str]) -> ScaleRow:
    metric = (given.get("metric") or "").strip()
    known = partial(
        ScaleRow,
        id=given.get("id") or "",
        table=table,
        device=given.get("device") or "",
        case=_case(given),
        metric=metric,
    )
    try:
        value: float | None = _value(given.get("value"))
    except UnsupportedError:
        value = None
    try:
        described = describe(given)
        published(given, described)
        step = predict_step(described.model, described.layout, described.cluster, generation=described.generation)
    except (MakewayError, OverflowError, ZeroDivisionError) as error:
        return known(published=value, predicted=None, status="uncovered", reason=str(error).replace("\n", " "))
    peer = given.get("value3") if given.get("metric3") == _SIMUMAX else None
    return known(
        published=value,
        predicted=_METRICS[metric][1](step.step_ns, described),
        status="calibration" if given.get("id") in described.generation.calibrated_on else "test",
        dense=described.model.experts is None,
        vendor=described.cluster.device.vendor,
        generation=described.generation.name,
        assumed=(*described.assumed, *step.assumed),
        peer=float(peer) if peer else None,
    )


def _case(given: Mapping[str, str]) -> str:
    parts = [f"{key} {given[key]}" for key in ("tp", "pp", "vp", "cp", "ep", "dp", "mbs") if given.get(key)]
    return f"{given.get('model', '')}, {given.get('gpus', '?')} GPUs, {' '.join(parts)}"


def _sweep_key(row: ScaleRow, given: Mapping[str, str]) -> tuple[str, ...]:
    shape = [given.get(key) or "" for key in ("layers", "hidden", "seq", "gpus", "gbs", "recompute", "precision")]
    return (row.table, row.metric, given.get("model") or "", given.get("params_b") or "", *shape)


def _sweep(key: tuple[str, ...], rows: Sequence[ScaleRow]) -> ScaleSweep:
    faster = min if "iteration" in key[1] else max
    slower_first = faster is max
    best = faster(rows, key=lambda row: row.predicted or 0.0)
    order = sorted(rows, key=lambda row: row.published or 0.0, reverse=slower_first)
    ratio = (best.published or 0.0) / (order[0].published or 1.0)
    return ScaleSweep(
        name=f"{key[0]}: {key[2]} {key[3]}{'B' if key[3] else ''}, {key[4]} layers, {key[7]} GPUs, batch {key[8]}",
        layouts=len(rows),
        best=best.id,
        rank=order.index(best) + 1,
        loss=(1 / ratio if slower_first else ratio) - 1,
    )


def _summaries(rows: Sequence[ScaleRow]) -> Iterable[ScaleSummary]:
    dense = [row for row in rows if row.covered and row.dense and row.vendor == "nvidia"]
    yield from _summary("dense NVIDIA rows, test", [row for row in dense if row.status == "test"])
    yield from _summary("dense NVIDIA rows, calibration", [row for row in dense if row.status == "calibration"])
    groups: dict[str, list[ScaleRow]] = defaultdict(list)
    for row in rows:
        if row.covered:
            groups[f"{row.table}, {row.generation}, {'dense' if row.dense else 'experts'}, {row.status}"].append(row)
    for name, group in sorted(groups.items()):
        yield from _summary(name, group)


def _summary(name: str, rows: Sequence[ScaleRow]) -> Iterable[ScaleSummary]:
    errors = [row.error for row in rows if row.error is not None]
    if errors:
        yield ScaleSummary(
            name=name,
            rows=len(errors),
            mean_error=fmean(map(abs, errors)),
            bias=fmean(errors),
            largest=max(errors, key=abs),
            close=fmean(abs(error) <= CLOSE for error in errors),
        )


def _peers(rows: Sequence[ScaleRow]) -> Iterable[ScalePeer]:
    """SimuMax from the rows' own column."""
    shared = [row for row in rows if row.peer is not None and row.error is not None]
    for name, group in (
        ("SimuMax, dense", [row for row in shared if row.dense]),
        ("SimuMax, experts", [row for row in shared if not row.dense]),
    ):
        if group:
            test = [abs(row.error or 0.0) for row in group if row.status == "test"]
            yield ScalePeer(
                name=name,
                rows=len(group),
                peer_error=fmean(abs((row.peer or 0.0) / (row.published or 1.0) - 1) for row in group),
                error=fmean(abs(row.error or 0.0) for row in group),
                test_rows=len(test),
                test_error=fmean(test) if test else None,
            )
