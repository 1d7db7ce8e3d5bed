"""Build the stand-in drivers, and start programs on them.

A stand-in driver describes a chosen Device, loads real code, enforces the limits that the vendor documents and
records what was launched; it computes nothing. It is for tests of makeway only, with clients that use the
public driver API (cuda-bindings, cuda-core, Triton). It implements none of the private interfaces of NVIDIA's
own runtime, and is never to be used with it.

Environment variables of a stand-in:

`MAKEWAY_STANDIN_DEVICE`   key=value file that describes the device
`MAKEWAY_STANDIN_RECORD`   JSON lines are appended here; "off" or absent: nothing is recorded
`MAKEWAY_STANDIN_UNKNOWN`  "error": a call that is not implemented returns "not supported" instead of aborting
`MAKEWAY_STANDIN_RUN`      kernels stay for a while on simulated SMs (CUDA only): "PATTERN=NS" is a block's time,
                           "PATTERN=NS,waits" whose blocks wait for each other, "back-fill" another dispatch; by ";".
                           Synchronising and the end of the process write what ran, or that it hangs.
`MAKEWAY_STANDIN_REFUSE`   refusals, separated by ";" (launches and shared memory in the order they arrive, from 1):

    launch:N                     the N-th launch
    launch-every:N               each N-th launch
    smem-above:BYTES             launches and graph nodes with more dynamic shared memory than that
    smem-above:BYTES,every:N     each N-th of those
    func-attribute               cuFuncSetAttribute, cuKernelSetAttribute, hipFuncSetAttribute
    node-attribute               cuGraphKernelNodeSetAttribute
    node-params                  cuGraphKernelNodeSetParams, cuGraphExecKernelNodeSetParams
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from importlib.util import find_spec
from pathlib import Path

from tests.standin.devices import device_file
from tests.standin.records import FunctionAttribute, Launch, Stream, Unknown, launches, read_record

from makeway.values.device import load_device

__all__ = [
    "FunctionAttribute",
    "Launch",
    "Stream",
    "Unknown",
    "compiled_client",
    "cuda_driver",
    "environment",
    "hip_runtime",
    "launches",
    "program_kernels",
    "read_record",
    "shared_place",
]

HERE = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-pthread")
PROGRAM_ARCHS = ("sm_80", "sm_86", "sm_90", "gfx90a")
_FORMS = re.compile(r"(cu\w+?)(?:_v(\d+))?(_pt[ds][sz])?")


def cuda_driver(where: Path) -> Path:
    """A directory in `where` that holds libcuda.so.1, compiled unless an earlier call left it there."""
    include = _cuda_include()
    return _library(where, "cuda", "libcuda.so.1", (f"-isystem{include}",), lambda: _cuda_tables(include))


def hip_runtime(where: Path) -> Path:
    """A directory in `where` that holds libamdhip64.so, compiled unless an earlier call left it there."""
    include = _package("triton.backends.amd") / "include"
    return _library(where, "hip", "libamdhip64.so", (f"-isystem{include}",), lambda: _hip_tables(include))


def program_kernels(where: Path) -> Path:
    """A directory in `where` with the kernels of the example programs, compiled by Triton unless they are there."""
    source = HERE / "kernels.py"
    home = where / f"kernels-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not home.exists():
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=where) as scratch:
            out = Path(scratch, "out")
            out.mkdir()
            # in a process of its own: Triton warns on import, and warnings are errors in tests
            command = [sys.executable, "-W", "ignore", str(source), str(out), *PROGRAM_ARCHS]
            subprocess.run(command, check=True, timeout=300)
            _settle(out, home)
    return home


def compiled_client(where: Path, source: Path, driver: Path) -> Path:
    """A C program that is linked to the stand-in libcuda."""
    home = where / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}-{driver.name}"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=where) as scratch:
            out = Path(scratch, source.stem)
            flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-isystem{_cuda_include()}")
            subprocess.run(["gcc", *flags, str(source), "-o", str(out), str(driver / "libcuda.so.1")], check=True)
            _settle(out, home)
    return home


def shared_place() -> Path:
    """A directory that outlives a test run, so that only a change of the sources costs a compilation."""
    place = Path(tempfile.gettempdir(), f"makeway-standin-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def environment(
    driver_dir: Path,
    *,
    device: str,
    record: Path | None,
    refuse: str | None = None,
    base: Mapping[str, str] = os.environ,
    devices: int = 1,
    driver_version: int | None = None,
) -> dict[str, str]:
    """The environment of a program that shall run on the stand-in; no `record` switches recording off.

    An older `driver_version` (12040 is 12.4) has fewer functions to look up; None is that of the headers.
    """
    content = device_file(load_device(device), devices=devices, driver_version=driver_version)
    description = driver_dir / f"{device}-{hashlib.sha256(content.encode()).hexdigest()[:8]}.device"
    if not description.exists() or description.read_text() != content:
        _write(description, content)
    path = [str(driver_dir), *filter(None, [base.get("LD_LIBRARY_PATH")])]
    result = {
        **base,
        "LD_LIBRARY_PATH": ":".join(path),
        "TRITON_LIBCUDA_PATH": str(driver_dir),
        "TRITON_LIBHIP_PATH": str(driver_dir / "libamdhip64.so"),
        "MAKEWAY_STANDIN_DEVICE": str(description),
        "MAKEWAY_STANDIN_RECORD": str(record) if record else "off",
    }
    result.pop("MAKEWAY_STANDIN_REFUSE", None)
    return result | ({"MAKEWAY_STANDIN_REFUSE": refuse} if refuse else {})


# --- compiling ------------------------------------------------------------------------------------


def _cuda_include() -> Path:
    return _package("nvidia.cu13") / "include"


def _package(name: str) -> Path:
    """Where a package lies; it is not imported, since Triton warns when it is."""
    spec = find_spec(name.partition(".")[0])
    assert spec, f"{name} is not installed"
    assert spec.submodule_search_locations, f"{name} is no package"
    return Path(next(iter(spec.submodule_search_locations)), *name.split(".")[1:])


def _library(where: Path, kind: str, name: str, flags: Sequence[str], tables: Callable[[], str]) -> Path:
    sources = sorted([*(HERE / kind).glob("*.[ch]"), *(HERE / "recorder").glob("*.[ch]")])
    content = (
        b"".join(source.read_bytes() for source in sources) + Path(__file__).read_bytes() + " ".join(flags).encode()
    )
    home = where / f"{kind}-{hashlib.sha256(content).hexdigest()[:16]}"
    if (home / name).exists():
        return home
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        generated, versions = Path(scratch, "generated.c"), Path(scratch, "exports")
        generated.write_text(tables())
        versions.write_text(f"{{ global: {'cu*' if kind == 'cuda' else 'hip*; __hip*'}; local: *; }};\n")
        out = Path(scratch, "out")
        out.mkdir()
        linking = ("-Wl,-Bsymbolic-functions", f"-Wl,--version-script={versions}", f"-Wl,-soname,{name}")
        code = [str(source) for source in sources if source.suffix == ".c"]
        subprocess.run(
            [
                "gcc",
                *FLAGS,
                f"-I{HERE / 'recorder'}",
                *flags,
                *linking,
                *code,
                str(generated),
                "-o",
                str(out / name),
                "-lm",
            ],
            check=True,
        )
        _settle(out, home)
    return home


def _settle(out: Path, home: Path) -> None:
    try:
        out.rename(home)
    except OSError:  # another process was quicker
        if not home.exists():
            raise


def _preprocessed(header: str, flags: Sequence[str]) -> str:
    done = subprocess.run(
        ["gcc", "-E", "-P", *flags, "-"], input=f"#include <{header}>\n", capture_output=True, text=True, check=True
    )
    return re.sub(r"\s+", " ", done.stdout)


def _write(path: Path, content: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).rename(path)


# --- tables made from the headers -----------------------------------------------------------------


def _cuda_tables(include: Path) -> str:
    flags = ("-D__CUDA_API_VERSION_INTERNAL", f"-I{include}")
    header = _preprocessed("cuda.h", flags)
    symbols = set(re.findall(r"CUresult (cu\w+)\(", header))
    errors = re.findall(r"\b(CUDA_(?:ERROR_\w+|SUCCESS)) = (\d+)", header)
    return _tables(symbols, symbol_versions(symbols, _preprocessed("cudaTypedefs.h", flags)), errors)


def typedef_check() -> tuple[str, tuple[str, ...]]:
    """C source that compiles only if each symbol has the type of the version it is given out as, and its flags."""
    flags = ("-D__CUDA_API_VERSION_INTERNAL", f"-I{_cuda_include()}")
    symbols = set(re.findall(r"CUresult (cu\w+)\(", _preprocessed("cuda.h", flags)))
    forms = {symbol: (_FORMS.fullmatch(symbol) or [""] * 4)[3] or "" for symbol in symbols}
    rows = symbol_versions(symbols, _preprocessed("cudaTypedefs.h", flags))
    lines = [f"PFN_{name}_v{version}{forms[symbol]} p_{symbol} = {symbol};" for name, version, _, symbol in rows]
    return "\n".join(["#include <cudaTypedefs.h>", *lines, ""]), flags


def _hip_tables(include: Path) -> str:
    header = _preprocessed("hip/hip_runtime_api.h", ("-D__HIP_PLATFORM_AMD__", f"-I{include}"))
    symbols = set(re.findall(r"hipError_t (hip\w+)\(", header)) | {"hipExtModuleLaunchKernel"}
    texts = {"hipGetErrorName", "hipGetErrorString", "hipKernelNameRef", "hipKernelNameRefByPtr"}
    errors = re.findall(r"\b(hip(?:Error\w+|Success)) = (\d+)", header)
    return _tables(symbols, [(symbol, 0, False, symbol) for symbol in sorted(symbols | texts)], errors, extra=texts)


def _tables(
    symbols: Set[str],
    rows: list[tuple[str, int, bool, str]],
    errors: list[tuple[str, str]],
    extra: Set[str] = frozenset(),
) -> str:
    """C source: a loud function for every call that is not written, the version table, the error names."""
    return "\n".join(
        [
            "#include <stdbool.h>",
            "#include <stddef.h>",
            "int standin_unknown(const char *call);",
            *(_loud(symbol) for symbol in sorted(symbols)),
            *(f"void {symbol}(void);" for symbol in sorted(extra)),
            "struct symbol { const char *name; int version; bool per_thread; void *address; };",
            "const struct symbol standin_symbols[] = {",
            *(
                f'    {{"{base}", {version}, {str(thread).lower()}, {symbol}}},'
                for base, version, thread, symbol in rows
            ),
            "    {NULL, 0, false, NULL}};",
            "struct error { int code; const char *name, *words; };",
            "const struct error standin_errors[] = {",
            *(f'    {{{code}, "{name}", "{_words(name)}"}},' for name, code in errors),
            "    {0, NULL, NULL}};\n",
        ]
    )


def _loud(symbol: str) -> str:
    return f'__attribute__((weak)) int {symbol}(void) {{ return standin_unknown("{symbol}"); }}'


def _words(error: str) -> str:
    plain = error.removeprefix("CUDA_").removeprefix("ERROR_").removeprefix("hip").removeprefix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain).replace("_", " ").lower()


def symbol_versions(symbols: set[str], typedefs: str) -> list[tuple[str, int, bool, str]]:
    """(name asked for, version, per-thread form, exported symbol) of each function of the driver.

    Header and typedefs list as many versions of a function as there are exported symbols of it: the oldest
    version is the plain name, the next _v2, and so on.
    """
    exported: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for symbol in symbols:
        if parts := _FORMS.fullmatch(symbol):
            exported[parts[1], parts[3] or ""].append((int(parts[2] or 1), symbol))
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for base, version, form in re.findall(r"PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)\(", typedefs):
        versions[base, form].append(int(version))
    assert exported.keys() == versions.keys(), "cuda.h and cudaTypedefs.h name different functions"
    return [
        (base, version, bool(form), symbol)
        for base, form in sorted(exported)
        for version, (_, symbol) in zip(sorted(versions[base, form]), sorted(exported[base, form]), strict=True)
    ]
