"""The live page's server: strangers, foreign pages, wrong and endless requests, and its end."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attack.running import until
from tests.viewing import Viewing, viewing

from makeway.show.view import server as server_module
from makeway.show.view.server import Server
from makeway.show.view.session import MOST_FILE_BYTES, Session, safe_name

QUESTION = {"workload": "gemm-ar", "device": "H100-SXM5-80GB"}
GROUP = "0123456789abcdef"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewing]:
    with viewing(tmp_path_factory.mktemp("view")) as running:
        yield running


# --- who may ask -----------------------------------------------------------------------------------


def test_without_its_token_every_address_is_refused(view: Viewing) -> None:
    wrong = "A" * len(view.token)
    for path in ("/", "/state", f"/{wrong}/", f"/{wrong}/state", f"/{view.token[:-1]}/", f"/?token={view.token}"):
        code, content, _ = view.request(path)
        assert code == 403, path
        assert view.token.encode() not in content
    assert view.request("/ask", method="POST", body=json.dumps({"question": QUESTION}).encode())[0] == 403
    with socket.create_connection(("127.0.0.1", view.port), timeout=20) as client:
        client.sendall(b"GET /\xff\xfe/ HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 403 " in client.recv(100)
    assert view.request(f"/{view.token}/")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_page_of_another_site_is_refused_even_with_the_token(view: Viewing, headers: dict[str, str]) -> None:
    sent = {name: value.format(port=view.port) for name, value in headers.items()}
    assert view.request(f"/{view.token}/state", headers=sent)[0] == 403


def test_it_listens_on_the_loopback_alone(view: Viewing) -> None:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {line[1] for line in lines if line[3] == "0A" and int(line[1].partition(":")[2], 16) == view.port}
    assert listening == {f"0100007F:{view.port:04X}"}
    six = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not [line for line in six if line[3] == "0A" and int(line[1].rpartition(":")[2], 16) == view.port]


def test_the_page_may_run_its_own_script_only_and_is_kept_nowhere(view: Viewing) -> None:
    _, content, headers = view.request(f"/{view.token}/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'nonce-" in policy
    assert "unsafe-inline" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    assert "frame-ancestors 'none'" in policy
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    again = view.request(f"/{view.token}/")[2]["Content-Security-Policy"]
    assert again != policy  # the nonce is of one answer
    assert b"http://" not in content.replace(b"http://www.w3.org", b"")


# --- what is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "state/../../x", "report-1.html", "%00"]
)
def test_no_path_leads_to_a_file(view: Viewing, path: str) -> None:
    code, content, _ = view.request(f"/{view.token}/{path}")
    assert code == 404
    assert b"root:" not in content


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"{" * 5_000, b"[" * 50_000, b'{"question": 3}',
        b'{"question": {"workload": "gemm-ar"}}',
        json.dumps({"question": QUESTION | {"engine": "x"}}).encode(),
        json.dumps({"question": QUESTION | {"jitter": "much"}}).encode(),
        json.dumps({"question": QUESTION | {"jitter": 7}}).encode(),
        json.dumps({"question": QUESTION | {"controls": ["priority"] * 17}}).encode(),
        json.dumps({"question": QUESTION | {"controls": ["pad=" + "9" * 200]}}).encode(),
        json.dumps({"question": QUESTION | {"block": "threads=0,registers=1"}}).encode(),
        json.dumps({"question": QUESTION | {"workload": "opened:/etc/passwd"}}).encode(),
        json.dumps({"question": QUESTION | {"workload": "item:1"}}).encode(),
        json.dumps({"question": QUESTION | {"workload": "/etc/passwd.toml"}}).encode(),
        json.dumps({"question": QUESTION | {"device": "/etc/passwd.toml"}}).encode(),
        json.dumps({"question": QUESTION, "stage": "slow"}).encode(),
    ],
)  # fmt: skip
def test_a_wrong_question_is_one_message(view: Viewing, body: bytes) -> None:
    code, content, _ = view.request(f"/{view.token}/ask", method="POST", body=body)
    assert code == 400
    message = json.loads(content)["error"]
    assert message
    assert "Traceback" not in message
    assert "makeway failed" not in message
    assert "root:" not in message


def test_a_body_that_is_too_large_or_of_unknown_length_is_not_read(view: Viewing) -> None:
    for what, length in (("ask", 10**12), ("ask", 70_000), ("drop?number=0", MOST_FILE_BYTES + 1), ("open", 10**30)):
        with socket.create_connection(("127.0.0.1", view.port), timeout=20) as client:
            head = f"POST /{view.token}/{what} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
            client.sendall(head.encode())
            assert b" 400 " in client.recv(100)
    with socket.create_connection(("127.0.0.1", view.port), timeout=20) as client:
        client.sendall(
            f"POST /{view.token}/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n".encode()
        )
        assert b" 400 " in client.recv(100)


def test_dropped_names_are_never_paths(view: Viewing, tmp_path: Path) -> None:
    for number, name in enumerate(
        ["..%2F..%2Fescaped.json", "%2Fetc%2Fpasswd", "..", "a%00b.json", "x" * 500 + ".json"]
    ):
        code, _, _ = view.request(
            f"/{view.token}/drop?group={GROUP}&number={number}&name={name}", method="POST", body=b"{}"
        )
        assert code == 200
    files = [path for path in view.place.rglob("*") if path.is_file() and f"drop-{GROUP}" in str(path)]
    assert len(files) == 5
    assert not (view.place / "escaped.json").exists()
    for path in files:
        assert path.name == safe_name(path.name)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for group in ("../../x", "", "G" * 16):
        assert view.request(f"/{view.token}/drop?group={group}&number=0&name=a", method="POST", body=b"{}")[0] == 400


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("trace.json.gz", "trace.json.gz"),
        ("../a b\x1b[31m.json", "a_b_31m.json"),
        ("...", "file"),
        ("C:\\x\\r.db", "r.db"),
    ],
)
def test_a_name_keeps_its_ending(name: str, kept: str) -> None:
    assert safe_name(name) == kept


# --- slow and many clients -------------------------------------------------------------------------


def test_slow_clients_are_cut_off_and_the_page_still_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(server_module, "HEADERS_S", 0.5)
    monkeypatch.setattr(server_module, "BODY_S", 0.5)
    session = Session(tmp_path)
    with Server(session) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(60)]
        body = f"POST /{server.token}/ask HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{{"
        for number, client in enumerate(clients):
            try:
                client.sendall(b"GET / HTTP/1.0\r\nX: " if number % 2 else body.encode())
            except OSError:
                continue  # one too many: it was hung up on
        began = time.monotonic()
        for client in clients:
            try:
                while client.recv(1000):
                    pass
            except ConnectionError:
                pass
            client.close()
        assert time.monotonic() - began < 15
        page = Viewing(process=None, url=server.url, port=server.port, place=tmp_path)  # type: ignore[arg-type]
        assert page.ask("state")[0] == 200
        server.shutdown()
    session.close()


# --- its end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_nothing_stays(tmp_path: Path, number: signal.Signals) -> None:
    with viewing(tmp_path / "tmp") as view:
        (place,) = view.place.iterdir()
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert until(lambda: len(view.workers()) == 2)
        workers = view.workers()
        assert view.ask("ask", {"question": QUESTION})[0] == 200
        view.process.send_signal(number)
        assert view.process.wait(20) == 0
        assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert list(view.place.iterdir()) == []


def test_closing_the_terminal_ends_it(tmp_path: Path) -> None:
    outer, inner = pty.openpty()

    def take_terminal() -> None:
        import fcntl
        import termios

        fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

    with viewing(tmp_path / "tmp", stdin=inner, start_new_session=True, preexec_fn=take_terminal) as view:
        workers = view.workers()
        os.close(inner)
        os.close(outer)
        assert view.process.wait(20) == 0
        assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert list(view.place.iterdir()) == []


def test_its_workers_end_even_if_it_is_killed(tmp_path: Path) -> None:
    with viewing(tmp_path / "tmp") as view:
        assert until(lambda: len(view.workers()) == 2)
        workers = view.workers()
        view.process.kill()
        view.process.wait(20)
        assert until(lambda: not any(_lives(pid) for pid in workers))
    with viewing(tmp_path / "tmp") as view:
        assert len(list(view.place.iterdir())) == 1  # the next one removes what the killed one left


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
