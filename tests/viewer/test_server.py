"""The server does what the page asks for, and refuses everything else."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.viewer.client import Client
from tests.viewer.conftest import LIMITS, StandIn
from tests.viewer.helpers import POSE, planted_clouds, unpacked
from vbreg import io as clouds
from vbreg.errors import VBRegError
from vbreg.viewer import Session, ViewServer

SOURCE, TARGET = (cloud.points for cloud in planted_clouds(coloured=False))
API = (
    ("GET", "/api/state"),
    ("GET", "/api/scene"),
    ("GET", "/api/result"),
    ("GET", "/api/report"),
    ("GET", "/api/aligned"),
    ("POST", "/api/register"),
    ("POST", "/api/example"),
    ("POST", "/api/cancel"),
    ("PUT", "/api/source?ending=.ply"),
    ("PUT", "/api/target?ending=.ply"),
)


def both(client: Client) -> None:
    assert client.upload("source", SOURCE).status == 202
    assert client.upload("target", TARGET).status == 202
    client.idle()


# --- what the page does


def test_two_files_are_sent_registered_and_fetched(
    client: Client, search: StandIn, tmp_path: Path, session: Session
) -> None:
    both(client)
    state = client.state()
    assert state["clouds"] == {"source": len(SOURCE), "target": len(TARGET)}
    assert not state["registered"]
    assert client.post("/api/register", {"voxel_size": 0.1, "preset": None}).status == 202
    state = client.idle()
    assert state["error"] is None
    assert state["registered"]
    assert search.options == {"device": "cpu", "voxel_size": 0.1, "preset": None}
    header, arrays = unpacked(client.get("/api/scene").body)
    np.testing.assert_allclose(header["result"]["T_target_source"], POSE)
    assert len(arrays["seeds"]) == 3

    result = client.get("/api/result")
    assert result.json["T_target_source"] == POSE.tolist()
    assert result.headers["Content-Disposition"] == 'attachment; filename="result.json"'
    (tmp_path / "aligned.ply").write_bytes(client.get("/api/aligned").body)
    aligned = clouds.read(tmp_path / "aligned.ply").points
    np.testing.assert_allclose(aligned, SOURCE @ POSE[:3, :3].T + POSE[:3, 3], atol=1e-9)
    assert client.get("/api/report").body.startswith(b"<!doctype html>")
    assert not list(session.folder.iterdir())  # nothing is left lying about


def test_a_new_cloud_takes_the_pose_away(client: Client) -> None:
    both(client)
    client.post("/api/register")
    assert client.idle()["registered"]
    client.upload("source", SOURCE[:500])
    assert not client.idle()["registered"]
    assert client.get("/api/result").status == 409


def test_the_example_is_loaded_and_registered(client: Client) -> None:
    assert client.post("/api/example").status == 202
    state = client.idle()
    assert state["registered"]
    assert min(state["clouds"].values()) > 10_000
    assert state["options"] == {"voxel_size": None, "preset": "indoor"}


def test_files_of_the_command_line_are_opened(
    client: Client, session: Session, tmp_path: Path
) -> None:
    paths = tmp_path / "a.ply", tmp_path / "b.ply"
    for path, points in zip(paths, (SOURCE, TARGET), strict=True):
        clouds.write(path, points)
    session.open(*paths)
    assert client.idle()["registered"]
    assert client.get("/api/result").json["source"] == str(paths[0])
    assert all(path.is_file() for path in paths)  # they are the user's


def test_news_come_at_once_and_nothing_comes_late(client: Client, search: StandIn) -> None:
    both(client)
    search.go_on.clear()
    client.post("/api/register")
    state = client.wait(lambda s: s["job"] is not None and s["job"]["stage"] == "network")
    assert state["job"]["name"] == "register"
    start = time.monotonic()
    threading.Timer(0.3, search.go_on.set).start()
    client.get(f"/api/state?after={state['version']}")
    assert 0.2 < time.monotonic() - start < 5


# --- who may ask


@pytest.mark.parametrize(("method", "path"), API)
@pytest.mark.parametrize(
    "token", [None, "", "Bearer ", "Bearer wrong", "Basic dXNlcjpwYXNz", "Bearer \xff\xfe"]
)
def test_nothing_is_told_without_the_token(
    client: Client, method: str, path: str, token: str | None
) -> None:
    reply = client.send(method, path, b"", headers={"Authorization": token})
    assert reply.status == 401
    assert "vbreg view" in reply.error


def test_the_token_is_long_and_new_for_each_run(session: Session) -> None:
    with ViewServer(session) as one, ViewServer(session) as two:
        assert one.token != two.token
        assert len(one.token) >= 32
        assert one.url.endswith(f"/#{one.token}")  # behind #: no server and no log ever sees it


def test_the_page_is_served_without_token_and_holds_none(
    client: Client, server: ViewServer
) -> None:
    for path in ("/", "/viewer.js", "/viewer.css"):
        reply = client.get(path, headers={"Authorization": None})
        assert reply.status == 200
        assert server.token.encode() not in reply.body


@pytest.mark.parametrize("path", ["/", "/viewer.js", "/api/state", "/nowhere"])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "localhost:1", "0.0.0.0:{}", "127.0.0.1:{}.evil", "", None],
)
def test_other_names_of_this_machine_are_refused(
    client: Client, server: ViewServer, path: str, host: str | None
) -> None:
    """Else a site could let its own name point to 127.0.0.1 and read with the user's browser."""
    given = None if host is None else host.format(server.port)
    assert client.get(path, headers={"Host": given}).status == 403


