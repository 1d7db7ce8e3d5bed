"""Exports: every target answers for every control, and its text is what the target can read."""

from __future__ import annotations

import ast
import csv
import shlex
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.export.nccl import COLUMNS, LARGEST, TUNED
from makeway.act.export.targets import TARGETS, export
from makeway.act.export.values import Export, library_of, thread_choices
from makeway.show.report import report_of
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.errors import InputError, UnknownNameError
from makeway.values.plan import MadeFor, Plan

ALL: tuple[Control, ...] = (
    SmemPad(48 * 1024, "gemm*"),
    TileChoice(64, 64, 32),
    CommPriority(),
    LaunchOrder(),
    CommBlocks(16),
    CommThreads(288),
    SmPartition(16),
    OwnCores(),
    CopyEngine(),
    Chunks(4),
    Compress("bf16"),
)
H100 = MadeFor(workload="gemm-ar", device="H100-SXM5-80GB", ranks=8, library="nccl-2.32.3/ring-simple")
MI300X = MadeFor(workload="gemm-ar", device="MI300X", ranks=8, library="rccl-5.4.3/generic")
LIBRARIES = (None, MadeFor(), H100, MI300X, MadeFor(library="nccl-2.21.5/sendrecv"), MadeFor(library="threads=512"))


def plan_of(*controls: Control, made_for: MadeFor | None = H100) -> Plan:
    return Plan(controls=controls, made_for=made_for)


def carried(exported: Export) -> dict[Control, dict[str, Any]]:
    return {entry.control: dict(entry.settings) for entry in exported.carried}


def test_every_kind_of_control_is_tried() -> None:
    assert {type(control) for control in ALL} == set(get_args(Control))


@pytest.mark.parametrize("made_for", LIBRARIES)
@pytest.mark.parametrize("control", ALL)
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_carries_a_control_or_says_why_not(target: str, control: Control, made_for: MadeFor | None) -> None:
    exported = export(plan_of(control, made_for=made_for), target)
    assert [entry.control for entry in (*exported.carried, *exported.refused)] == [control]
    for refusal in exported.refused:
        assert len(refusal.refusal) > 20
        assert refusal.refusal in exported.text
    for entry in exported.carried:
        assert entry.settings or entry.note
        assert all(key.rpartition(".")[2] in exported.text for key, _ in entry.settings)
    assert ("Nothing to set" in exported.text) == (not exported.carried)


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_without_controls_says_so(target: str) -> None:
    exported = export(plan_of(), target)
    assert not exported.carried
    assert not exported.refused
    assert "The plan has no controls" in exported.text


@pytest.mark.parametrize("target", TARGETS)
def test_an_export_as_data_says_the_same(target: str) -> None:
    exported = export(plan_of(*ALL), target)
    document = report_of(exported).data
    assert document.keys() == {"target", "carrier", "text", "carried", "not_carried"}
    assert len(document["carried"]) + len(document["not_carried"]) == len(ALL)
    assert all(entry.keys() == {"control", "settings", "note"} for entry in document["carried"])
    assert all(entry.keys() == {"control", "reason"} for entry in document["not_carried"])


@pytest.mark.parametrize("target", TARGETS)
def test_every_control_has_a_receipt_and_none_claims_that_a_written_setting_acts(target: str) -> None:
    exported = export(plan_of(*ALL), target)
    assert [receipt.control for receipt in exported.receipts] == list(ALL)
    refused = {entry.control for entry in exported.refused}
    for receipt in exported.receipts:
        assert receipt.status == ("refused" if receipt.control in refused else "not seen")
        assert receipt.carrier == exported.carrier
        assert receipt.detail


def test_an_unknown_target_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'xla'"):
        export(plan_of(), "xlaa")


# --- what reads the text -----------------------------------------------------------------------


