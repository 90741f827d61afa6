"""A client of the viewer's server that sends what it is told to, right or wrong."""

from __future__ import annotations

import http.client
import io
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from vbreg.viewer import ViewServer


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Client:
    def __init__(self, server: ViewServer) -> None:
        self.server = server
        self.own = {
            "Host": f"127.0.0.1:{server.port}",
            "Authorization": f"Bearer {server.token}",
        }

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: dict[str, str | None] | None = None,
        repeated: tuple[tuple[str, str], ...] = (),
    ) -> Reply:
        """Send a request with our own headers, those changed (None: left out), and some more."""
        sent = {**self.own, **(headers or {})}
        if body is not None and "Content-Length" not in sent:
            sent["Content-Length"] = str(len(body))
        connection = self.connect()
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in (*sent.items(), *repeated):
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Reply:
        return self.send("GET", path, **more)

    def post(self, path: str, content: Any = None) -> Reply:
        return self.send("POST", path, b"" if content is None else json.dumps(content).encode())

    def upload(self, role: str, points: np.ndarray, ending: str = ".npy") -> Reply:
        stream = io.BytesIO()
        np.save(stream, points)
        return self.send("PUT", f"/api/{role}?ending={ending}", stream.getvalue())

    def state(self) -> dict[str, Any]:
        return dict(self.get("/api/state").json)

    def wait(
        self, ready: Callable[[dict[str, Any]], bool], seconds: float = 15.0
    ) -> dict[str, Any]:
        """Follow the state until it is as it should be."""
        end = time.monotonic() + seconds
        state = self.state()
        while not ready(state):
            assert time.monotonic() < end, state
            state = self.get(f"/api/state?after={state['version']}").json
        return state

    def idle(self) -> dict[str, Any]:
        return self.wait(lambda state: state["job"] is None)
