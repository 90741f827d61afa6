"""A server of the viewer with small limits, and a search that knows the pose."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.client import Client
from tests.viewer.helpers import planted_result, planted_votes
from vbreg.errors import VBRegError
from vbreg.types import PointCloud, Registration, Votes
from vbreg.viewer import ServerLimits, Session, ViewServer

LIMITS = ServerLimits(
    upload_bytes=200_000,
    upload_seconds=20.0,
    idle_seconds=10.0,
    body_bytes=200,
    connections=6,
    uploads=2,
)
HASTY = replace(LIMITS, upload_seconds=0.8, idle_seconds=0.5)  # for tests of slowness


class StandIn:
    """In place of the search: tells stages, waits where it is told to, and counts itself."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.at_once = self.most_at_once = self.runs = 0
        self.options: dict[str, Any] = {}
        self.error: Exception | None = None

    def __call__(
        self, source: PointCloud, target: PointCloud, stage: Any, options: Mapping[str, Any]
    ) -> tuple[Registration, Votes | None]:
        self.runs += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.options = dict(options)
        try:
            stage("network")
            assert self.go_on.wait(20)
            stage("vote")
            if self.error is not None:
                raise self.error
            return planted_result(source), planted_votes()
        finally:
            self.at_once -= 1


@pytest.fixture
def search() -> StandIn:
    return StandIn()


@pytest.fixture
def session(tmp_path: Path, search: StandIn) -> Iterator[Session]:
    (tmp_path / "uploads").mkdir()
    session = Session(tmp_path / "uploads", {"device": "cpu"}, register=search)
    yield session
    search.go_on.set()
    session.close()


@contextmanager
def serving(session: Session, limits: ServerLimits) -> Iterator[ViewServer]:
    """A server in a thread."""
    with ViewServer(session, limits=limits) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


@pytest.fixture
def server(session: Session) -> Iterator[ViewServer]:
    with serving(session, LIMITS) as server:
        yield server


@pytest.fixture
def client(server: ViewServer) -> Client:
    return Client(server)


@pytest.fixture
def hasty(session: Session) -> Iterator[Client]:
    """A client of a server that does not wait."""
    with serving(session, HASTY) as server:
        yield Client(server)


@pytest.fixture
def broken(search: StandIn) -> StandIn:
    """The search meets a mistake of the user's."""
    search.error = VBRegError("voxel_size 9: expected less")
    return search
