"""Programs that use torch.distributed in unusual but legal ways run under a plan as they do without."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.attack.running import MAKEWAY, ROOT, environment, run

from makeway.read.plan_file import dump_plan
from makeway.values.control import parse_control
from makeway.values.plan import Plan

PROGRAMS = Path(__file__).parent / "programs"
PLANNED = (*MAKEWAY, "run", "--plan", str(ROOT / "examples" / "cpu-plan.toml"), "--")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

CPU_PLANS = [
    ("copy-engine", "priority"),  # examples/cpu-plan.toml
    ("copy-engine", "chunks=8"),
    ("partition=1", "chunks=8", "priority"),
]
READS_BUCKET_SIZE = "test_ddp_logging_data_cpu"  # expects the default, which `chunks` is there to divide

# Of PyTorch's own tests, what runs on two CPU ranks: collectives, groups, DDP, barriers. Those of joins and uneven
# inputs want GPUs; start_hook.py has its own. All pass without a plan.
SAMPLE = (
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_all_gather",
    "test_all_gather_full_group",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_full_group_sum",
    "test_all_reduce_max",
    "test_all_reduce_sum",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_equal_split",
    "test_all_to_all_single_unequal_split",
    "test_broadcast",
    "test_ddp_create_graph",
    "test_ddp_logging_data_cpu",
    "test_destroy_full_group",
    "test_gather_object",
    "test_get_future",
    "test_grads_same_across_ranks_with_no_sync",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_subgroup",
    "test_reduce_sum_twice",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


def outcomes(place: Path, *command: str | Path, limit_s: float) -> dict[str, str]:
    """What both ranks say of each check: the same, or the worse of the two."""
    place.mkdir()
    ended = run(*command, env=environment(OMP_NUM_THREADS="1"), limit_s=limit_s)
    answers = [json.loads(path.read_text()) for path in sorted(place.glob("rank-*.json"))]
    assert len(answers) == 2, ended.err[-800:]
    merged = {}
    for name in answers[0] | answers[1]:
        said = {answer.get(name, "was not reached") for answer in answers}
        merged[name] = said.pop() if len(said) == 1 else " | ".join(sorted(said - {"ok", "passed"}))
    return merged


def failures(found: dict[str, str]) -> str:
    """One line for each check that failed."""
    return "\n".join(f"{name}: {said}" for name, said in found.items() if said not in ("ok", "passed", "skipped"))


@pytest.mark.long
def test_every_way_of_calling_what_is_replaced_works(tmp_path: Path) -> None:
    place = tmp_path / "place"
    found = outcomes(place, *PLANNED, *TORCHRUN, PROGRAMS / "start_hook.py", place, limit_s=150)
    assert len(found) > 100
    assert not failures(found), failures(found)


@pytest.mark.long
def test_a_sample_of_pytorchs_own_tests_passes(tmp_path: Path) -> None:
    place = tmp_path / "place"
    found = outcomes(place, *PLANNED, *TORCHRUN, PROGRAMS / "torch_own_tests.py", place, *SAMPLE, limit_s=150)
    assert not failures(found), failures(found)
    assert list(found.values()) == ["passed"] * len(SAMPLE)


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """PyTorch's own tests that pass without a plan."""
    place = tmp_path_factory.mktemp("plain") / "place"
    found = outcomes(place, *TORCHRUN, PROGRAMS / "torch_own_tests.py", place, "all", limit_s=1800)
    return frozenset(name for name, said in found.items() if said == "passed")


@pytest.mark.long
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("controls", CPU_PLANS, ids="+".join)
def test_pytorchs_own_tests_end_as_without_a_plan(
    controls: tuple[str, ...], passing: frozenset[str], tmp_path: Path
) -> None:
    assert len(passing) > 80
    place, plan = tmp_path / "place", tmp_path / "plan.toml"
    plan.write_text(dump_plan(Plan(controls=tuple(map(parse_control, controls)))))
    planned = (*MAKEWAY, "run", "--plan", str(plan), "--")
    found = outcomes(place, *planned, *TORCHRUN, PROGRAMS / "torch_own_tests.py", place, "all", limit_s=1800)
    changed = {READS_BUCKET_SIZE} if "chunks=8" in controls else set()
    assert {name: found.get(name) for name in passing - changed if found.get(name) != "passed"} == {}
