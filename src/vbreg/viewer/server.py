"""The server of the viewer: Python's own, for this machine and this user alone.

It listens on 127.0.0.1. Every request must name that host (a page of another site that had its name
point here does not), come from our own page or from no page, and, but for the page itself, carry
the token of this run. No request names a file: what is sent goes into a folder of ours under a name
of ours, and what is served is a fixed list.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from vbreg.errors import VBRegError
from vbreg.viewer.jobs import QueueFullError
from vbreg.viewer.report import static_text
from vbreg.viewer.session import ROLES, Session, read_endings

HOST = "127.0.0.1"
CHUNK = 2**16  # bytes that are received or sent at a time
POLL_SECONDS = 15.0  # that a question for news waits at most
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
PAGE_HEAD = '<title>vbreg</title>\n<link rel="stylesheet" href="viewer.css">'
PAGE_TAIL = '<script src="viewer.js"></script>'


@dataclass(frozen=True)
class ServerLimits:
    """How much a request may cost."""

    upload_bytes: int = 4 * 2**30
    upload_seconds: float = 900.0
    idle_seconds: float = 30.0  # that the other side may be silent
    body_bytes: int = 4096  # of a request that is no upload
    connections: int = 32
    uploads: int = 2  # at the same time


class Refusal(Exception):
    """A request that is not answered as it wishes."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Reply(NamedTuple):
    """What goes back: bytes, or a file that is removed once it is sent."""

    content: bytes | Path
    kind: str
    status: HTTPStatus = HTTPStatus.OK
    download: str | None = None  # the name of a file to save


