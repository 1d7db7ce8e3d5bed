"""Published training steps beside predicted ones: every row of every table, covered or not."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal

from makeway.decide.scale.metrics import (
    bubble_rate,
    faster_is_less,
    figure,
    is_bubble,
    is_memory,
    known_metric,
    metric_of,
    predicted,
)
from makeway.decide.scale.peers import ScalePeer, peers_of
from makeway.decide.scale.rows import COLUMNS, Described, describe
from makeway.decide.scale.step import predict_step
from makeway.model.validate.rows import parse_csv
from makeway.values.errors import DataFileError, MakewayError, UnsupportedError
from makeway.values.facts import data_files, read_file
from makeway.values.step import Step

CLOSE = 0.15  # of the published figure
SWEEP_LEAST = 10  # layouts of one model on one cluster
SWEEP_TOP = 3
_SIMUMAX = "SimuMax predicted ms"
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
    def timed(self) -> bool:
        """Whether its figure is the time of a step."""
        return metric_of({"metric": self.metric}) is not None

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
class ScaleMemory:
    """Published memory of one GPU beside ours."""

    SHOWN: ClassVar = ("error",)

    id: str
    table: str
    metric: str
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to the published figure."""
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleValidation:
    """Published steps beside predicted ones; calibration and test rows apart."""

    SHOWN: ClassVar = ("covered_rows", "uncovered")

    rows: tuple[ScaleRow, ...]
    summary: tuple[ScaleSummary, ...]
    sweeps: tuple[ScaleSweep, ...]
    peers: tuple[ScalePeer, ...]
    unseen: tuple[ScaleSummary, ...] = ()  # rows of a software predicted as if its generation had not been calibrated
    memory: tuple[ScaleMemory, ...] = ()  # that rows publish besides their time
    cpu_ms_per_row: float = 0.0  # processor time of one prediction, reading included

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
    tables = list(tables)
    rows, unseen, memory, sweeps = [], [], [], defaultdict(list)
    steps, begun = _Steps(), time.process_time()
    for name, table in tables:
        for given in table:
            row, measured = _row(name.removesuffix(".csv"), given, steps)
            rows.append(row)
            memory += measured
            if row.covered and metric_of(given):
                sweeps[_sweep_key(row, given)].append(row)
    spent = time.process_time() - begun
    for name, table in tables:
        again = (_unseen_row(name.removesuffix(".csv"), given, steps) for given in table)
        unseen += [row for row in again if row is not None]
    cpu_ms = round(1e3 * spent / max(1, steps.predicted), 1)
    return ScaleValidation(
        rows=tuple(rows),
        summary=tuple(_summaries(rows)),
        sweeps=tuple(_sweep(key, group) for key, group in sweeps.items() if len(group) >= SWEEP_LEAST),
        peers=tuple(peers_of(rows, cpu_ms)),
        unseen=tuple(_by_group(unseen, "{generation}, {kind}")),
        memory=tuple(memory),
        cpu_ms_per_row=cpu_ms,
    )


class _Steps:
    """Predicted steps; rows of several releases share one."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Step] = {}

    def __call__(self, row: Described) -> Step:
        key = (row.model, row.layout, row.cluster, row.generation)
        if key not in self._known:
            self._known[key] = predict_step(row.model, row.layout, row.cluster, generation=row.generation)
        return self._known[key]

    @property
    def predicted(self) -> int:
        return len(self._known)


def _row(table: str, given: Mapping[str, str], steps: _Steps) -> tuple[ScaleRow, list[ScaleMemory]]:
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
        value = figure(given.get("value"))
    except UnsupportedError:
        value = None
    try:
        figure(given.get("value"))
        described = describe(given)
        if not known_metric(metric):
            raise UnsupportedError(f"metric {metric!r} is not the time, the memory or the bubble of a step")
        if is_bubble(metric):
            step, answer = None, bubble_rate(described, given)
        else:
            step = steps(described)
            answer = predicted(metric, step, described)
    except (MakewayError, OverflowError, ZeroDivisionError, RecursionError) as error:
        return known(published=value, predicted=None, status="uncovered", reason=str(error).replace("\n", " ")), []
    peer = given.get("value3") if given.get("metric3") == _SIMUMAX else None
    row = known(
        published=value,
        predicted=answer,
        status="calibration" if given.get("id") in described.generation.calibrated_on else "test",
        dense=described.model.experts is None,
        vendor=described.cluster.device.vendor,
        generation=described.generation.name,
        assumed=(*described.assumed, *(step.assumed if step else ())),
        peer=_number(peer),
    )
    measured = [
        ScaleMemory(id=row.id, table=table, metric=name, published=held, predicted=predicted(name, step, described))
        for number in (2, 3)
        if step is not None
        and is_memory(name := (given.get(f"metric{number}") or "").strip())
        and (held := _number(given.get(f"value{number}"))) is not None
    ]
    return row, measured


def _number(text: str | None) -> float | None:
    try:
        return figure(text)
    except UnsupportedError:
        return None


def _unseen_row(table: str, given: Mapping[str, str], steps: _Steps) -> ScaleRow | None:
    """A row of a calibrated software, predicted without the numbers of its generation."""
    metric = metric_of(given)
    if metric is None:
        return None
    try:
        own = describe(given).generation
        if not own.calibrated_on:
            return None
        described = describe(given, without=own.name)
        step = steps(described)
        return ScaleRow(
            id=given.get("id") or "",
            table=table,
            device=given.get("device") or "",
            case=_case(given),
            metric=metric,
            published=figure(given.get("value")),
            predicted=predicted(metric, step, described),
            status="test",
            dense=described.model.experts is None,
            generation=f"{own.name} by {described.generation.name}",
        )
    except (MakewayError, OverflowError, ZeroDivisionError, RecursionError):
        return None


def _case(given: Mapping[str, str]) -> str:
    parts = [f"{key} {given[key]}" for key in ("tp", "pp", "vp", "cp", "ep", "dp", "mbs") if given.get(key)]
    return f"{given.get('model', '')}, {given.get('gpus', '?')} GPUs, {' '.join(parts)}"


def _sweep_key(row: ScaleRow, given: Mapping[str, str]) -> tuple[str, ...]:
    shape = [given.get(key) or "" for key in ("layers", "hidden", "seq", "gpus", "gbs", "recompute", "precision")]
    where = (row.device, given.get("source") or "")
    return (row.table, row.metric, given.get("model") or "", given.get("params_b") or "", *shape, *where)


def _sweep(key: tuple[str, ...], rows: Sequence[ScaleRow]) -> ScaleSweep:
    faster = min if faster_is_less(key[1]) else max
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
    dense = [row for row in rows if row.covered and row.dense and row.vendor == "nvidia" and row.timed]
    yield from _summary("dense NVIDIA rows, test", [row for row in dense if row.status == "test"])
    yield from _summary("dense NVIDIA rows, calibration", [row for row in dense if row.status == "calibration"])
    yield from _by_group([row for row in rows if row.covered], "{table}, {generation}, {kind}, {status}")


def _by_group(rows: Iterable[ScaleRow], name: str) -> Iterable[ScaleSummary]:
    groups: dict[str, list[ScaleRow]] = defaultdict(list)
    for row in rows:
        kind = ("dense" if row.dense else "experts") if row.timed else "bubble" if is_bubble(row.metric) else "memory"
        groups[name.format(table=row.table, generation=row.generation, kind=kind, status=row.status)].append(row)
    for title, group in sorted(groups.items()):
        yield from _summary(title, group)


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
