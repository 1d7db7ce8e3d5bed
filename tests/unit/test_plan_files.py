"""Plan files: what is written is read back, whatever the words in it, and what cannot hold is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.read.plan_file import KINDS, dump_plan, load_plan, one_line, parse_plan
from makeway.values.control import (
    LOSSY,
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    DmaVariant,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
    control_word,
    parse_control,
)
from makeway.values.errors import DataFileError, InputError, MakewayError
from makeway.values.plan import Forecast, MadeFor, Plan, Rejected

DOCS = Path(__file__).parents[2] / "docs"

counts = st.integers(1, 2**31)
words = st.text(max_size=30)
names = st.text(min_size=1, max_size=12)
controls: dict[str, st.SearchStrategy[Control]] = {
    "pad": st.builds(SmemPad, counts, names),
    "tile": st.builds(TileChoice, counts, counts, counts, names),
    "priority": st.just(CommPriority()),
    "comm-first": st.just(LaunchOrder()),
    "comm-blocks": st.builds(CommBlocks, counts, st.none() | st.integers(1, 8)),
    "comm-threads": st.builds(CommThreads, st.integers(32, 1024)),
    "partition": st.builds(SmPartition, counts),
    "own-cores": st.builds(OwnCores),
    "copy-engine": st.builds(CopyEngine, st.sampled_from(get_args(DmaVariant)), st.booleans()),
    "chunks": st.builds(Chunks, counts),
    "compress": st.builds(Compress, st.sampled_from(("fp16", "bf16")))
    | st.builds(Compress, st.just("powersgd"), counts)
    | st.builds(Compress, st.just("topk"), st.none(), st.floats(1e-9, 1.0)),
}
some_controls = st.lists(st.sampled_from(sorted(controls)), unique=True).flatmap(
    lambda kinds: st.tuples(*(controls[kind] for kind in kinds))
)
times = st.integers(1, 10**15 - 1)
shares = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    chosen = draw(some_controls)
    return Plan(
        controls=chosen,
        reasons=tuple(draw(words) for _ in chosen),
        made_for=draw(
            st.none()
            | st.builds(
                MadeFor,
                workload=st.none() | words,
                device=st.none() | words,
                ranks=st.none() | counts,
                library=st.none() | words,
            )
        ),
        predicted=draw(
            st.none()
            | st.builds(
                Forecast,
                t_naive_ns=times,
                t_plan_ns=times,
                t_ideal_ns=times,
                t_sequential_ns=st.none() | times,
                share_of_ideal_naive=shares,
                share_of_ideal_plan=shares,
                dispatchers=st.lists(words, max_size=3).map(tuple),
            )
        ),
        rejected=tuple(Rejected(control, draw(words)) for control in draw(some_controls)),
    )


def test_every_kind_of_control_is_drawn() -> None:
    assert controls.keys() == KINDS.keys()
    assert set(KINDS.values()) == set(get_args(Control))


@given(plans())
def test_a_plan_comes_back_from_its_file_and_gives_the_same_file(plan: Plan) -> None:
    text = dump_plan(plan)
    assert parse_plan(text.encode(), where="plan.toml") == plan
    assert dump_plan(parse_plan(text, where="plan.toml")) == text


@given(plans())
def test_a_written_plan_has_no_line_that_its_words_could_have_made(plan: Plan) -> None:
    lines = dump_plan(plan).split("\n")
    shape = re.compile(r'|\[\[?[a-z]+\]\]?|# .*|[a-z_]+ = (".*"|\[.*\]|true|false|[-+0-9.e]+)')
    assert all(shape.fullmatch(line) and one_line(line) == line for line in lines)


@given(st.one_of(*controls.values()))
def test_a_control_and_its_word_name_each_other(control: Control) -> None:
    assert parse_control(control_word(control)) == control
    assert KINDS[control_word(control).partition("=")[0]] is type(control)


@given(st.characters(exclude_categories=["Cs"]))
def test_every_character_survives(character: str) -> None:
    plan = Plan(controls=(CommPriority(),), reasons=(character,))
    assert tomllib.loads(dump_plan(plan))["control"][0].get("reason", "") == character


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InputError, match="surrogate"):
        dump_plan(Plan(controls=(CommPriority(),), reasons=("\ud800",)))


def test_a_written_plan_reads_like_this() -> None:
    plan = Plan(
        controls=(CommPriority(), SmemPad(48 * 1024, "gemm*")),
        reasons=("saves 31 %", ""),
        made_for=MadeFor(workload="gemm-ar", device="H100-SXM5-80GB", ranks=8, library="nccl-2.32.3/ring-simple"),
        predicted=Forecast(
            t_naive_ns=3_000_000, t_plan_ns=2_500_000, t_ideal_ns=2_250_001, dispatchers=("strict", "backfill")
        ),
        rejected=(Rejected(CommBlocks(8), 'slower: "+4 %"'),),
    )
    assert dump_plan(plan) == (
        "# A plan of makeway: the controls to apply, and why. docs/plan-files.md lists the keys.\n"
        "version = 2\n\n"
        '[for]\nworkload = "gemm-ar"\ndevice = "H100-SXM5-80GB"\nranks = 8\nlibrary = "nccl-2.32.3/ring-simple"\n\n'
        '# Simulated, not measured.\n[predicted]\norigin = "predicted"\n'
        't_naive_ms = 3.0\nt_plan_ms = 2.5\nt_ideal_ms = 2.250001\ndispatchers = ["strict", "backfill"]\n\n'
        '# communication at high priority\n[[control]]\nkind = "priority"\nreason = "saves 31 %"\n\n'
        "# pad 48 KiB of shared memory per block of kernels named gemm*\n"
        '[[control]]\nkind = "pad"\npad_bytes = 49152\nkernel = "gemm*"\n\n'
        "# rejected: 8 communication blocks\n"
        '[[rejected]]\ncontrol = "comm-blocks=8"\nreason = "slower: \\"+4 %\\""\n'
    )


def test_the_files_of_the_documentation_are_plans() -> None:
    shown = re.findall(r"^~~~toml\n(.*?)^~~~", (DOCS / "plan-files.md").read_text(), re.M | re.S)
    assert shown
    for block in shown:
        assert parse_plan(block, where="plan-files.md").controls


def test_the_documentation_lists_every_key() -> None:
    page = (DOCS / "plan-files.md").read_text()
    keys = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    names = {field.name for value in (MadeFor, Forecast, *KINDS.values()) for field in fields(value)}
    expected = {re.sub("_ns$", "_ms", name) for name in names}
    assert keys == expected | {"version", "origin", "kind", "reason", "control"}


OLD = """
version = 1
[for]
gpus = 8
[predicted]
t_naive_ms = 3.75
t_plan_ms = 2.5
t_ideal_ms = 2.25
[[control]]
kind = "SmPartition"
comm_sms = 8
[[control]]
kind = "CopyEngine"
"""


def test_files_of_version_1_are_still_read() -> None:
    plan = parse_plan(OLD, where="old.toml")
    assert plan.controls == (SmPartition(8), CopyEngine())
    assert plan.made_for == MadeFor(ranks=8)
    assert plan.predicted == Forecast(t_naive_ns=3_750_000, t_plan_ns=2_500_000, t_ideal_ns=2_250_000)
    written = dump_plan(plan)
    assert 'kind = "partition"' in written
    assert parse_plan(written, where="new.toml") == plan


@pytest.mark.parametrize("kind", sorted(set(get_args(Control)) - set(LOSSY), key=str), ids=lambda kind: kind.__name__)
def test_version_1_named_every_control_by_its_class(kind: type[Control]) -> None:
    needs = [field.name for field in fields(kind) if field.default is MISSING]
    values = "".join(f"{name} = 64\n" for name in needs)
    (control,) = parse_plan(f'version = 1\n[[control]]\nkind = "{kind.__name__}"\n{values}', where="old").controls
    assert type(control) is kind


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "version is missing; this makeway reads versions 1 to 2; write version = 2"),
        ("version = true", "version is True"),
        ("version = 0", "version is 0"),
        ('version = "1"', "write version = 2"),
        ("version = 3\nnews = true", "it comes from a newer makeway: use that one"),
        ("version = 2\n[fro]\n", "unknown key 'fro'; did you mean 'for'"),
        ("version = 2\n[for]\ndevise = 'H100'", r"\[for\]: unknown key 'devise'; did you mean 'device'"),
        ("version = 2\n[for]\ndevice = 100", "device must be a string"),
        ("version = 2\n[for]\nranks = 0", "ranks must be a whole number of 1 or more"),
        ("version = 2\nfor = 3", r"\[for\] must be a table"),
        ("version = 2\n[predicted]\nt_naive_ms = 1", "t_plan_ms is missing"),
        ("version = 2\n[predicted]\nt_naive_ms = 1\nt_plan_ms = 1\nt_ideal_ms = '1'", "t_ideal_ms must be a number"),
        ("version = 2\n[predicted]\nt_naive_ms = 1\nt_plan_ms = 1\nt_ideal_ms = nan", "must be a number above 0"),
        ("version = 2\n[predicted]\nt_naive_ms = 1\nt_plan_ms = 1\nt_ideal_ms = 1e300", "below 1e"),
        ("version = 2\n[predicted]\nt_naive_ms = 1\nt_plan_ms = 1\nt_ideal_ms = 1e-9", "must be a number above 0"),
        ("version = 2\n[[control]]\nkind = 'comm-block'", "did you mean 'comm-blocks'"),
        ("version = 2\n[[control]]\nkind = ['pad']", "unknown control kind"),
        ("version = 2\n[predicted]\norigin = 'measured'", "a plan holds predicted times only"),
        (
            "version = 2\n[predicted]\ndispatchers = 'strict'\nt_naive_ms=1\nt_plan_ms=1\nt_ideal_ms=1",
            "list of strings",
        ),
        ("version = 2\n[control]\nkind = 'priority'", r"write each control as a \[\[control\]\] table"),
        ("version = 2\n[[control]]\nkind = 'priority'\nreason = 5", "reason must be a string"),
        ("version = 2\n[[control]]\nkind = 'pad'\npad_bytes = 1\nkernel = 5", "kernel must be a string"),
        ("version = 2\n[[control]]\nkind = 'copy-engine'\nvariant = []", "variant must be a string"),
        ("version = 2\n[[control]]\nkind = 'copy-engine'\nprelaunch = 1", "prelaunch must be true or false"),
        ("version = 2\n[[rejected]]\nreason = 'r'", "control is missing"),
        ("version = 2\n[[rejected]]\ncontrol = 'magic'", "unknown control 'magic'"),
        ("version = 2\n[[rejected]]\ncontrol = 'priority'\nwhy = ''", "unknown key 'why'"),
        ("version = 2\nversion = 2", "not a TOML file"),
    ],
)
def test_a_wrong_file_says_which_key_and_what_to_write(text: str, message: str) -> None:
    with pytest.raises(DataFileError, match=message) as error:
        parse_plan(text, where="mine.toml")
    assert str(error.value).startswith("mine.toml")


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ((CommBlocks(8), CommBlocks(9)), "comm-blocks is set twice; keep one"),
        ((CommPriority(), CommPriority()), "priority is set twice; keep one"),
        ((SmemPad(1024, "a"), SmemPad(2048, "a")), "pad is set twice for the same kernels"),
        ((SmemPad(1024), SmemPad(2048, "gemm*")), "for every kernel and again for kernels named 'gemm\\*'"),
        ((TileChoice(64, 64, 32, "a"), TileChoice(64, 64, 64)), "for every kernel and again"),
        ((SmPartition(0),), "partition=0 leaves communication no SM"),
    ],
)
def test_controls_that_cannot_hold_together_are_refused(controls: tuple[Control, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan(controls=controls)


@pytest.mark.parametrize(
    "controls",
    [
        (SmemPad(1024, "a"), SmemPad(2048, "b")),
        (SmPartition(0), CopyEngine()),
        (CopyEngine(), CommBlocks(8), CommThreads(288), SmPartition(8)),
        (CommPriority(), SmPartition(8), LaunchOrder()),
    ],
)
def test_controls_that_only_make_each_other_needless_are_allowed(controls: tuple[Control, ...]) -> None:
    assert Plan(controls=controls).reasons == ("",) * len(controls)


def test_a_contradiction_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('version = 2\n[[control]]\nkind = "partition"\ncomm_sms = 0\n')
    with pytest.raises(DataFileError, match=r"plan\.toml: partition=0 leaves"):
        load_plan(file)


def test_reasons_belong_to_controls() -> None:
    with pytest.raises(InputError, match="1 controls has 2 reasons"):
        Plan(controls=(CommPriority(),), reasons=("a", "b"))


def test_a_control_for_nameless_kernels_has_no_word() -> None:
    with pytest.raises(MakewayError, match="needs a kernel name"):
        control_word(SmemPad(1024, ""))


def test_a_plan_may_come_from_a_pipe_that_the_shell_opened() -> None:
    plan = Path(__file__).parents[2] / "examples" / "cpu-plan.toml"
    command = f"{sys.executable} -m makeway run --dry-run --json --plan <(cat {plan}) -- true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert '"makeway/dry-run/' in done.stdout