class ViewServer(ThreadingHTTPServer):
    """Serves one session until it is told to end."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = os.name != "nt"  # Windows would let two programs have one port

    def __init__(self, session: Session, port: int = 0, limits: ServerLimits | None = None) -> None:
        """Take a session and a port; 0 is any that is free."""
        self.session, self.limits = session, limits or ServerLimits()
        self.token = secrets.token_urlsafe(24)
        self.connections = BoundedSemaphore(self.limits.connections)
        self.uploads = BoundedSemaphore(self.limits.uploads)
        try:
            super().__init__((HOST, port), RequestHandler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise VBRegError(
                f"port {port} cannot be used ({reason}): choose another one, or leave it out"
            ) from error

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page, with the token behind #, which browsers keep to themselves."""
        return f"http://{HOST}:{self.port}/#{self.token}"

    @property
    def hosts(self) -> tuple[str, str]:
        """The names that a request may call this server by."""
        return f"{HOST}:{self.port}", f"localhost:{self.port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Let a thread answer, unless too many do already."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Let a thread answer, and then others have its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where the other side has gone; show a fault of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class RequestHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: ViewServer
    body: bytes  # of a request that is no upload
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "vbreg", ""

    def setup(self) -> None:
        """Set the limit of silence."""
        super().setup()
        self.connection.settimeout(self.server.limits.idle_seconds)

    def do_GET(self) -> None:
        """Send the page, or what there is to know."""
        self._answer(
            {
                "/": self._page,
                "/viewer.js": lambda: _static("viewer.js", "text/javascript"),
                "/viewer.css": lambda: _static("viewer.css", "text/css"),
            },
            {
                "/api/state": self._state,
                "/api/scene": lambda: Reply(self._session.scene(), "application/octet-stream"),
                "/api/result": lambda: Reply(
                    self._session.result_json(), "application/json", download="result.json"
                ),
                "/api/report": lambda: Reply(
                    self._session.report(), "text/html; charset=utf-8", download="report.html"
                ),
                "/api/aligned": lambda: Reply(
                    self._session.aligned_file(), "application/octet-stream", download="aligned.ply"
                ),
            },
        )

    def do_POST(self) -> None:
        """Begin some work."""
        self._answer(
            {},
            {
                "/api/register": self._register,
                "/api/example": lambda: _begun(self._session.example),
                "/api/cancel": lambda: _begun(self._session.jobs.cancel),
            },
        )

    def do_PUT(self) -> None:
        """Take a file."""
        self._answer({}, {f"/api/{role}": self._upload for role in ROLES})

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal free."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send a refusal of the base class, too, in our own form."""
        status = HTTPStatus(code)
        self._refuse(Refusal(status, message or status.phrase))

    @property
    def _session(self) -> Session:
        return self.server.session

    @property
    def _parts(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        if parts.scheme or parts.netloc:
            raise Refusal(HTTPStatus.BAD_REQUEST, "no other server is asked from here")
        return parts.path, parse_qs(parts.query)

    def _answer(
        self,
        free: dict[str, Callable[[], Reply]],
        guarded: dict[str, Callable[[], Reply]],
    ) -> None:
        """Check a request and do what it asks for."""
        try:
            self._check_origin()
            path = self._parts[0]
            if path in free:
                answer = free[path]()
            else:
                self._check_token()
                if path not in guarded:
                    raise Refusal(HTTPStatus.NOT_FOUND, "there is nothing here")
                if self.command != "PUT":
                    self.body = self.rfile.read(self._length(self.server.limits.body_bytes))
                answer = guarded[path]()
            self._send(answer)
        except Refusal as refusal:
            self._refuse(refusal)
        except QueueFullError as error:
            self._refuse(Refusal(HTTPStatus.TOO_MANY_REQUESTS, str(error)))
        except VBRegError as error:
            self._refuse(Refusal(HTTPStatus.CONFLICT, str(error)))
        except ValueError:  # an address that cannot be parsed
            self._refuse(Refusal(HTTPStatus.BAD_REQUEST, "not a request that is understood"))

    def _check_origin(self) -> None:
        """Refuse what another site or another name of this machine lets a browser send."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise Refusal(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 alone")
        origins = self.headers.get_all("Origin") or []
        if any(
            origin not in {f"http://{host}" for host in self.server.hosts} for origin in origins
        ):
            raise Refusal(HTTPStatus.FORBIDDEN, "requests of other sites are refused")

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "")
        wanted = f"Bearer {self.server.token}"
        if not hmac.compare_digest(given.encode("latin-1", "replace"), wanted.encode()):
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "the token of this run is missing: open the address that `vbreg view` printed",
            )

    def _page(self) -> Reply:
        page = static_text("page.html")
        page = page.replace("<!-- head -->", PAGE_HEAD).replace("<!-- tail -->", PAGE_TAIL)
        return Reply(page.encode(), "text/html; charset=utf-8")

    def _state(self) -> Reply:
        after = self._parts[1].get("after", ["-1"])[0]
        if not after.lstrip("-").isdecimal() or len(after) > 15:
            raise Refusal(HTTPStatus.BAD_REQUEST, "after: expected a whole number")
        state = self._session.state(int(after), POLL_SECONDS)
        state |= {"endings": read_endings(), "upload_bytes": self.server.limits.upload_bytes}
        return _json(state)

    def _register(self) -> Reply:
        try:
            given = json.loads(self.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"not JSON: {error}") from error
        if not isinstance(given, dict) or set(given) - {"voxel_size", "preset"}:
            raise Refusal(
                HTTPStatus.BAD_REQUEST, "expected voxel_size and preset, and nothing else"
            )
        voxel_size, preset = given.get("voxel_size"), given.get("preset")
        number = isinstance(voxel_size, int | float) and not isinstance(voxel_size, bool)
        if voxel_size is not None and not (number and 0 < voxel_size < 1e9):
            raise Refusal(HTTPStatus.BAD_REQUEST, "voxel_size: expected a positive number")
        if preset not in (None, "indoor", "outdoor"):
            raise Refusal(HTTPStatus.BAD_REQUEST, "preset: expected indoor or outdoor")
        return _begun(lambda: self._session.register(voxel_size, preset))

    def _length(self, most: int) -> int:
        """Return how many bytes a request brings; refuse what does not say, or too many."""
        lengths = self.headers.get_all("Content-Length") or []
        if self.headers.get("Transfer-Encoding") is not None or len(lengths) > 1:
            raise Refusal(HTTPStatus.BAD_REQUEST, "expected one Content-Length and no chunks")
        text = lengths[0].strip() if lengths else "0"
        if not (text.isascii() and text.isdecimal()) or len(text) > 18:
            raise Refusal(HTTPStatus.BAD_REQUEST, "Content-Length: expected a whole number")
        if int(text) > most:
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"{int(text)} bytes are more than the {most} that are taken",
            )
        return int(text)

    def _upload(self) -> Reply:
        """Receive a file; of its name only the ending counts, if it is one of those we read."""
        path, query = self._parts
        role = next(role for role in ROLES if path == f"/api/{role}")
        ending = query.get("ending", [""])[0].lower()
        if ending not in read_endings():
            raise Refusal(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "files of this kind are not read: `vbreg formats` lists those that are",
            )
        length = self._length(self.server.limits.upload_bytes)
        if not self.server.uploads.acquire(blocking=False):
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "two files are on their way already: wait")
        file = self._session.new_path(ending)
        try:
            self._receive(file, length)
            self._session.load(role, file)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        finally:
            self.server.uploads.release()
        return _json({}, HTTPStatus.ACCEPTED)

    def _receive(self, file: Path, length: int) -> None:
        deadline = time.monotonic() + self.server.limits.upload_seconds
        try:
            with file.open("xb") as sink:
                while length:
                    part = self.rfile.read1(min(CHUNK, length))
                    if not part:
                        raise Refusal(HTTPStatus.BAD_REQUEST, "the file ended early")
                    if time.monotonic() > deadline:
                        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "the file took too long")
                    sink.write(part)
                    length -= len(part)
        except TimeoutError as error:
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "the file stopped coming") from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise Refusal(
                HTTPStatus.INSUFFICIENT_STORAGE, f"the file cannot be stored: {reason}"
            ) from error

    def _send(self, answer: Reply) -> None:
        file = answer.content if isinstance(answer.content, Path) else None
        try:
            size = len(answer.content) if isinstance(answer.content, bytes) else 0
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(file.stat().st_size if file else size))
            if answer.download:
                self.send_header("Content-Disposition", f'attachment; filename="{answer.download}"')
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            if isinstance(answer.content, bytes):
                self.wfile.write(answer.content)
            else:
                with answer.content.open("rb") as source:
                    while part := source.read(CHUNK):
                        self.wfile.write(part)
        finally:
            if file is not None:
                file.unlink(missing_ok=True)

    def _refuse(self, refusal: Refusal) -> None:
        """Send a refusal and end the connection: what is left of the request is not read."""
        self.close_connection = True
        with suppress(OSError):
            content = json.dumps({"error": str(refusal)}).encode()
            self.send_response(refusal.status)
            self.send_header("Connection", "close")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self._drain()

    def _drain(self) -> None:
        """Read a little of what still comes, so that the other side sees the refusal."""
        self.connection.settimeout(0.5)
        for _ in range(16):
            if not self.connection.recv(CHUNK):
                return


def _static(name: str, kind: str) -> Reply:
    return Reply(static_text(name).encode(), f"{kind}; charset=utf-8")


def _begun(work: Callable[[], None]) -> Reply:
    work()
    return _json({}, HTTPStatus.ACCEPTED)


def _json(content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Reply:
    return Reply(json.dumps(content).encode(), "application/json", status)
