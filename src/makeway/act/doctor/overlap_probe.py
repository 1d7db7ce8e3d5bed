"""A short overlap bench on the GPUs, as a line of JSON: python -m makeway.act.doctor.overlap_probe cuda|rocm.

It is the command `makeway bench`, so that the certificate holds what any user would get.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from makeway.act.doctor.samples import Line, write_line

GRIDS = "4x4,8x8,16x16,32x32"
REPEATS = 5


def main(platform: str) -> None:
    write_line(Line(check="overlap"))
    arguments = ("bench", "cb-ar", "--on", platform, "--grid", GRIDS, "--repeats", str(REPEATS), "--json")
    done = subprocess.run([sys.executable, "-m", "makeway", *arguments], capture_output=True, text=True, check=False)
    write_line(outcome(done.returncode, done.stdout, done.stderr))


def outcome(code: int, out: str, errors: str) -> Line:
    """The bench's document, or why there is none."""
    if code:
        last = [line.strip() for line in errors.splitlines() if line.strip()]
        return Line(check="overlap", refused=f"makeway bench ended with exit code {code}: {(last or [''])[0][:300]}")
    return Line(check="overlap", document=msgspec.json.decode(out))


if __name__ == "__main__":
    main(sys.argv[1])
