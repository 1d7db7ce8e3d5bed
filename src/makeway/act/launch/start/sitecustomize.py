"""The start hook: hands a plan to a Python program that imports torch.distributed, and costs others next to nothing.

Python imports the first `sitecustomize` on its path before the program. This one leaves the path again, imports the
one it hid, and has `makeway.act.torch.autostart.begin` called once torch is complete. It loads nothing that Python has
not loaded, runs on Python 3.7 and later, and writes what goes wrong to the receipts instead of raising it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# torchrun, Open MPI, Hydra, srun: the nearest to the program first. Inside a Slurm job mpirun's ranks have the
# SLURM_PROCID of the batch script or of mpirun's own daemon; the batch script itself has one, and no step.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
SLURM_STEP = "SLURM_STEP_ID"
RULES, RECEIPTS, PLAN = "MAKEWAY_RULES", "MAKEWAY_RECEIPTS", "MAKEWAY_PLAN"  # by which a plan reaches a process


def rank_of(environ: Mapping[str, str]) -> int | None:
    """The rank that a launcher gave to this process; None without one. Here, since the hook cannot import makeway."""
    names = RANK_VARIABLES if SLURM_STEP in environ else RANK_VARIABLES[:-1]
    texts = (environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdigit()), None)


class _Watch:
    """A finder that finds nothing: it watches torch being imported, and acts once torch.distributed is complete."""

    names = ("torch", "torch.distributed")

    def __init__(self, plan: str, receipts: str | None) -> None:
        self.plan, self.receipts = plan, receipts
        self.depth = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.names:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    try:  # noqa: SIM105  # contextlib is not loaded yet
                        self.follow(spec.loader)
                    except AttributeError:  # a loader of another kind, or one without writable attributes
                        pass
                    return spec
        return None

    def follow(self, loader: Any) -> None:
        """Notice when the loader has run its module: torch imports torch.distributed half-way."""
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            self.depth += 1
            try:
                load(module)
            finally:
                self.depth -= 1
            if self.depth == 0 and "torch.distributed" in sys.modules:
                self.begin()

        loader.exec_module = exec_module

    def begin(self) -> None:
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        try:
            from importlib import import_module

            import_module("makeway.act.torch.autostart").begin(self.plan, self.receipts)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("makeway")
            what = "makeway is not importable by" if missing else "the start hook failed in"
            write_error(self.receipts, f"{what} {sys.executable}: {type(error).__name__}: {error}")


def write_error(receipts: str | None, message: str) -> None:
    """Leave the receipts file that makeway.act.launch.receipt_file would write."""
    if not receipts:
        return
    try:
        import json

        document: dict[str, Any] = {
            "pid": os.getpid(),
            "rank": rank_of(os.environ),
            "backend": None,
            "error": message,
            "receipts": [],
        }
        target = os.path.join(receipts, f"torch-{os.getpid()}.json")
        with open(f"{target}.new", "w") as file:
            json.dump(document, file)
        os.replace(f"{target}.new", target)
    except Exception:
        pass  # there is nowhere left to report it


def _install() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    if os.environ.get(PLAN):
        watch: Any = _Watch(os.environ[PLAN], os.environ.get(RECEIPTS))
        sys.meta_path.insert(0, watch)


def _import_hidden_sitecustomize() -> None:
    this = sys.modules.pop(__name__)
    try:
        __import__("sitecustomize")  # the next on the path, as if this one did not exist
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, this)


if __name__ == "sitecustomize":
    _install()
    _import_hidden_sitecustomize()
