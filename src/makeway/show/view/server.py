"""The server of the live page: 127.0.0.1 only, a token in every address, small and bounded requests.

Answers go to whoever knows the token. A foreign Host or Origin header is refused: a page of another site that makes its
own name point here (DNS rebinding) sends its name in Host.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from makeway.show.view.question import Question, Stage
from makeway.show.view.session import MOST_FILE_BYTES, Session
from makeway.show.view.shell import POLICY, shell
from makeway.show.view.workers import SupersededError
from makeway.values.errors import InputError, MakewayError

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 24
MOST_BODY_BYTES = 64 << 10  # of a question
HEADERS_S = 10.0  # for the first line and all headers of a request
BODY_S, BODY_BYTES_PER_S = 20.0, 200_000.0  # for a body: so long, and longer the larger it is
WRITE_S = 30.0
_NAMES = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?")
# A report runs its own scripts and no others, in an origin of its own: it can reach neither the page nor the server.
_REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NO_TOKEN = "This address lacks its token: open the whole address that `makeway view` printed.\n"


class _Ask(msgspec.Struct, forbid_unknown_fields=True):
    question: Question
    stage: Stage = "settled"
    client: str = ""


class _Number(msgspec.Struct, forbid_unknown_fields=True):
    number: int


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    group: str


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    job: str


class Server(socketserver.ThreadingTCPServer):
    """One page for one person; `url` is the whole address with its token."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session, self.token = session, secrets.token_urlsafe(24)
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise InputError(
                f"cannot listen on {ADDRESS}:{port}: {error.strerror or error}\n"
                "Choose another --port, or leave it out for a free one."
            ) from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)  # as many connections as we serve: this one may come again

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up or dawdle are no error of ours."""


class _Timed(io.RawIOBase):
    """A socket to read from until a moment, however slowly the bytes come."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.until = time.monotonic() + HEADERS_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request came too slowly")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "makeway", ""

    def setup(self) -> None:
        super().setup()
        self._timed = _Timed(self.connection)
        self.rfile = io.BufferedReader(self._timed)

    def log_message(self, *args: object) -> None:
        """Addresses hold the token: they are written nowhere."""

    # --- requests --------------------------------------------------------------------------------

    def do_GET(self) -> None:
        self._served(self._get)

    def do_POST(self) -> None:
        self._served(self._post)

    def _served(self, handle: Callable[[str, Mapping[str, list[str]]], None]) -> None:
        """Check who asks, then answer; every error is one message."""
        self.connection.settimeout(WRITE_S)
        if (problem := self._foreign()) is not None:
            self._text(403, problem)
            return
        parts = urlsplit(self.path)
        token, _, rest = parts.path.lstrip("/").partition("/")
        if self.command == "GET" and not rest and (report := self.server.session.report(token)) is not None:
            self._send(200, "text/html; charset=utf-8", report, _REPORT_POLICY)
            return
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._text(403, NO_TOKEN)
            return
        try:
            handle(rest, parse_qs(parts.query, max_num_fields=8))
        except SupersededError:
            self._json(409, {"error": "superseded"})
        except (MakewayError, msgspec.DecodeError, ValueError) as error:
            self._json(400, {"error": str(error)})

    def _foreign(self) -> str | None:
        """Why a request cannot come from our page; None when it can."""
        host = self.headers.get("Host", "")
        if not _NAMES.fullmatch(host):
            return "This server answers to 127.0.0.1 and localhost only.\n"
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return "Requests of other sites are refused.\n"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "Requests of other sites are refused.\n"
        return None

    def _get(self, what: str, query: Mapping[str, list[str]]) -> None:
        match what:
            case "":
                nonce = secrets.token_urlsafe(16)
                page = shell(self.server.session.first, nonce=nonce)
                self._send(200, "text/html; charset=utf-8", page.encode(), POLICY.format(nonce=nonce))
            case "state":
                self._json(200, self.server.session.state())
            case "watch":
                self._json(200, self.server.session.watch(int(query.get("number", ["-1"])[0][:9])))
            case _:
                self._json(404, {"error": "there is no such page"})

    def _post(self, what: str, query: Mapping[str, list[str]]) -> None:
        session = self.server.session
        match what:
            case "ask":
                ask = msgspec.json.decode(self._body(), type=_Ask)
                self._json(200, session.answer(ask.question, ask.stage, ask.client[:64]))
            case "plan":
                self._json(200, {"number": session.plan(msgspec.json.decode(self._body(), type=_Ask).question)})
            case "drop":
                self._drop(query)
            case "open":
                group = msgspec.json.decode(self._body(), type=_Group).group
                self._json(200, {"number": session.open_dropped(group)})
            case "job":
                self._json(200, {"number": session.watch_job(msgspec.json.decode(self._body(), type=_Job).job)})
            case "close":
                session.close_item(msgspec.json.decode(self._body(), type=_Number).number)
                self._json(200, {})
            case _:
                self._json(404, {"error": "there is no such page"})

    def _drop(self, query: Mapping[str, list[str]]) -> None:
        length = self._length(MOST_FILE_BYTES)
        number = query.get("number", [""])[0]
        if not number.isdecimal() or len(number) > 4:
            raise InputError("a dropped file needs its number")
        name = unquote(query.get("name", ["file"])[0])
        source: Any = self.rfile
        self.server.session.receive(query.get("group", [""])[0], int(number), name, length, source)
        self._json(200, {"received": length})

    # --- bytes -----------------------------------------------------------------------------------

    def _length(self, most: int) -> int:
        """The length of the body, which must be known, and not too much."""
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or len(length) > 15:
            raise InputError("a request needs its Content-Length")
        if int(length) > most:
            raise InputError(f"{int(length):,} bytes are too many; at most {most:,} are read")
        self._timed.until = time.monotonic() + BODY_S + int(length) / BODY_BYTES_PER_S
        return int(length)

    def _body(self) -> bytes:
        length = self._length(MOST_BODY_BYTES)
        body = self.rfile.read(length)
        if len(body) < length:
            raise InputError("the request ended before its length")
        return body

    def _json(self, code: int, value: object) -> None:
        self._send(code, "application/json", json.dumps(value).encode())

    def _text(self, code: int, message: str) -> None:
        self._send(code, "text/plain; charset=utf-8", message.encode())

    def _send(
        self, code: int, kind: str, body: bytes, policy: str = "default-src 'none'; frame-ancestors 'none'"
    ) -> None:
        self.connection.settimeout(WRITE_S)
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Security-Policy": policy}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