def test_two_hosts_are_refused(client: Client, server: ViewServer) -> None:
    more = (("Host", f"localhost:{server.port}"),)
    assert client.send("GET", "/", repeated=more).status == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://127.0.0.1:{}", "null", "http://127.0.0.1:1", "file://"],
)
def test_pages_of_other_sites_are_refused(client: Client, server: ViewServer, origin: str) -> None:
    for method, path in (*API, ("GET", "/")):
        headers: dict[str, str | None] = {"Origin": origin.format(server.port)}
        assert client.send(method, path, b"", headers=headers).status == 403


def test_our_own_page_is_answered_under_both_names(client: Client, server: ViewServer) -> None:
    for name in ("127.0.0.1", "localhost"):
        address = f"{name}:{server.port}"
        headers: dict[str, str | None] = {"Host": address, "Origin": f"http://{address}"}
        assert client.get("/api/state", headers=headers).status == 200


def test_it_listens_on_this_machine_alone(server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("method", ["OPTIONS", "DELETE", "PATCH", "TRACE", "CONNECT", "HEAD", "X"])
def test_other_methods_are_refused_and_grant_nothing(client: Client, method: str) -> None:
    reply = client.send(method, "/api/state", headers={"Origin": "http://evil.example"})
    assert reply.status == 501
    assert not [name for name in reply.headers if name.lower().startswith("access-control")]


def test_every_answer_has_its_guards(client: Client) -> None:
    for reply in (client.get("/"), client.get("/api/state"), client.get("/nowhere")):
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["Server"].strip() == "vbreg"


# --- no request names a file


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/page.html",
        "/page.html",
        "/viewer.js/../page.html",
        "/api/scene/../../../etc/passwd",
        "/api/aligned?path=/etc/passwd/x",
        "//etc/passwd",
        "/etc/passwd",
        "/api/",
        "/API/state",
        "/viewer.js%00.html",
    ],
)
def test_paths_lead_nowhere(client: Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status in (400, 404, 409)
    assert b"root:" not in reply.body


def test_no_other_server_is_asked(client: Client, server: ViewServer) -> None:
    for path in ("http://evil.example/", f"http://127.0.0.1:{server.port}/api/state"):
        assert client.get(path).status == 400


@pytest.mark.parametrize(
    "ending",
    ["", "ply", ".exe", ".html", ".ply/../../evil.ply", "../../evil.ply", "/tmp/x.ply", ".pkl",
     ".ply%00.sh", ".ply.gz.gz", ".PLY%0a", "%2e%2e%2fx.ply"],
)  # fmt: skip
def test_only_known_endings_are_taken(client: Client, session: Session, ending: str) -> None:
    assert client.send("PUT", f"/api/source?ending={ending}", b"x").status == 415
    assert not list(session.folder.iterdir())


def test_names_of_the_client_are_ignored(
    client: Client, session: Session, search: StandIn, tmp_path: Path
) -> None:
    stream = io.BytesIO()
    np.save(stream, SOURCE)
    names: list[str] = []
    new_path = session.new_path
    session.new_path = lambda ending: names.append(new_path(ending)) or Path(names[-1])  # type: ignore
    headers: dict[str, str | None] = {
        "Content-Disposition": 'attachment; filename="../../../tmp/evil.npy"',
        "X-File-Name": "../evil.npy",
    }
    query = "ending=.NPY&name=../evil.npy&path=/tmp/evil.npy&filename=evil"
    reply = client.send("PUT", f"/api/source?{query}", stream.getvalue(), headers=headers)
    assert reply.status == 202
    assert client.idle()["clouds"]["source"] == len(SOURCE)
    assert names == [session.folder / "cloud1.npy"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["uploads"]


# --- how much a request may cost


def test_a_large_file_is_refused_before_it_comes(client: Client, session: Session) -> None:
    length = str(LIMITS.upload_bytes + 1)
    reply = client.send("PUT", "/api/source?ending=.ply", headers={"Content-Length": length})
    assert reply.status == 413
    assert length in reply.error
    assert not list(session.folder.iterdir())


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "ten", "", "9" * 30, "+5", "\u0663"])
def test_lengths_that_are_none_are_refused(client: Client, length: str) -> None:
    sent = length.encode("utf-8").decode("latin-1")
    reply = client.send("PUT", "/api/source?ending=.ply", headers={"Content-Length": sent})
    assert reply.status in (400, 413)


