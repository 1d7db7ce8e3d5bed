"""Files that a person opens in the live page: traces, a plan, a workload, a result, a job that is being tuned."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from makeway.act.launch.tuning_so_far import is_tuned
from makeway.decide.analysis.analyze import analyze
from makeway.decide.planning.recorded import NothingToPlan, step_to_plan
from makeway.model.presets import preset_names
from makeway.read.plan_file import load_plan
from makeway.read.traces.read import MANY_TRACES, more_traces_than
from makeway.read.workload_file import load_workload
from makeway.show.blocks import Report
from makeway.show.report import report_of
from makeway.show.view.documents import document_report, load_document
from makeway.values.control import control_word
from makeway.values.device import Device, device_names
from makeway.values.errors import InputError, printable, suggestion
from makeway.values.plan import Plan
from makeway.values.workload import Workload

Kind = Literal["trace", "plan", "workload", "result", "tuning"]
Progress = Callable[[str], None]
_LOOK_BYTES = 4096
OPENED = "opened:"  # before the paths of an opened workload, in a question


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a file shows, and the question that it lets a person ask."""

    kind: Kind
    report: Report | None  # None: a workload, or a job that is watched
    explore: dict[str, Any] | None = None  # parts of a question
    why_not: str = ""  # there is nothing to explore


def kind_of(path: Path) -> Kind:
    """What a file or directory holds, by its content and its name."""
    if not path.exists():
        near = suggestion(str(path), preset_names())
        raise InputError(f"there is no file or directory {printable(path)}, and no preset has that name{near}")
    if path.is_dir():
        return "tuning" if is_tuned(path) else "trace"
    if path.suffix == ".toml":
        return "workload" if _has_operations(path) else "plan"
    if path.suffix == ".jsonl":
        return "result"
    with path.open("rb") as file:
        start = file.read(_LOOK_BYTES).lstrip()
    return "result" if start.startswith(b"{") and b'"schema": "makeway/' in start.replace(b'":"', b'": "') else "trace"


def open_paths(paths: Sequence[Path], device: Device | None, progress: Progress) -> Opened:
    """What the files show; several files are the traces of one run."""
    kinds = {kind_of(path) for path in paths}
    if len(paths) > 1 and kinds != {"trace"}:
        raise InputError("several files at once are taken as the traces of one run; open other files one by one")
    (kind,) = kinds
    match kind:
        case "trace":
            return _traces(paths, device, progress)
        case "plan":
            return _plan(paths[0])
        case "workload":
            load_workload(paths[0])
            return Opened(kind=kind, report=None, explore={"workload": opened_name(paths)})
        case "result":
            document = load_document(paths[0])
            report = document_report(document, printable(paths[0].name))
            return Opened(kind=kind, report=report, explore=_explored(document))
        case "tuning":
            return Opened(kind=kind, report=None)


def opened_name(paths: Sequence[Path]) -> str:
    """The name under which a question asks for the workload of these files."""
    return OPENED + "\0".join(map(str, paths))


@lru_cache(maxsize=4)
def opened_workload(name: str, device: Device | None) -> tuple[Workload, Device | None] | None:
    """The workload of opened files; of traces the step with most exposed communication, and its device."""
    if not name.startswith(OPENED):
        return None
    paths = [Path(part) for part in name.removeprefix(OPENED).split("\0")]
    if kind_of(paths[0]) == "workload":
        return load_workload(paths[0]), None
    step = step_to_plan(paths, device)
    if isinstance(step, NothingToPlan):
        raise InputError(step.reason)
    return step.workload, step.device


def _traces(paths: Sequence[Path], device: Device | None, progress: Progress) -> Opened:
    if more_traces_than(MANY_TRACES, paths):
        raise InputError(f"more than {MANY_TRACES} traces: `makeway analyze` summarises them, and its JSON opens here")
    analysis = analyze(
        paths,
        device=device,
        keep_spans=True,
        progress=lambda share, path: progress(f"reading {printable(path.name)}: {share:.0%} of all traces"),
    )
    arguments = f"makeway analyze {' '.join(printable(path.name) for path in paths)}"
    report = report_of(analysis, arguments=arguments)
    if analysis.step is None:
        why_not = (analysis.no_step or "no rank has a step").partition("\n")[0]
        return Opened(kind="trace", report=report, why_not=f"the step cannot be simulated: {why_not}")
    explore = {"workload": opened_name(paths), "device": analysis.step.device.name, "controls": []}
    return Opened(kind="trace", report=report, explore=explore)


def _plan(path: Path) -> Opened:
    plan = load_plan(path)
    return Opened(kind="plan", report=report_of(plan, arguments=str(path.name)), explore=plan_question(plan))


def plan_question(plan: Plan) -> dict[str, Any]:
    """The question whose answer is the plan's effect, as far as the plan says what it was made for."""
    made_for = plan.made_for
    return _question(
        [control_word(control) for control in plan.controls],
        made_for.workload if made_for else None,
        made_for.device if made_for else None,
    )


def _explored(document: dict[str, Any]) -> dict[str, Any] | None:
    """The question of a prediction or a plan; other results ask nothing that the page can repeat."""
    controls = document.get("controls")
    if document["schema"] not in ("makeway/prediction/1", "makeway/plan/1") or not isinstance(controls, list):
        return None
    words = [item["control"] if isinstance(item, dict) and "control" in item else item for item in controls]
    if not all(isinstance(word, str) for word in words):
        return None
    return _question(words, document.get("workload"), document.get("device"))


def _question(controls: list[str], workload: object, device: object) -> dict[str, Any]:
    question: dict[str, Any] = {"controls": controls}
    if workload in preset_names():
        question["workload"] = workload
    if device in device_names():
        question["device"] = device
    return question


def _has_operations(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return "operation" in tomllib.load(file)
    except (OSError, ValueError, RecursionError):
        return False  # reading it as a plan says what is wrong
