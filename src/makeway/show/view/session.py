"""What one `makeway view` holds: opened files, work in progress, jobs to watch, and the workers that answer."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from makeway.act.launch.tuning_so_far import tuned_jobs
from makeway.show.view.opening import OPENED, kind_of, opened_name
from makeway.show.view.question import Question, Stage
from makeway.show.view.workers import Worker
from makeway.values.errors import InputError, MakewayError, printable
from makeway.values.units import format_bytes

MOST_FILE_BYTES = 1 << 30  # of one dropped file
MOST_KEPT_BYTES = 4 << 30  # of all of them
MOST_FILES = 64  # of one drop
MOST_ITEMS = 24
_SPARE_BYTES = 256 << 20  # left free on the disk
_CHUNK_BYTES = 1 << 20
_ITEM = "item:"
_GROUP = re.compile(r"[0-9a-f]{16}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100


@dataclass(slots=True)
class Item:
    """Something opened: in work, ready or failed. Its report has an address of its own."""

    number: int
    name: str
    paths: tuple[Path, ...]
    state: Literal["working", "ready", "failed"] = "working"
    kind: str = ""
    progress: str = "waiting"
    message: str = ""  # the verdict, or the error
    explore: dict[str, Any] | None = None
    why_not: str = ""
    report: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    has_report: bool = False


class Session:
    """All that the page can ask for; every method may be called from any thread."""

    def __init__(self, place: Path, *, device_file: Path | None = None, first: Question | None = None) -> None:
        self.place, self.first = place, first
        self.answers = {stage: Worker(device_file) for stage in ("quick", "settled")}
        self._reading, self._watching = Worker(device_file), Worker(device_file)
        self._pool = ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._items: dict[int, Item] = {}
        self._numbers = 0
        self._kept_bytes = 0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in (*self.answers.values(), self._reading, self._watching):
            worker.close()

    # --- questions -------------------------------------------------------------------------------

    def answer(self, question: Question, stage: Stage, client: str) -> dict[str, Any]:
        """The answer to a question; a newer one of the same page ends long work on older ones."""
        worker = self.answers["quick" if stage == "quick" else "settled"]
        if stage == "quick":
            self.answers["settled"].give_up(client)
        return worker.ask({"do": "answer", "question": self._resolved(question), "stage": stage}, client=client)

    def watch(self, number: int) -> dict[str, Any]:
        """What a tuned job shows so far."""
        return self._watching.ask({"do": "watch", "paths": [str(self._item(number).paths[0])]})

    def plan(self, question: Question) -> int:
        """Begin to search for a plan; the number of the item that will show it."""
        resolved = self._resolved(question)
        name = self._item_of(question).name if question.workload.startswith(_ITEM) else question.workload
        return self._begin(f"plan for {name}", (), {"do": "plan", "question": resolved})

    def _resolved(self, question: Question) -> Question:
        """The question with paths in place of an item's number; paths of the page's own are refused."""
        if question.workload.startswith(_ITEM):
            name = opened_name(self._item_of(question).paths)
            return msgspec.structs.replace(question, workload=name)
        if question.workload.startswith(OPENED):
            raise InputError("the page names what was opened by its number")
        return question

    def _item_of(self, question: Question) -> Item:
        number = question.workload.removeprefix(_ITEM)
        return self._item(int(number) if number.isdecimal() and len(number) < 9 else -1)

    # --- files -----------------------------------------------------------------------------------

    def open(self, paths: Sequence[Path], name: str = "") -> int:
        """Begin to read files; the number of the item that will show them."""
        kind_of(paths[0])  # a wrong name is an error now
        names = name or ", ".join(path.name for path in paths[:3]) + (", ..." if len(paths) > 3 else "")
        return self._begin(names, tuple(paths), {"do": "open", "paths": [str(path) for path in paths]})

    def receive(self, group: str, number: int, name: str, length: int, source: BinaryIO) -> None:
        """Write one dropped file, as it arrives, to a place of its own."""
        if not _GROUP.fullmatch(group) or not 0 <= number < MOST_FILES:
            raise InputError(f"a drop has at most {MOST_FILES} files")
        with self._lock:
            if length > MOST_FILE_BYTES or self._kept_bytes + length > MOST_KEPT_BYTES:
                raise InputError(
                    f"{printable(name)[:_LONGEST_NAME]} has {length:,} bytes; dropped files have at most "
                    f"{format_bytes(MOST_FILE_BYTES)} each and {format_bytes(MOST_KEPT_BYTES)} in all\n"
                    "Start `makeway view FILE`: it reads larger ones where they are."
                )
            if shutil.disk_usage(self.place).free < length + _SPARE_BYTES:
                raise InputError(f"{self.place} has no room for {length:,} bytes; set TMPDIR to a larger disk")
            self._kept_bytes += length
        folder = self._folder(group) / f"{number:03}"
        try:
            folder.mkdir(mode=0o700, parents=True)
            with (folder / safe_name(name)).open("xb") as file:
                _copy(source, file, length)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            with self._lock:
                self._kept_bytes -= length
            if isinstance(error, FileExistsError):
                raise InputError("that file was dropped already") from None
            raise

    def open_dropped(self, group: str) -> int:
        """Begin to read the files of a drop."""
        files = sorted(self._folder(group).glob("*/*")) if _GROUP.fullmatch(group) else []
        if not files:
            raise InputError("nothing was dropped")
        return self.open(files)

    def close_item(self, number: int) -> None:
        """Forget an item, its report and what was dropped for it."""
        with self._lock:
            item = self._items.get(number)
            if item is None or item.state == "working":
                raise InputError("it is still being read" if item else "there is no such item")
            del self._items[number]
        self._page(item).unlink(missing_ok=True)
        dropped = [path for path in item.paths if self.place in path.parents]
        with self._lock:
            self._kept_bytes -= sum(path.stat().st_size for path in dropped if path.exists())
        for path in dropped:
            shutil.rmtree(path.parent.parent, ignore_errors=True)

    def report(self, address: str) -> bytes | None:
        """The page of an item by the address of its report."""
        with self._lock:
            item = next(
                (
                    item
                    for item in self._items.values()
                    if secrets.compare_digest(item.report.encode(), address.encode())
                ),
                None,
            )
        return self._page(item).read_bytes() if item is not None and item.has_report else None

    def state(self) -> dict[str, Any]:
        """All items, and jobs of this user that are tuned now."""
        with self._lock:
            items = [_shown(item) for item in self._items.values()]
            watched = {path for item in self._items.values() for path in item.paths}
        jobs = [place for place in tuned_jobs() if place not in watched]
        return {"items": items, "jobs": [place.name for place in jobs]}

    def watch_job(self, name: str) -> int:
        """Open a job that is tuned now by the name of its directory."""
        place = next((place for place in tuned_jobs() if place.name == name), None)
        if place is None:
            raise InputError("that job has ended")
        return self.open((place,), "run --tune")

    def _folder(self, group: str) -> Path:
        return self.place / f"drop-{group}"

    def _page(self, item: Item) -> Path:
        return self.place / f"report-{item.number}.html"

    def _item(self, number: int) -> Item:
        with self._lock:
            if number not in self._items:
                raise InputError("it was closed; open it again")
            return self._items[number]

    def _begin(self, name: str, paths: tuple[Path, ...], request: dict[str, Any]) -> int:
        with self._lock:
            if len(self._items) >= MOST_ITEMS:
                raise InputError(f"{MOST_ITEMS} things are open; close one first")
            self._numbers += 1
            item = Item(number=self._numbers, name=printable(name), paths=paths)
            self._items[item.number] = item
        self._pool.submit(self._work, item, request)
        return item.number

    def _work(self, item: Item, request: dict[str, Any]) -> None:
        def progress(stage: str) -> None:
            item.progress = stage

        try:
            progress("reading")
            answer = self._reading.ask({**request, "page": str(self._page(item))}, progress=progress)
        except MakewayError as error:
            message = str(error)
            for path in item.paths:  # dropped files are called by their names
                message = message.replace(f"{path.parent}/", "") if self.place in path.parents else message
            item.message, item.state = message, "failed"
            return
        explore = answer["explore"]
        if explore is not None and str(explore.get("workload", "")).startswith(OPENED):
            explore |= {"workload": f"{_ITEM}{item.number}"}
        item.kind, item.explore, item.why_not = answer["kind"], explore, answer["why_not"]
        item.message, item.has_report = answer["verdict"] or "", answer["verdict"] is not None
        item.state = "ready"


def _shown(item: Item) -> dict[str, Any]:
    return {
        "number": item.number,
        "name": item.name,
        "state": item.state,
        "kind": item.kind,
        "progress": item.progress if item.state == "working" else "",
        "message": item.message,
        "explore": item.explore,
        "why_not": item.why_not,
        "report": item.report if item.has_report else None,
    }


def safe_name(name: str) -> str:
    """A file name from outside as one that no shell, file system or path minds; its ending stays."""
    plain = _UNSAFE.sub("_", name.replace("\\", "/").rpartition("/")[2]).lstrip(".")
    return plain[-_LONGEST_NAME:].lstrip(".") or "file"


def _copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    left = length
    while left:
        chunk = source.read(min(left, _CHUNK_BYTES))
        if not chunk:
            raise InputError("the file ended before its length")
        target.write(chunk)
        left -= len(chunk)