def test_chunks_and_two_lengths_are_refused(client: Client) -> None:
    path = "/api/source?ending=.ply"
    chunked: dict[str, str | None] = {"Transfer-Encoding": "chunked"}
    assert client.send("PUT", path, headers=chunked).status == 400
    twice = (("Content-Length", "5"), ("Content-Length", "6"))
    assert client.send("PUT", path, repeated=twice).status == 400


def slowly(client: Client, pause: float, parts: int, length: int) -> http.client.HTTPResponse:
    connection = client.connect()
    connection.putrequest("PUT", "/api/source?ending=.ply", skip_host=True)
    for name, value in {**client.own, "Content-Length": str(length)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    try:
        for _ in range(parts):
            connection.send(b"x")
            time.sleep(pause)
    except OSError:
        pass  # it was refused meanwhile
    return connection.getresponse()


def test_a_file_that_takes_too_long_is_refused(hasty: Client, session: Session) -> None:
    assert slowly(hasty, pause=0.2, parts=12, length=1000).status == 408
    assert not list(session.folder.iterdir())


def test_a_file_that_stops_coming_is_refused(hasty: Client, session: Session) -> None:
    assert slowly(hasty, pause=0.0, parts=1, length=1000).status == 408
    assert not list(session.folder.iterdir())


def test_a_file_that_ends_early_is_forgotten(client: Client, session: Session) -> None:
    with socket.create_connection(("127.0.0.1", client.server.port)) as raw:
        head = "".join(f"{k}: {v}\r\n" for k, v in {**client.own, "Content-Length": "99"}.items())
        raw.sendall(f"PUT /api/source?ending=.ply HTTP/1.1\r\n{head}\r\nabc".encode())
        raw.shutdown(socket.SHUT_WR)
        assert b" 400 " in raw.recv(100)
    assert not list(session.folder.iterdir())
    assert client.state()["clouds"]["source"] is None


def test_silent_connections_are_ended(hasty: Client) -> None:
    with socket.create_connection(("127.0.0.1", hasty.server.port)) as raw:
        raw.settimeout(5)
        raw.sendall(b"GET / HTTP/1.1\r\nHost:")
        start = time.monotonic()
        assert raw.recv(100) == b""
        assert time.monotonic() - start < 4


def test_connections_have_a_limit_and_come_back(client: Client) -> None:
    held = [
        socket.create_connection(("127.0.0.1", client.server.port))
        for _ in range(LIMITS.connections)
    ]
    time.sleep(0.2)
    with pytest.raises((OSError, http.client.HTTPException)):
        client.get("/")
    for raw in held:
        raw.close()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            assert client.get("/").status == 200
            break
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
    else:
        pytest.fail("no connection came back")


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b"1", b"\xff\xfe", b'{"voxel_size": -1}', b'{"voxel_size": NaN}', b'{"a": 1}',
        b'{"voxel_size": "0.1"}', b'{"voxel_size": true}', b'{"preset": "../x"}', b'{"preset": 3}',
        b'{"voxel_size": 1e400}', b'{"source": "/etc/passwd"}', b"[" * 190,
    ],
)  # fmt: skip
def test_bodies_that_make_no_sense_are_refused(
    client: Client, search: StandIn, body: bytes
) -> None:
    both(client)
    assert client.send("POST", "/api/register", body).status == 400
    assert search.runs == 0


def test_a_large_body_is_refused(client: Client) -> None:
    assert client.send("POST", "/api/register", b" " * 300).status == 413
    assert client.send("GET", "/api/state", b" " * 300).status == 413


@pytest.mark.parametrize("after", ["x", "1.5", "--1", "9" * 40, "%00"])
def test_versions_that_are_none_are_refused(client: Client, after: str) -> None:
    assert client.get(f"/api/state?after={after}").status == 400