def sourced(text: str, tmp_path: Path, **before: str) -> dict[str, str]:
    """The environment after `. FILE` in a shell that starts from nothing."""
    file = tmp_path / "plan.env"
    file.write_text(text)
    subprocess.run(["sh", "-n", str(file)], check=True)
    command = f". {shlex.quote(str(file))}; env -0"
    given_before = [f"{name}={value}" for name, value in before.items()]
    done = subprocess.run(
        ["env", "-i", *given_before, "sh", "-c", command], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stderr == ""
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


def python_values(text: str) -> dict[str, Any]:
    """The constants that a module assigns to names at its top level."""
    tree = ast.parse(text)
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return {
        node.targets[0].id: ast.literal_eval(node.value) for node in assigned if isinstance(node.targets[0], ast.Name)
    }


def yaml_values(text: str) -> dict[str, dict[str, Any]]:
    """The mapping of mappings in the small part of YAML that Megatron's file uses; anything else fails."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if lines == ["{}"]:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if not line.startswith(" "):
            assert line.endswith(":")
            group = found.setdefault(line.removesuffix(":"), {})
        else:
            key, value = line.removeprefix("  ").split(": ")
            group[key] = {"true": True, "false": False}[value] if value.isalpha() else int(value)
    return found


names = st.text(min_size=1, max_size=12)
strange = st.builds(MadeFor, workload=names, device=names, library=st.none() | names)


@given(strange, st.builds(SmemPad, st.integers(1, 10**6), names))
def test_words_of_a_plan_cannot_leave_the_comments(made_for: MadeFor, pad: SmemPad) -> None:
    plan = plan_of(pad, CommBlocks(16), made_for=made_for)
    for target in TARGETS:
        text = export(plan, target).text
        plain = export(plan_of(CommBlocks(16), made_for=None), target).text
        assert [line for line in text.split("\n") if not line.startswith("#")] == [
            line for line in plain.split("\n") if not line.startswith("#")
        ]


def test_variables_reach_a_program_as_the_plan_says(tmp_path: Path) -> None:
    found = sourced(export(plan_of(*ALL), "env").text, tmp_path)
    assert {name: value for name, value in found.items() if name.startswith(("NCCL", "TORCH", "CUDA"))} == {
        "TORCH_NCCL_HIGH_PRIORITY": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_MIN_CTAS": "16",
        "NCCL_MAX_CTAS": "16",
        "NCCL_NTHREADS": "256",
        "NCCL_CTA_POLICY": "ZERO",
    }


def test_a_strange_plan_runs_nothing_in_a_shell(tmp_path: Path) -> None:
    bad = "x\ntouch broken; $(touch broken) `touch broken` '\""
    plan = plan_of(SmemPad(1024, bad), CommBlocks(8), made_for=MadeFor(workload=bad, device=bad, library=bad))
    for target in ("env", "xla"):
        sourced(export(plan, target).text, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["plan.env"]


def test_flags_for_xla_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    text = export(plan_of(*ALL), "xla").text
    alone = sourced(text, tmp_path)["XLA_FLAGS"]
    assert alone.split() == [
        "--xla_gpu_enable_highest_priority_async_stream=true",
        "--xla_gpu_enable_latency_hiding_scheduler=true",
        "--xla_gpu_nccl_collective_max_nchannels=16",
        "--xla_gpu_nccl_p2p_max_nchannels=16",
        "--xla_gpu_experimental_enable_nccl_symmetric_buffers=true",
    ]
    assert sourced(text, tmp_path, XLA_FLAGS="--mine=1")["XLA_FLAGS"] == f"--mine=1 {alone}"


@pytest.mark.parametrize("path", ["ring-simple", "ring-ll128", "tree-simple", "nvls-simple", "pat-simple"])
def test_the_tuner_file_has_rows_for_every_collective_it_is_asked_about(path: str) -> None:
    text = export(plan_of(*ALL, made_for=MadeFor(library=f"nccl-2.32.3/{path}")), "nccl-tuner").text
    rows = [row for row in csv.reader(text.splitlines()) if not row[0].startswith("#")]
    assert {row[0] for row in rows} == set(TUNED)
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert all(row[1:3] == [str(16 * 32 * 1024), str(LARGEST)] and row[5:] == ["16", "-1", "-1"] for row in rows)
    for collective in TUNED:
        mine = [f"{row[3]}-{row[4]}" for row in rows if row[0] == collective]
        assert mine == list(dict.fromkeys([path, "ring-simple"]))  # a ring behind what may not be there


def test_a_python_module_for_torch_sets_the_options() -> None:
    text = export(plan_of(*ALL), "torch").text
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert functions.keys() == {"process_group_options", "compute_stream"}
    assigned = [ast.unparse(node) for node in functions["process_group_options"].body if isinstance(node, ast.Assign)]
    assert assigned == [
        "options = dist.ProcessGroupNCCL.Options()",
        "options.is_high_priority_stream = True",
        "options.config.min_ctas = 16",
        "options.config.max_ctas = 16",
        "options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO",
    ]
    assert "GreenContext.create(num_sms=sms - 16)" in text


@pytest.mark.parametrize("target", ["torch", "transformer-engine", "deepep"])
@pytest.mark.parametrize("control", ALL)
def test_python_compiles_for_each_control_alone(target: str, control: Control) -> None:
    compile(export(plan_of(control), target).text, "export.py", "exec")


def test_megatron_gets_one_mapping_for_each_group() -> None:
    options = {"is_high_priority_stream": True, "min_ctas": 16, "max_ctas": 16}
    assert yaml_values(export(plan_of(*ALL), "megatron", groups=("dp", "ep")).text) == {
        "dp": options,
        "ep": options,
    }
    assert yaml_values(export(plan_of(LaunchOrder()), "megatron").text) == {}


@pytest.mark.parametrize("groups", [(), ("",), ("dp: {}",), ("dp\nep",)])
def test_a_group_is_a_name(groups: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="write for example"):
        export(plan_of(*ALL), "megatron", groups=groups)


def test_groups_are_megatrons() -> None:
    with pytest.raises(InputError, match="process groups are Megatron's"):
        export(plan_of(*ALL), "env", groups=("dp",))


def test_transformer_engine_gets_settings_where_its_methods_read_them() -> None:
    layers = python_values(export(plan_of(*ALL), "transformer-engine").text)["ub_cfgs"]
    assert layers["fc2_fprop"] == {"method": "pipeline", "num_sm": 16, "set_sm_margin": True, "num_splits": 4}
    assert layers["qkv_wgrad"] == {"method": "bulk", "num_sm": 16, "set_sm_margin": True}
    assert layers["fc1_fprop"] == {"method": "ring_exchange", "use_ce": True}
    assert len(layers) == 10


@pytest.mark.parametrize("control", [CommBlocks(33), SmPartition(33)])
def test_transformer_engine_has_flags_for_32_sms(control: Control) -> None:
    [refused] = export(plan_of(control), "transformer-engine").refused
    assert "32 SMs (NVTE_MAX_SMS)" in refused.refusal


def test_transformer_engine_keeps_no_sms_free_for_blocks_alone() -> None:
    layers = python_values(export(plan_of(CommBlocks(8)), "transformer-engine").text)["ub_cfgs"]
    assert all(keys["set_sm_margin"] is False for keys in layers.values())


@pytest.mark.parametrize(
    ("library", "place"),
    [
        ("nccl-2.27.5", "ext-tuner/example)"),
        ("nccl-2.28.3", "ext-tuner/example before 2.29, then plugins/tuner/example)"),
        ("nccl-2.30.4", "plugins/tuner/example)"),
        ("nccl-2.27.3", None),
        ("nccl-2.19.1", None),
    ],
)
def test_the_tuner_file_names_the_plugin_of_its_version(library: str, place: str | None) -> None:
    [entry] = export(plan_of(CommBlocks(8)), "nccl-tuner", library=library).entries
    if place is None:
        assert "needs NCCL 2.27.5 or later" in entry.refusal
    else:
        assert place in entry.note


@pytest.mark.parametrize("target", ["deepep", "transformer-engine", "nccl-tuner"])
def test_plans_for_amd_are_not_carried_by_nvidias_libraries(target: str) -> None:
    assert not export(plan_of(*ALL, made_for=MI300X), target).carried


def test_megatrons_groups_include_the_experts_data_parallel_group() -> None:
    assert "ep_dp" in yaml_values(export(plan_of(CommBlocks(8)), "megatron").text)


def test_transformer_engine_has_one_number_for_blocks_and_sms() -> None:
    exported = export(plan_of(CommBlocks(8), SmPartition(16)), "transformer-engine")
    assert [type(answer.control) for answer in exported.refused] == [SmPartition]
    assert {keys["num_sm"] for keys in python_values(exported.text)["ub_cfgs"].values()} == {8}


@pytest.mark.parametrize(
    ("controls", "calls"),
    [
        ((CommBlocks(24),), ["deep_ep.Buffer.set_num_sms(24)"]),
        ((SmPartition(24),), ["deep_ep.Buffer.set_num_sms(24)", "deep_gemm.set_num_sms(sms - 24)"]),
        ((CommBlocks(8), SmPartition(9)), ["deep_ep.Buffer.set_num_sms(8)", "deep_gemm.set_num_sms(sms - 9)"]),
        ((CommBlocks(7),), []),
        ((SmPartition(9),), []),
    ],
)
def test_deepep_takes_even_numbers(controls: tuple[Control, ...], calls: list[str]) -> None:
    tree = ast.parse(export(plan_of(*controls), "deepep").text)
    assert [ast.unparse(node) for node in tree.body if isinstance(node, ast.Expr)] == calls


# --- versions and libraries --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nccl", "control", "settings"),
    [
        ("2.16.5", CommBlocks(8), {"NCCL_MIN_NCHANNELS": 8, "NCCL_MAX_NCHANNELS": 8}),
        ("2.17", CommBlocks(8), {"NCCL_MIN_CTAS": 8, "NCCL_MAX_CTAS": 8}),
        ("2.24.3", CommBlocks(33), None),
        ("2.25", CommBlocks(33), {"NCCL_MIN_CTAS": 33, "NCCL_MAX_CTAS": 33}),
        ("2.32", CommBlocks(65), None),
        ("2.27.5", CopyEngine(), None),
        ("2.28.3", CopyEngine(), {"NCCL_CTA_POLICY": 2}),
        ("2.29", CopyEngine(), {"NCCL_CTA_POLICY": "ZERO"}),
        (None, CopyEngine(), {"NCCL_CTA_POLICY": 2}),
    ],
)
def test_variables_are_those_of_the_version(
    nccl: str | None, control: Control, settings: dict[str, Any] | None
) -> None:
    library = f"nccl-{nccl}" if nccl else None
    assert carried(export(plan_of(control, made_for=None), "env", library=library)).get(control) == settings


@pytest.mark.parametrize(("nccl", "answered"), [("2.16", 0), ("2.17", 1)])
@pytest.mark.parametrize("target", ["torch", "megatron"])
def test_communicators_have_blocks_since_2_17(target: str, nccl: str, answered: int) -> None:
    assert len(export(plan_of(CommBlocks(8)), target, library=f"nccl-{nccl}").carried) == answered


@pytest.mark.parametrize(
    "library", ["nccl-2", "new", "nccl-2.x", "nccl-2.27.", "nccl--2.27", "2.27", "nccl-2/ring-simple"]
)
def test_a_library_is_a_name_and_a_version(library: str) -> None:
    with pytest.raises(InputError, match=r"write for example nccl-2\.27"):
        export(plan_of(), "env", library=library)


def test_the_library_comes_from_the_plan_or_its_device() -> None:
    assert library_of(plan_of()).version == (2, 32, 3)
    assert library_of(plan_of(), "nccl-2.20").version == (2, 20)
    assert library_of(plan_of(), "nccl-2.20").path == "ring-simple"
    assert library_of(plan_of(), "nccl-2.20.3/sendrecv").path == "sendrecv"
    assert library_of(plan_of(), "rccl-5.4.3").name == "rccl"
    assert library_of(plan_of(made_for=MI300X)).name == "rccl"
    assert library_of(plan_of(made_for=MadeFor(device="MI300X"))).name == "rccl"
    assert library_of(plan_of(made_for=MadeFor(device="of my own"))).name == "nccl"
    assert library_of(plan_of(made_for=MadeFor(library="nccl-mine/ring-simple"))).version is None


@pytest.mark.parametrize("path", ["ring-simple", "ring-ll", "ring-ll128"])
def test_threads_are_set_by_the_setting_of_the_footprint(path: str) -> None:
    made_for = MadeFor(library=f"nccl-2.27.5/{path}")
    choices, _ = thread_choices(library_of(plan_of(made_for=made_for)))
    assert len(choices) > 1
    for choice in choices:
        control = CommThreads(choice.threads)
        settings = carried(export(plan_of(control, made_for=made_for), "env"))[control]
        assert [f"{key}={value}" for key, value in settings.items()] == ([choice.setting] if choice.setting else [])


def test_threads_that_no_setting_gives_are_refused() -> None:
    [refusal] = export(plan_of(CommThreads(96)), "env").refused
    assert "544, 288, 160, 128" in refusal.refusal


def test_send_and_receive_have_variables_of_their_own() -> None:
    exported = export(plan_of(CommBlocks(8), made_for=MadeFor(library="nccl-2.32.3/sendrecv")), "env")
    assert carried(exported)[CommBlocks(8)].keys() == {
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
        "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS",
    }
    assert not export(plan_of(CommBlocks(8), made_for=MadeFor(library="nccl-2.32.3/sendrecv")), "nccl-tuner").carried


def test_what_is_cudas_is_not_exported_for_amd() -> None:
    for target in TARGETS:
        text = export(plan_of(*ALL, made_for=MI300X), target).text
        settings = [line for line in text.splitlines() if not line.startswith("#")]
        assert not any("CUDA_DEVICE" in line or "GreenContext" in line or "NTHREADS" in line for line in settings)


def test_a_copy_variant_that_no_target_takes_is_noted() -> None:
    for target in ("env", "torch", "transformer-engine", "xla"):
        for control, noted in ((CopyEngine(), False), (CopyEngine("broadcast", True), True)):
            [entry] = export(plan_of(control), target).carried
            assert ("variant and prelaunch are not carried" in entry.note) == noted


CLUSTER_KEYS = {
    "env": "NCCL_CGA_CLUSTER_SIZE",
    "torch": "options.config.cga_cluster_size",
    "megatron": "cga_cluster_size",
    "transformer-engine": "cga_size",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("made_for", [H100, MI300X])
def test_a_cluster_is_carried_or_said_to_be_left_out(target: str, made_for: MadeFor) -> None:
    """Keys: NCCL, src/init.cc; Megatron, get_nccl_options; Transformer Engine, initialize_ub."""
    plain, clustered = (
        export(plan_of(CommBlocks(16, cluster), made_for=made_for), target).entries[0] for cluster in (None, 2)
    )
    assert bool(plain.refusal) == bool(clustered.refusal)
    if clustered.refusal:
        return
    more = {(key, str(value)) for key, value in clustered.settings if (key, value) not in plain.settings}
    wanted = {(CLUSTER_KEYS[target], "2")} if target in CLUSTER_KEYS and made_for is H100 else set()
    assert more == wanted
    assert ("the cluster is not carried" in clustered.note) == (not wanted)
    assert "not carried" not in plain.note


def test_clusters_are_refused_for_libraries_that_have_none() -> None:
    [entry] = export(plan_of(CommBlocks(16, 2)), "env", library="nccl-2.15").entries
    assert "2.16" in entry.refusal


def test_variables_are_known_to_the_real_library(libnccl: Path) -> None:
    content = libnccl.read_bytes()
    plans = [
        plan_of(*ALL),
        plan_of(CommBlocks(8, 2)),
        plan_of(CommBlocks(8), made_for=MadeFor(library="nccl-2.32.3/sendrecv")),
    ]
    names = {
        key
        for plan in plans
        for library in (None, "nccl-2.16")
        for entry in export(plan, "env", library=library).carried
        for key, _ in entry.settings
        if key.startswith("NCCL_")
    }
    assert len(names) >= 8
    for name in names:
        assert name.encode() + b"\0" in content, name
