"""The live page's server: how long an answer takes when a slider moves, and how far the first guess is off.

Every answer is for a setting that was not asked before, from a cache that begins empty, over HTTP. Goal: a first guess
within 100 ms. The peer is `makeway simulate --json` in a process of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timing import line

WORKLOADS = (
    ("gemm-ar", "H100-SXM5-80GB"),
    ("conccl-04", "MI300X"),
    ("fsdp-llama-7b", "H100-SXM5-80GB"),
    ("tp-llama-70b", "B200"),
    ("cb-ar", "A40"),
)
BLOCKS = tuple(range(4, 28, 2))  # a slider that moves


@contextmanager
def serving() -> Iterator[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "makeway", "view", "--json", "--no-browser"]
        environ = os.environ | {"XDG_CACHE_HOME": cache}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            document = json.loads(process.stdout.readline())
            try:
                yield document["port"], document["url"].split("/")[3]
            finally:
                process.terminate()


def asked(port: int, token: str, question: dict[str, Any], stage: str) -> tuple[float, dict[str, Any]]:
    """Seconds from the request to the last byte, and the answer."""
    body = json.dumps({"question": question, "stage": stage, "client": "bench"})
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", f"/{token}/ask", body)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return time.perf_counter() - began, answer


def main() -> None:
    for workload, device in WORKLOADS:
        errors = []
        times: dict[str, list[float]] = {"quick": [], "settled": []}
        with serving() as (port, token):
            plain = {"workload": workload, "device": device}
            for stage in times:
                asked(port, token, plain, stage)  # imports, and the baselines, which no control changes
            for blocks in BLOCKS:
                question = plain | {"controls": ["priority", f"comm-blocks={blocks}"]}
                answers = {}
                for stage, own in times.items():
                    took, answers[stage] = asked(port, token, question, stage)
                    if "document" in answers[stage]:
                        own.append(took)
                if all("document" in answer for answer in answers.values()):
                    guess, figure = (answers[stage]["document"]["t_ms"] for stage in times)
                    errors.append(abs(guess / figure - 1))
        for stage, own in times.items():
            print(line(f"{workload} on {device}, {stage}", own))
        print(
            f"  the first guess is off by {statistics.median(errors):.1%}, at most {max(errors):.1%}, n = {len(errors)}"
        )
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "makeway", "simulate", *WORKLOADS[0][:1], "--device", WORKLOADS[0][1], "--json"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print(f"peer: makeway simulate {WORKLOADS[0][0]} --json takes {1e3 * (time.perf_counter() - began):,.0f} ms")


if __name__ == "__main__":
    main()
