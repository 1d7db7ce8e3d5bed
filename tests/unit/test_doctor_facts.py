"""Facts of machines that are not here: whatever lies in /proc and /sys is read, and nothing there can break it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.doctor.cgroup import cgroup_limits
from makeway.act.doctor.facts import Machine, cautions, look_around
from makeway.act.doctor.gpus import Gpus, amd_gpus, gfx_name, mps_pipe, nvidia_gpus

INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 10
GPU UUID: \t GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b
Bus Location: \t 0000:62:00.0
GPU Excluded:\t No
"""
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 11.4.0\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (root@host)\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def seen(root: Path, environ: dict[str, str] | None = None, **packages: str) -> Machine:
    return look_around(
        environ or {}, root, which=lambda tool: None, version=lambda name: packages.get(name.replace("-", "_"))
    )


# --- GPUs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "driver"), [(CLOSED, "535.129.03"), (OPEN, "570.124.06"), ("", None)])
def test_nvidia_gpus_are_named_as_their_driver_names_them(tmp_path: Path, version: str, driver: str | None) -> None:
    gpus = "proc/driver/nvidia/gpus"
    write(tmp_path, {f"{gpus}/0000:6{n}:00.0/information": INFORMATION for n in range(2)})
    write(tmp_path, {"proc/driver/nvidia/version": version})
    assert nvidia_gpus(tmp_path) == Gpus(names=("NVIDIA H100 80GB HBM3",) * 2, driver=driver)


def test_without_the_drivers_files_gpus_are_counted_by_their_device_nodes(tmp_path: Path) -> None:
    write(tmp_path, {f"dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")})
    found = nvidia_gpus(tmp_path)
    assert len(found.names) == 2
    assert found.driver is None


def test_mig_instances_are_counted_over_all_gpus(tmp_path: Path) -> None:
    instances = ("gpu0/mig/gi1/access", "gpu0/mig/gi2/ci0/access", "gpu1/mig/gi7/access", "mig/config")
    write(tmp_path, {f"proc/driver/nvidia/capabilities/{name}": "" for name in instances})
    assert nvidia_gpus(tmp_path).mig_instances == 3


def test_amd_gpus_are_the_nodes_with_simds(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(
        tmp_path,
        {
            f"{nodes}/0/properties": "cpu_cores_count 96\nsimd_count 0\nsimd_per_cu 0\ngfx_target_version 0\n",
            f"{nodes}/1/properties": "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\n",
        },
    )
    assert amd_gpus(tmp_path).names == ("gfx942, 304 CUs",)


@pytest.mark.parametrize(("number", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100")])
def test_kfds_numbers_are_llvms_names(number: int, name: str) -> None:
    assert gfx_name(number) == name


def test_the_mps_pipe_is_looked_for_where_the_variable_says(tmp_path: Path) -> None:
    assert mps_pipe({}, tmp_path) is None
    write(tmp_path, {"tmp/nvidia-mps/control": "", "elsewhere/control": ""})
    assert mps_pipe({}, tmp_path) == str(tmp_path / "tmp/nvidia-mps/control")
    there = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "elsewhere")}
    assert mps_pipe(there, tmp_path) == str(tmp_path / "elsewhere/control")
    assert mps_pipe({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "nowhere")}, tmp_path) is None


# --- control groups ------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(1, 64), min_size=1, max_size=5))
def test_the_tightest_limit_on_the_way_up_counts(
    tmp_path_factory: pytest.TempPathFactory, cores: list[int | None]
) -> None:
    root = tmp_path_factory.mktemp("machine")
    place, path = "sys/fs/cgroup", ""
    for depth, limit in enumerate(cores):
        path += f"/level{depth}"
        words = "max 100000" if limit is None else f"{limit * 100_000} 100000"
        size = "max" if limit is None else str(limit * 2**30)
        write(root, {f"{place}{path}/cpu.max": words, f"{place}{path}/memory.max": size})
    write(root, {"proc/self/cgroup": f"0::{path}\n"})
    found, least = cgroup_limits(root), min((limit for limit in cores if limit), default=None)
    assert found.cpus == least
    assert found.memory_bytes == (None if least is None else least * 2**30)