NOISE = {
    "TLS": b"\x16\x03\x01\x02\x00",
    "no path": b"GET\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\n\r\n",
    "zeros": b"\x00" * 100,
    "a long path": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "half an address": b"GET /[::1 HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("sent", NOISE.values(), ids=NOISE)
def test_noise_does_not_stop_it(hasty: Client, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", hasty.server.port)) as raw:
        raw.settimeout(5)
        raw.sendall(sent)
        while raw.recv(4096):
            pass
    assert hasty.get("/api/state").status == 200


# --- one heavy job at a time


def test_jobs_wait_for_each_other_and_the_queue_has_an_end(client: Client, search: StandIn) -> None:
    both(client)
    search.go_on.clear()
    assert client.post("/api/register").status == 202
    client.wait(lambda s: s["job"] is not None and s["job"]["stage"] == "network")
    replies = [client.post("/api/register") for _ in range(6)]
    assert [reply.status for reply in replies] == [202] * 4 + [429] * 2
    assert "waiting" in replies[-1].error
    assert client.state()["job"]["waiting"] == 4
    search.go_on.set()
    client.idle()
    assert search.runs == 5
    assert search.most_at_once == 1


def test_a_job_can_be_cancelled(client: Client, search: StandIn) -> None:
    both(client)
    search.go_on.clear()
    for _ in range(3):
        client.post("/api/register")
    client.wait(lambda s: s["job"] is not None and s["job"]["stage"] == "network")
    assert client.post("/api/cancel").status == 202
    search.go_on.set()
    state = client.idle()
    assert search.runs == 1
    assert not state["registered"]
    assert state["error"] is None


def test_files_of_cancelled_jobs_are_removed(
    client: Client, search: StandIn, session: Session
) -> None:
    both(client)
    search.go_on.clear()
    client.post("/api/register")
    client.wait(lambda s: s["job"] is not None and s["job"]["stage"] == "network")
    client.upload("source", SOURCE)
    assert len(list(session.folder.iterdir())) == 1
    client.post("/api/cancel")
    search.go_on.set()
    client.idle()
    assert not list(session.folder.iterdir())


def test_a_file_that_finds_the_queue_full_is_removed(
    client: Client, search: StandIn, session: Session
) -> None:
    both(client)
    search.go_on.clear()
    for _ in range(5):
        client.post("/api/register")
        client.wait(lambda s: s["job"] is not None and s["job"]["stage"] == "network")
    assert client.upload("source", SOURCE).status == 429
    assert not list(session.folder.iterdir())


def test_without_clouds_nothing_is_registered(client: Client, search: StandIn) -> None:
    for path in ("/api/scene", "/api/result", "/api/aligned", "/api/report"):
        assert client.get(path).status == 409
    assert client.post("/api/register").status == 409
    client.upload("source", SOURCE)
    client.idle()
    reply = client.post("/api/register")
    assert reply.status == 409
    assert "no target yet" in reply.error
    assert search.runs == 0


# --- it survives


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".ply", b"ply\nformat ascii 1.0\nelement vertex 5\nend_header\n"),
        (".ply", b""),
        (".npy", b"\x93NUMPY\x01\x00"),
        (".pcd", b"\x00" * 64),
        (".npz", b"PK\x03\x04 nothing"),
        (".xyz", b"one two three\n"),
        (".ply.gz", b"\x1f\x8b nothing"),
        (".npy", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n"),
    ],
)
def test_a_broken_file_is_a_message(
    client: Client, session: Session, ending: str, content: bytes
) -> None:
    assert client.send("PUT", f"/api/source?ending={ending}", content).status == 202
    state = client.idle()
    assert "the source file" in state["error"]
    assert str(session.folder) not in state["error"]
    assert state["clouds"]["source"] is None
    assert not list(session.folder.iterdir())
    client.upload("source", SOURCE)  # and it goes on
    state = client.idle()
    assert state["error"] is None
    assert state["clouds"]["source"] == len(SOURCE)


def test_a_broken_file_leaves_the_cloud_before_it(client: Client) -> None:
    client.upload("source", SOURCE)
    client.idle()
    client.send("PUT", "/api/source?ending=.ply", b"nothing")
    state = client.idle()
    assert state["error"]
    assert state["clouds"]["source"] == len(SOURCE)


def test_a_file_without_finite_points_is_a_message(client: Client) -> None:
    client.upload("source", np.full((10, 3), np.nan))
    assert "no finite point" in client.idle()["error"]
    client.upload("source", SOURCE)
    assert client.idle()["error"] is None


def test_a_search_that_fails_is_a_message(client: Client, broken: StandIn) -> None:
    both(client)
    client.post("/api/register")
    assert client.idle()["error"] == "voxel_size 9: expected less"


@pytest.mark.parametrize(
    ("fault", "said"), [(RuntimeError("boom"), "a fault of vbreg"), (MemoryError(), "memory")]
)
def test_a_fault_of_ours_ends_the_job_and_not_the_server(
    client: Client, search: StandIn, fault: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    search.error = fault
    both(client)
    client.post("/api/register")
    assert said in client.idle()["error"]
    search.error = None
    client.post("/api/register")
    assert client.idle()["registered"]


def test_a_port_in_use_is_told(server: ViewServer, session: Session) -> None:
    with pytest.raises(VBRegError, match="choose another one"):
        ViewServer(session, server.port)
