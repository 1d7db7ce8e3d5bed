"""The receipts file of one Python process: rewritten whenever a receipt changes, and read by `makeway run`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from makeway.act.launch.start.sitecustomize import rank_of
from makeway.values.control import Control, control_word, parse_control
from makeway.values.errors import InputError
from makeway.values.receipt import Receipt, Status


class ReceiptFile:
    """Receipts by control, in the order of the plan; `torch-<pid>.json` in the directory, or nowhere without one.

    A child made by fork inherits it but writes nothing: the file belongs to its parent.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.backend = "cpu"
        self.rank = rank_of(os.environ)
        self.error: str | None = None
        self._pid = os.getpid()
        self._receipts: dict[Control, Receipt] = {}
        self._lock = threading.Lock()

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return tuple(self._receipts.values())

    def set(self, *receipts: Receipt) -> None:
        """New receipts for their controls; the file is written when one of them changed."""
        with self._lock:
            before = dict(self._receipts)
            self._receipts |= {receipt.control: replace(receipt, rank=self.rank) for receipt in receipts}
            if before != self._receipts:
                self._write()

    def fail(self, error: BaseException, controls: Iterable[Control] = ()) -> None:
        """Note that nothing more can be applied, in the file and for every control without a receipt."""
        message = f"{type(error).__name__}: {error}"
        with self._lock:
            self.error = message
            for control in controls:
                detail = f"could not be applied: {message}"
                self._receipts.setdefault(
                    control, Receipt(control=control, status="refused", detail=detail, rank=self.rank)
                )
            self._write()

    def _write(self) -> None:
        if self.directory is None or os.getpid() != self._pid:
            return
        rows = [
            _Row(control_word(receipt.control), receipt.status, receipt.detail, receipt.carrier, dict(receipt.evidence))
            for receipt in self._receipts.values()
        ]
        document = _Document(self._pid, self.rank, self.backend, self.error, tuple(rows))
        target = self.directory / f"torch-{self._pid}.json"
        unfinished = target.with_name(f".{target.name}.new")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
            unfinished.replace(target)
        except OSError as error:  # a full or vanished directory must not stop the program
            self.error = f"receipts cannot be written to {self.directory}: {error}"


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReceipts:
    """What one Python process reports; `error`: why it could apply nothing (more)."""

    pid: int
    rank: int | None = None
    error: str | None = None
    receipts: tuple[Receipt, ...] = ()


class _Row(msgspec.Struct):
    control: str
    status: Status
    detail: str
    carrier: str = ""
    evidence: dict[str, int] = {}


class _Document(msgspec.Struct):
    pid: int
    rank: int | None = None
    backend: str | None = None
    error: str | None = None
    receipts: tuple[_Row, ...] = ()


def read_receipt_files(directory: Path) -> tuple[ProcessReceipts, ...]:
    """The receipts of all Python processes; a file that cannot be read becomes an error of its process."""
    return tuple(_read(path) for path in sorted(directory.glob("torch-*.json")))


def _read(path: Path) -> ProcessReceipts:
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
        receipts = tuple(
            Receipt(
                control=parse_control(row.control),
                status=row.status,
                detail=row.detail,
                carrier=row.carrier,
                rank=document.rank,
                evidence=tuple(row.evidence.items()),
            )
            for row in document.receipts
        )
    except (OSError, msgspec.DecodeError, InputError) as error:
        pid = path.stem.removeprefix("torch-")
        message = f"the receipts in {path.name} cannot be read: {error}"
        return ProcessReceipts(pid=int(pid) if pid.isdigit() else 0, error=message)
    return ProcessReceipts(pid=document.pid, rank=document.rank, error=document.error, receipts=receipts)