def test_version_1_has_files_for_each_controller(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n2:cpu,cpuacct:/\n1:cpuset:/job\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/cpuset/job/cpuset.cpus": "2-5\n",
        },
    )
    found = cgroup_limits(tmp_path)
    assert (found.cpus, found.memory_bytes, found.cpuset) == (1.5, 2**30, "2-5")


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"})
    assert cgroup_limits(tmp_path).cpus is None


# --- whole machines ------------------------------------------------------------------------------


def test_an_empty_machine_is_described_without_harm(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert found.nvidia == found.amd == Gpus()
    assert {found.torch, found.compiler, found.mps, found.shm_free_bytes, found.nccl, found.rccl} == {None}
    assert found.no_user_namespaces == "the kernel has none"
    assert found.missing_link_tools == ("unshare", "nsenter", "setpriv", "ip", "tc")
    assert cautions(found) == ()


ODD = (
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/gpus/0/information",
    "proc/self/cgroup",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max",
    "sys/class/kfd/kfd/topology/nodes/0/properties",
    "opt/rocm/include/rccl/rccl.h",
)


@given(st.sampled_from(ODD), st.binary(max_size=60) | st.text("0123456789:/,. max\n-", max_size=40).map(str.encode))
def test_whatever_a_file_holds_the_machine_is_described(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    root = write(tmp_path_factory.mktemp("machine"), {name: ""})
    (root / name).write_bytes(content)
    assert seen(root).cores >= 1


def test_a_directory_where_a_file_should_be_counts_as_nothing(tmp_path: Path) -> None:
    for name in ODD:
        (tmp_path / name).mkdir(parents=True)
    assert seen(tmp_path).nvidia.driver is None


def test_a_torch_whose_files_are_gone_still_has_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ValueError(f"{name}.__spec__ is None")

    monkeypatch.setattr("importlib.util.find_spec", broken)
    found = seen(tmp_path, torch="2.13.0").torch
    assert found is not None
    assert (found.version, found.cuda, found.hip) == ("2.13.0", None, None)


def test_rccls_version_is_read_from_its_header(tmp_path: Path) -> None:
    header = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 7\n"
    assert seen(write(tmp_path, {"opt/rocm/include/rccl/rccl.h": header})).rccl == "2.27.7"


def test_variables_that_matter_are_listed_and_others_are_nobodys_business(tmp_path: Path) -> None:
    environ = {"NCCL_MAX_CTAS": "8", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "HOME": "/root", "SECRET_NCCL_KEY": "x"}
    found = seen(tmp_path, environ)
    assert found.variables == (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("NCCL_MAX_CTAS", "8"))
    assert "launch order" in cautions(found)[0]


def test_what_stands_in_the_way_is_said(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/fs/cgroup/cpu.max": "50000 100000",
            "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access": "",
            "tmp/nvidia-mps/control": "",
        },
    )
    words = " ".join(cautions(seen(tmp_path, {"CUDA_LAUNCH_BLOCKING": "1"})))
    for word in ("CUDA_LAUNCH_BLOCKING", "1 MIG instances", "MPS", "allows 0.5 of"):
        assert word in words


@pytest.mark.parametrize(
    ("environ", "found"),
    [({}, "/usr/bin/gcc"), ({"CC": "clang -m64"}, "/usr/bin/clang"), ({"CC": "tcc"}, None)],
)
def test_the_compiler_is_the_one_that_cc_names_and_no_other(
    tmp_path: Path, environ: dict[str, str], found: str | None
) -> None:
    tools = {"gcc": "/usr/bin/gcc", "clang": "/usr/bin/clang"}
    assert look_around(environ, tmp_path, which=tools.get, version=lambda name: None).compiler == found
