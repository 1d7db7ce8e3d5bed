"""The support table: complete, with a source for every row, and in agreement with exports, back ends and receipts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from makeway.act.cuda.graph import GraphChanges, control_receipts
from makeway.act.doctor.works import SAMPLES
from makeway.act.export.targets import TARGETS, export
from makeway.act.preload.rules import rules_of
from makeway.values.control import CommBlocks, CommPriority, Control, SmPartition
from makeway.values.errors import DataFileError, UnknownNameError
from makeway.values.plan import MadeFor, Plan
from makeway.values.support import (
    CONTROL_NAMES,
    Carrier,
    Platform,
    carriers,
    carriers_of,
    parse_carrier,
    support,
    support_table,
)

ROOT = Path(__file__).parents[2]
NCCL = MadeFor(device="H100-SXM5-80GB", library="nccl-2.32.3/ring-simple")
RCCL = MadeFor(device="MI300X", library="rccl-5.4.3/generic")
EXPORTED = tuple(carrier for carrier in support_table().values() if carrier.target is not None)
# In sizes that every target takes: DeepEP wants even numbers.
CONTROLS = tuple({type(control): control for control in (*SAMPLES, CommBlocks(2), SmPartition(2))}.values())


def document(**changes: Any) -> dict[str, Any]:
    rows = {name: {"supported": True, "how": "a setting", "verified": "a count"} for name in CONTROL_NAMES}
    whole = {"name": "ours", "platforms": ["cuda"], "source": "here", "sources": {"here": "a page"}, "controls": rows}
    return whole | changes


# --- the table itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", carriers())
def test_every_carrier_answers_for_every_control_with_a_source(carrier: str) -> None:
    rows = support_table()[carrier].rows
    assert tuple(rows) == CONTROL_NAMES
    for name, row in rows.items():
        assert (row.control, row.carrier) == (name, carrier)
        assert len(row.source) > 10
        assert bool(row.how) == bool(row.verified) == row.supported
        assert bool(row.why_not) != row.supported


def test_every_control_has_a_carrier_and_a_carrier_that_lacks_it() -> None:
    for name in CONTROL_NAMES:
        assert {support(name, carrier).supported for carrier in carriers()} == {True, False}


def test_the_carriers_are_those_that_the_code_names() -> None:
    assert {carrier.target: carrier.name for carrier in EXPORTED} == {
        name: target.carrier for name, target in TARGETS.items()
    }
    assert {
        "launch shim (CUDA)",
        "launch shim (HIP)",
        "CUDA graph",
        "torch on CUDA",
        "torch on ROCm",
        "torch on CPU",
        "tuner plugin",
    } | {target.carrier for target in TARGETS.values()} == set(carriers())


def test_an_unknown_name_is_an_error_that_suggests_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'XLA'"):
        support("pad", "XLAA")
    with pytest.raises(UnknownNameError, match="did you mean 'chunks'"):
        support("chunk", "XLA")


def test_a_version_before_the_first_one_is_refused_with_the_target_to_try() -> None:
    row = support("comm-blocks", "Megatron")
    assert row.refusal("cuda", (2, 16, 5)) == "needs NCCL 2.17 or later; try makeway export --to env"
    assert row.refusal("cuda", (2, 17)) is None
    assert row.refusal("cuda") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"controls": {}}, "no row for pad, tile"),
        ({"platforms": ["tpu"]}, "platforms must name some of"),
        ({"controls": document()["controls"] | {"padd": {}}}, "unknown key 'padd'"),
        ({"controls": document()["controls"] | {"pad": {"supported": True}}}, "say how"),
        ({"controls": document()["controls"] | {"pad": {"supported": False}}}, "say how it is carried, or why not"),
        ({"controls": document()["controls"] | {"pad": {"how": "x"}}}, "true or false"),
        ({"controls": document()["controls"] | {"pad": {"supported": True, "hwo": "x"}}}, "unknown key 'hwo'"),
        ({"source": "there"}, "source 'there' is not listed"),
        ({"not_on": {"tpu": "no"}}, "unknown key 'tpu'"),
        ({"nmae": "x"}, "unknown key 'nmae'"),
        ({"run": ["padd"]}, "run names padd"),
        ({"controls": document()["controls"] | {"pad": {"supported": True, "how": "x"}}}, "by what it is verified"),
    ],
)
def test_a_file_with_a_gap_or_a_typing_error_is_refused(changes: dict[str, Any], message: str) -> None:
    assert isinstance(parse_carrier(document(), {}, "ours.toml"), Carrier)
    with pytest.raises(DataFileError, match=message):
        parse_carrier(document(**changes), {}, "ours.toml")


def test_a_carrier_is_named_only_on_its_own_platform() -> None:
    assert carriers_of(CommPriority(), "cuda")
    assert not {"torch on CPU", "launch shim (HIP)"} & set(carriers_of(CommPriority(), "cuda"))
    assert set(carriers_of(CommPriority(), "cpu")) == {"torch on CPU"}


# --- exports say the same --------------------------------------------------------------------------


@pytest.mark.parametrize("made_for", [NCCL, RCCL], ids=["nccl", "rccl"])
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
@pytest.mark.parametrize("carrier", EXPORTED, ids=lambda carrier: carrier.target)
def test_a_target_carries_a_control_exactly_where_the_table_supports_it(
    carrier: Carrier, control: Control, made_for: MadeFor
) -> None:
    platform: Platform = "rocm" if made_for is RCCL else "cuda"
    exported = export(Plan(controls=(control,), made_for=made_for), str(carrier.target))
    refusal = carrier.rows[control.name].refusal(platform)
    assert [entry.refusal for entry in exported.refused] == ([] if refusal is None else [refusal])
    assert bool(exported.carried) == (refusal is None)


# --- so do the launch shim and graphs --------------------------------------------------------------


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_the_launch_shim_gets_rules_exactly_for_what_the_table_supports(control: Control) -> None:
    rules = rules_of(Plan(controls=(control,)))
    assert bool(rules.launches or rules.raise_comm_priority) == support(control, "launch shim (CUDA)").supported


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_a_graph_has_a_receipt_exactly_for_what_the_table_supports(control: Control) -> None:
    nothing = GraphChanges(nodes=(), limits=(), notes=(), graph=0, executable=None)
    receipts = control_receipts(nothing, Plan(controls=(control,)))
    assert [receipt.carrier for receipt in receipts] == ["CUDA graph"] * support(control, "CUDA graph").supported


# --- and the docs ----------------------------------------------------------------------------------


def test_the_page_of_carriers_is_what_its_script_writes(tmp_path: Path) -> None:
    written = tmp_path / "support.md"
    subprocess.run([sys.executable, ROOT / "scripts" / "docs-support", written], check=True)
    page = ROOT / "docs" / "reference" / "support.md"
    assert page.read_text(encoding="utf-8") == written.read_text(encoding="utf-8"), "stale: run scripts/docs-support"
