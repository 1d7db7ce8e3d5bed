"""A process of `makeway view` that computes: requests come as JSON lines on stdin, answers leave on stdout.

It ends with its server, however that ends: when stdin closes. A device file of the user may be its only argument.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from makeway.act.launch.tuning_so_far import tuning_so_far
from makeway.decide.planning.planner import plan
from makeway.model.simulate.predict import Prediction
from makeway.show.page import page
from makeway.show.prediction import room_of
from makeway.show.report import report_of
from makeway.show.view.fragments import figures, fragments
from makeway.show.view.opening import OPENED, open_paths, opened_workload, plan_question
from makeway.show.view.question import Question, Stage, answer, block_text, command_of, subject, takes
from makeway.values.collective import load_footprint
from makeway.values.device import Device, load_device_file, named_device
from makeway.values.errors import InputError, MakewayError
from makeway.values.own_files import write_whole
from makeway.values.plan import parse_controls
from makeway.values.workload import Gemm, Workload

_LINE_BYTES = 4 << 20  # no request is longer


class Request(msgspec.Struct, kw_only=True):
    """What the server asks: one of `question`, `paths`, `plan`, `watch`."""

    do: str
    question: Question | None = None
    stage: Stage = "settled"
    paths: list[str] = []
    page: str = ""  # where to write the report


@dataclass(frozen=True)
class _Desk:
    """What questions may name: presets, known devices, opened files and the device file of the command line."""

    own: Device | None = None

    def workload(self, name: str) -> tuple[Workload, Device | None] | None:
        return opened_workload(name, None)

    def device(self, name: str) -> Device:
        return self.own if self.own is not None and name == self.own.name else named_device(name)


def handled(request: Request, desk: _Desk, progress: Any) -> dict[str, Any]:
    """The answer to a request."""
    match request.do:
        case "answer" if request.question is not None:
            return _answer(request.question, request.stage, desk)
        case "open":
            return _open(request, progress)
        case "plan" if request.question is not None:
            return _plan(request.question, Path(request.page), desk, progress)
        case "watch":
            so_far = tuning_so_far(Path(request.paths[0]))
            return fragments(report_of(so_far)) | {"running": so_far.running}
        case _:
            raise InputError(f"no request {request.do!r}")


def _answer(question: Question, stage: Stage, desk: _Desk) -> dict[str, Any]:
    began = time.perf_counter()
    prediction = answer(question, stage, desk)
    command = "" if _recorded(question, prediction.workload) else command_of(question, _path(question))
    report = report_of(prediction, arguments=command)
    room = room_of(prediction.workload, prediction.device, prediction.controls)
    device, gemm = prediction.device, _gemm(prediction.workload)
    return fragments(report, without=("provenance",)) | {
        "stage": stage,
        "engine": prediction.engine,
        "figures": figures(prediction),
        "command": command,
        "limits": {
            "pad_bytes": room.most_pad_bytes if room is not None else 0,
            "pad_unit_bytes": device.sm.smem_unit_bytes,
            "smem_bytes": device.sm.smem_block_bytes,
            "registers": device.sm.max_registers_per_thread,
            "threads": device.sm.max_threads_per_block,
            "sms": device.sms,
            "block": block_text(gemm) if gemm is not None and question.block is None else question.block,
            "own_block": not question.workload.startswith(OPENED) and takes(question.workload, "block"),
            "device": device.name,
            "recorded": _recorded(question, prediction.workload),
            "comm_threads": _comm_threads(prediction),
            "dispatch": prediction.dispatch,
            "ranks": prediction.workload.ranks,
        },
        "took_ms": round(1e3 * (time.perf_counter() - began), 1),
    }


def _comm_threads(prediction: Prediction) -> list[int]:
    """Threads that the block of the first collective can have."""
    for collective in prediction.workload.collectives[:1]:
        return sorted(choice.threads for choice in load_footprint(collective.library, prediction.device.arch).choices)
    return []


def _gemm(workload: Workload) -> Any:
    return next((kernel.resources for kernel in workload.kernels if isinstance(kernel.work, Gemm)), None)


def _recorded(question: Question, workload: Workload) -> bool:
    return question.workload.startswith(OPENED) and _gemm(workload) is None


def _path(question: Question) -> str | None:
    return question.workload.removeprefix(OPENED) if question.workload.startswith(OPENED) else None


def _open(request: Request, progress: Any) -> dict[str, Any]:
    opened = open_paths([Path(path) for path in request.paths], None, progress)
    document = None
    if opened.report is not None:
        write_whole(Path(request.page), page(opened.report).encode("utf-8", errors="backslashreplace"))
        document = opened.report.headline.sentence
    return {"kind": opened.kind, "explore": opened.explore, "why_not": opened.why_not, "verdict": document}


def _plan(question: Question, target: Path, desk: _Desk, progress: Any) -> dict[str, Any]:
    workload, device = subject(question, desk)
    planned = plan(workload, device, controls=parse_controls(()), timelines=True, progress=progress)
    command = f"makeway plan {question.workload} --device {question.device}"
    report = report_of(planned, arguments="" if question.workload.startswith(OPENED) else command)
    write_whole(target, page(report).encode("utf-8", errors="backslashreplace"))
    explore = msgspec.to_builtins(question) | {"controls": plan_question(planned)["controls"]}
    return {"kind": "plan", "explore": explore, "why_not": "", "verdict": report.headline.sentence}


# --- the process ---------------------------------------------------------------------------------


def main() -> None:
    """Answer requests until stdin closes."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is no answer
    desk = _Desk(load_device_file(Path(sys.argv[1])) if len(sys.argv) > 1 else None)
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()

    def send(kind: str, value: object) -> None:
        with suppress(BrokenPipeError):
            out.write(msgspec.json.encode({kind: value}) + b"\n")

    send("ready", os.getpid())
    while True:
        line = requests.get()
        try:
            request = msgspec.json.decode(line, type=Request)
            send("answer", handled(request, desk, lambda stage: send("progress", stage)))
        except (MakewayError, msgspec.DecodeError, ValueError) as error:
            send("error", str(error))
        except (MemoryError, RecursionError) as error:
            send("error", "memory ran out" if isinstance(error, MemoryError) else "the input nests too deeply")
        except Exception as error:  # a bug of ours must not take the page down
            send("error", f"makeway failed: {type(error).__name__}: {error}")


def _read(requests: SimpleQueue[bytes]) -> None:
    """Pass on what the server sends; end the process when the server is gone, even in the middle of work."""
    while line := sys.stdin.buffer.readline(_LINE_BYTES):
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
