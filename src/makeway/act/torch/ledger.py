"""The receipts file of one process: what became of each control, rewritten whenever that changes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from makeway.act.backend import Receipt, Status
from makeway.act.launch.environment import rank_of
from makeway.values.control import Control, control_word


class Ledger:
    """Receipts by control, in the order of the plan; `torch-<pid>.json` in the directory, or nowhere without one.

    A child made by fork has the ledger but writes nothing: the file belongs to its parent.
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

    def set(self, receipts: Iterable[Receipt]) -> None:
        """New receipts for their controls; the file is written when one of them says something new."""
        with self._lock:
            before = dict(self._receipts)
            self._receipts |= {receipt.control: receipt for receipt in receipts}
            if before != self._receipts:
                self._write()

    def say(self, control: Control, status: Status, detail: str) -> None:
        self.set([Receipt(control=control, status=status, detail=detail)])

    def fail(self, error: BaseException, controls: Iterable[Control] = ()) -> None:
        """Nothing more can be applied: said of the process, and of every control that has no receipt yet."""
        words = f"{type(error).__name__}: {error}"
        with self._lock:
            self.error = words
            for control in controls:
                receipt = Receipt(control=control, status="refused", detail=f"could not be applied: {words}")
                self._receipts.setdefault(control, receipt)
            self._write()

    def _write(self) -> None:
        if self.directory is None or os.getpid() != self._pid:
            return
        document = {
            "pid": self._pid,
            "rank": self.rank,
            "backend": self.backend,
            "error": self.error,
            "receipts": [
                {"control": control_word(receipt.control), "status": receipt.status, "detail": receipt.detail}
                for receipt in self._receipts.values()
            ],
        }
        target = self.directory / f"torch-{self._pid}.json"
        unfinished = target.with_name(f".{target.name}.new")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(document, indent=1) + "\n")
            unfinished.replace(target)
        except OSError as error:  # a full or vanished directory must not stop the program
            self.error = f"receipts cannot be written to {self.directory}: {error}"
