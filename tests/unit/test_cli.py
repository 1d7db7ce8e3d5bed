"""The command line: contract for scripts, and every wrong input answered with one message and exit 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import makeway
from makeway.cli.main import COMMANDS, main

RESIDENCY = [
    "residency", "--device", "H100-SXM5-80GB", "--compute", "threads=256,registers=98,smem=48KiB",
    "--comm", "nccl-2.32.3/ring-simple",
]  # fmt: skip


def changed(option: str, value: str) -> list[str]:
    arguments = list(RESIDENCY)
    arguments[arguments.index(option) + 1] = value
    return arguments


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_residency_keeps_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, *RESIDENCY)
    assert document["device"] == "H100-SXM5-80GB"
    assert document["compute"]["blocks_alone"] == 2
    assert document["compute"]["binds"] == ["registers"]
    comm = {key: document["comm"][key] for key in ("threads", "registers_per_thread", "smem_bytes", "cluster")}
    assert comm == {"threads": 544, "registers_per_thread": 96, "smem_bytes": 119_040, "cluster": 4}
    assert (document["fits_beside_full"], document["fits_beside_one"]) == (False, False)
    assert document["binds"] == ["registers"]
    assert document["short_of"] == {"registers": 13_312}
    assert document["options"][0]["controls"] == ["comm-threads=128"]
    assert {"compute_blocks", "comm_blocks"} <= set(document["options"][0])
    assert "39,936 registers" in document["verdict"]
    assert "13,312 registers" in document["explanation"]


def test_inspect_keeps_its_contract(capsys: pytest.CaptureFixture[str], triton_kernels: Path) -> None:
    file = triton_kernels / "matmul.sm_90.cubin"
    document = answer(capsys, "inspect", str(file), "--arch", "sm_90")
    assert document["file"] == str(file)
    (kernel,) = document["kernels"]
    assert {"name", "arch", "registers", "threads", "smem_static_bytes"} <= set(kernel)
    assert kernel["smem_dynamic_bytes"] is None


def test_devices_lists_all_and_shows_one_with_sources(capsys: pytest.CaptureFixture[str]) -> None:
    everything = answer(capsys, "devices")
    assert len(everything["devices"]) == 27
    one = answer(capsys, "devices", "NVIDIA A40")
    assert one["name"] == "A40"
    assert all(fact["source"] for fact in one["facts"].values())
    assert one["facts"]["fp16_flops_per_s"]["unconfirmed"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["devices"], ["A100-SXM4-80GB", "not confirmed"]),
        (["devices", "mi250x"], ["MI250X (amd, gfx90a)", "unconfirmed: 8 links less", "[1]: "]),
        (
            RESIDENCY,
            ["No: a 544-thread block", "39,936 of 65,536 short", "NCCL_NTHREADS=64", "unconfirmed smem_static_bytes"],
        ),
        (["inspect", "CUBIN"], ["1 kernel in", "matmul", "launch values"]),
    ],
)
def test_text_output_says_what_a_person_needs(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str], triton_kernels: Path
) -> None:
    cubin = str(triton_kernels / "matmul.sm_90.cubin")
    assert main([cubin if word == "CUBIN" else word for word in arguments]) == 0
    out = capsys.readouterr().out
    assert [text for text in expected if text not in out] == []
    assert max(map(len, out.splitlines())) <= 80


def test_a_name_that_no_kernel_has_is_an_error_with_the_nearest(
    capsys: pytest.CaptureFixture[str], triton_kernels: Path
) -> None:
    cubin = str(triton_kernels / "matmul.sm_90.cubin")
    assert main(["inspect", cubin, "--name", "MatMull"]) == 2
    assert "no kernel name contains 'MatMull'; nearest: matmul" in capsys.readouterr().err
    assert main(["inspect", cubin, "--name", "xyz"]) == 2
    assert "the file has 1, for example matmul" in capsys.readouterr().err
    assert answer(capsys, "inspect", cubin, "--name", "atmu")["kernels"][0]["name"] == "matmul"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["devices", "H100-SXM5-80G"], "did you mean 'H100-SXM5-80GB'"),
        (changed("--device", "H100"), "no limits known for device 'H100'; it could be H100-NVL-94GB, H100-PCIe-80GB"),
        (changed("--device", "A100"), "'A100'; it could be A100-SXM4-40GB, A100-SXM4-80GB: name one"),
        (changed("--device", "CPU-host"), "CPU host"),
        (changed("--device", "missing.toml"), "cannot read device file"),
        (changed("--compute", "threads=0,registers=8"), "threads must be a whole number in 1..1,024, got 0"),
        (changed("--compute", "threads=1025,registers=8"), "got 1025"),
        (
            changed("--compute", "threads=32,registers=256"),
            "256 registers per thread; H100-SXM5-80GB allows at most 255",
        ),
        (changed("--compute", "threads=32,registers=8,smem=228KiB"), "allows at most 227 KiB"),
        (changed("--compute", "threads=32,registers=8,smem=lots"), "'lots' is not a size"),
        (changed("--comm", "mccl-9.9.9/ring-simple"), "no footprints known for library 'mccl-9.9.9'"),
        (changed("--comm", "threads=640,registers=255,smem=0"), "never fit on an SM"),
        (["view", "gem-ar"], "no file or directory gem-ar, and no preset has that name; did you mean 'gemm-ar'?"),
        (["view", "--port", "70000"], "--port takes a number in 0..65,535, got 70000"),
        (["view", "--device", "H100"], "it could be H100-NVL-94GB"),
        (["inspect", "/no/such/file"], "cannot read '/no/such/file': No such file"),
        (["inspect", __file__], "not a cubin, fatbin, hsaco or shared library"),
    ],
)
def test_wrong_input_gets_one_clear_message_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith(f"makeway {arguments[0]}: ")
    assert captured.out == ""
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["residence"], "unknown command 'residence'; did you mean 'residency'"),
        (["residency"], "makeway residency: --device, --compute and --comm are needed"),
        (["residency", "--devise", "x"], "makeway residency: unknown option '--devise'; did you mean '--device'?"),
        (["devices", "A40", "--jsn"], "makeway devices: unknown option '--jsn'; did you mean '--json'?"),
        (["devices", "A40", "again"], "unexpected argument 'again'"),
        (["--jsn"], "makeway: unknown option '--jsn'"),
        (["inspect"], "makeway inspect: FILE is needed"),
        (["inspect", "x", "--reader", "magic"], "--reader takes one of auto, native, cuobjdump, got 'magic'"),
        (
            ["validate", "nope"],
            "PART takes one of grid, tiles, headlines, interference, conccl, dma, scale, got 'nope'",
        ),
        (["simulate", "gemm-ar", "--device"], "--device takes a value"),
        (["plan", "--compare", "a"], "--compare takes 2 values"),
        (["bench", "--ranks", "two"], "--ranks takes a whole number, got 'two'"),
        (["simulate", "gemm-ar", "--device", "A40", "--jitter", "much"], "--jitter takes a number, got 'much'"),
        (["devices", "--width", "0"], "--width takes 40 columns or more, got '0'"),
    ],
)
def test_wrong_options_are_answered_in_two_lines(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.splitlines()[1].startswith(f"usage: makeway {arguments[0] if arguments[0] in COMMANDS else 'COMMAND'}")
    assert error.count("\n") == 2


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(makeway.MakewayError):
        main(["devices", "nothing", "--debug"])


def test_no_command_shows_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"makeway {command}" in capsys.readouterr().out.split("examples:")[1]


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m makeway devices MI250X | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_makeway_loads_nothing_heavy() -> None:
    heavy = ["rich", "torch", "triton", "cuda", "numpy", "lz4", "zstandard", "msgspec", "plotly"]
    code = f"import sys, makeway; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_true() -> None:
    assert all(hasattr(makeway, name) for name in makeway.__all__)
    assert sorted(makeway.__all__) == makeway.__all__


def test_no_public_name_hides_a_module() -> None:
    package = Path(makeway.__file__).parent
    modules = {entry.stem for entry in package.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}
    assert not modules & set(makeway.__all__)
