"""A table in, a table out: the order, failures, kills and lost workers."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vbreg import register
from vbreg.batch import BatchSettings, register_table, run
from vbreg.batch.cluster import OneThreadWorker, RayPool
from vbreg.batch.journal import ResultJournal, content_of, journal_path
from vbreg.batch.local import Died, Done, LocalPool, serve
from vbreg.batch.plan import Plan
from vbreg.batch.record import record_path
from vbreg.batch.rows import POSE, PairRow, failed, pair_rows
from vbreg.batch.run import MAX_DEATHS, BatchRun
from vbreg.batch.tables import Row, read_table
from vbreg.batch.worker import Worker
from vbreg.descriptors.choice import SHIPPED
from vbreg.errors import VBRegError, VBRegWarning
from vbreg.pretrained import weights_path

SETTINGS = BatchSettings(voxel_size=0.1)
STATUS = {"b": "failed", "e": "failed"}


class Watched(LocalPool):
    """Processes of this machine, the first of which is killed as soon as it has its first rows."""

    def __init__(self, settings: BatchSettings, devices: Sequence[str]) -> None:
        super().__init__(settings, devices)
        self.given: list[list[PairRow]] = []
        self.died: list[Died] = []

    def submit(self, worker: int, rows: Sequence[PairRow]) -> None:
        self.given.append(list(rows))
        super().submit(worker, rows)
        if len(self.given) == 1:
            assert worker == 0
            self.processes[0].kill()

    def wait(self) -> list[Done | Died]:
        events = super().wait()
        self.died += [event for event in events if isinstance(event, Died)]
        return events


class HereAndNow:
    """A pool without processes, whose workers die when they are told to."""

    chunk = 2

    def __init__(self, work: object, workers: int = 1, deadly: Sequence[int] = ()) -> None:
        self.work, self.workers, self.deadly = work, workers, set(deadly)
        self.given: dict[int, list[PairRow]] = {}
        self.restarted = 0

    def ready(self, worker: int) -> bool:
        return True

    def submit(self, worker: int, rows: Sequence[PairRow]) -> None:
        assert worker not in self.given, "one chunk a worker"
        self.given[worker] = list(rows)

    def wait(self) -> list[Done | Died]:
        worker, rows = self.given.popitem()
        if any(row.number in self.deadly for row in rows):
            return [Died(worker, "killed")]
        return [Done(worker, self.work(rows))]  # type: ignore[operator]

    def restart(self, worker: int) -> None:
        self.restarted += 1

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(SETTINGS, "cpu")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    """Have all work done in this process."""
    monkeypatch.setattr(run, "LocalPool", lambda settings, devices: HereAndNow(worker, 3))


def without_times(path: Path) -> list[Row]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_table(path)]


def test_rows_stand_in_the_order_of_the_input(table: Path, tmp_path: Path, here: None) -> None:
    output = tmp_path / "poses.csv"
    done = register_table(table, output, settings=SETTINGS, workers=3)
    rows = read_table(output)
    assert [row["id"] for row in rows] == list("abcdef")
    assert (done.rows, done.computed, sum(done.counts.values())) == (6, 6, 6)
    assert done.counts["failed"] == 2
    for row in rows:
        assert (row["status"] == "failed") == (row["id"] in "be")
        assert (row["T00"] is None) == (row["status"] == "failed")
        if row["status"] == "failed":
            expected = "no such file" if row["id"] == "b" else "voxel_size 'wrong'"
            assert expected in row["message"]
            continue
        size = float(row["voxel_size"] or 0.1)
        ends = (table.parent / row[name] for name in ("source", "target"))
        alone = register(*ends, voxel_size=size, device="cpu")
        pose = np.array([float(row[name]) for name in POSE]).reshape(4, 4)
        np.testing.assert_allclose(pose, alone.T_target_source, atol=1e-6)
        assert float(row["success_probability"]) == pytest.approx(alone.success_probability)
        assert float(row["used_voxel_size"]) == size
    assert not journal_path(output).exists()


def test_json_lines_in_and_parquet_out(table: Path, tmp_path: Path, here: None) -> None:
    """Types stay what they are, and the poses are those of the same pairs in CSV."""
    pytest.importorskip("pyarrow", reason="vbreg[scale] is not installed")
    given: list[Row] = [
        {**row, "count": k, "tags": [k, "x"], "voxel_size": float(row["voxel_size"] or 0.1)}
        for k, row in enumerate(read_table(table))
        if row["id"] != "e"
    ]
    lines = table.with_name("pairs.jsonl")  # beside the clouds
    lines.write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    register_table(lines, tmp_path / "poses.parquet", settings=SETTINGS, workers=3)
    register_table(table, tmp_path / "poses.csv", settings=SETTINGS, workers=3)
    found = read_table(tmp_path / "poses.parquet")
    texts = [row for row in read_table(tmp_path / "poses.csv") if row["id"] != "e"]
    assert [row["id"] for row in found] == list("abcdf")
    for row, before, text in zip(found, given, texts, strict=True):
        assert {name: row[name] for name in before} == {
            **before,
            "tags": json.dumps(before["tags"]),
        }
        assert row["status"] == text["status"]
        for name in (*POSE, "success_probability", "inliers"):
            assert row[name] == (None if text[name] is None else float(text[name]))
        if row["status"] != "failed":
            assert isinstance(row["inliers"], int)
            assert isinstance(row["T00"], float)


def test_what_the_input_calls_a_row_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = HereAndNow(lambda rows: [failed(row.number, "for the test") for row in rows])
    monkeypatch.setattr(run, "LocalPool", lambda settings, devices: pool)
    pairs, output = tmp_path / "pairs.csv", tmp_path / "poses.csv"
    pairs.write_text("source,target,row\na,b,seven\nc,d,eight\n", encoding="utf-8")
    register_table(pairs, output, settings=SETTINGS, workers=1)
    assert [row["row"] for row in read_table(output)] == ["seven", "eight"]


def test_a_column_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LocalPool", lambda settings, devices: pytest.fail("it has begun"))
    pairs, output = tmp_path / "pairs.jsonl", tmp_path / "poses.csv"
    pairs.write_text('{"source": "a", "target": "b", "\\ud800": 1}\n', encoding="utf-8")
    with pytest.raises(VBRegError, match="the names of the columns cannot be written"):
        register_table(pairs, output, settings=SETTINGS, workers=1)
    assert not journal_path(output).exists()


def test_a_run_goes_on_where_it_stopped(
    table: Path, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is stopped, every row is computed once and the output is the same."""
    done: list[int] = []

    def one_chunk(rows: Sequence[PairRow]) -> list[Row]:
        if done and stop:
            raise KeyboardInterrupt
        done.extend(row.number for row in rows)
        return [failed(row.number, "for the test") for row in rows]

    monkeypatch.setattr(run, "LocalPool", lambda settings, devices: HereAndNow(one_chunk))
    output, stop = tmp_path / "poses.csv", True
    every: list[int] = []
    for _ in range(10):
        done.clear()
        try:
            register_table(table, output, settings=SETTINGS, workers=1)
            break
        except KeyboardInterrupt:
            assert not output.exists()
            with journal_path(output).open("ab") as file:
                file.write(b'0badc0de {"row": 5, "status": "o')  # what a kill may leave
        finally:
            every += done
    assert sorted(every) == list(range(6))
    assert [row["id"] for row in read_table(output)] == list("abcdef")
    stop = False
    assert register_table(table, output, settings=SETTINGS, overwrite=True).computed == 6


def test_a_finished_table_is_known_by_its_record(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run finds nothing to do; another is refused; without the output all is done anew."""
    pool = HereAndNow(lambda rows: [failed(row.number, "for the test") for row in rows])
    monkeypatch.setattr(run, "LocalPool", lambda settings, devices: pool)
    output = tmp_path / "poses.csv"
    first = register_table(table, output, settings=SETTINGS, workers=1)
    before = output.read_bytes()
    again = register_table(table, output, settings=SETTINGS, workers=2)
    assert (again.computed, again.rows, again.counts) == (0, 6, first.counts)
    assert output.read_bytes() == before
    with pytest.raises(VBRegError, match=r"a run with voxel_size 0\.1, and this run has 0\.2"):
        register_table(table, output, settings=BatchSettings(voxel_size=0.2))
    output.unlink()
    assert register_table(table, output, settings=SETTINGS, workers=1).computed == 6
    record_path(output).write_text("{}", encoding="utf-8")
    with pytest.raises(VBRegError, match="no record of a run"):
        register_table(table, output, settings=SETTINGS)
    record_path(output).unlink()
    with pytest.raises(VBRegError, match="--overwrite it"):
        register_table(table, output, settings=SETTINGS)
    assert register_table(table, output, settings=SETTINGS, overwrite=True).computed == 6


class Counted:
    """Pairs of clouds that are texts; a pair fails where one is missing. It notes what is done."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, ending: str = ".csv") -> None:
        self.folder, self.pairs, self.output = folder, folder / "pairs.csv", folder / f"out{ending}"
        self.asked: list[int] = []
        self.stop_after = 100
        for k in range(4):
            self.write(k)
        lines = [f"{k}.txt,{(k + 1) % 4}.txt,{k}" for k in range(4)]
        self.pairs.write_text("\n".join(["source,target,id", *lines]), encoding="utf-8")
        pool = HereAndNow(self.solve)
        monkeypatch.setattr(run, "LocalPool", lambda settings, devices: pool)

    def write(self, k: int, text: str = "cloud") -> None:
        (self.folder / f"{k}.txt").write_text(text, encoding="utf-8")

    def solve(self, rows: Sequence[PairRow]) -> list[Row]:
        if len(self.asked) + len(rows) > self.stop_after:
            raise KeyboardInterrupt
        self.asked += [row.number for row in rows]
        return [self.result(row) for row in rows]

    def result(self, row: PairRow) -> Row:
        ends = [Path(path) for path in row[1:3]]
        if not all(path.exists() for path in ends):
            return failed(row.number, "no such file", 0.1)
        said = " - ".join(path.read_text(encoding="utf-8") for path in ends)
        pose = dict.fromkeys(POSE, 0.1 + 0.2)
        return {"row": row.number, "status": "doubtful", **pose, "inliers": 7, "message": said}

    def __call__(self, **options: Any) -> list[int]:
        """Run, and return the rows that were done."""
        self.asked.clear()
        done = register_table(self.pairs, self.output, settings=SETTINGS, workers=1, **options)
        assert done.computed == len(self.asked)
        assert sum(done.counts.values()) == 4
        rows = read_table(self.output)
        assert [row["id"] for row in rows] == list("0123")
        for status, count in done.counts.items():
            assert [row["status"] for row in rows].count(status) == count
        expected = [self.result(row) for row in pair_rows(read_table(self.pairs), self.folder)]
        for row, now in zip(rows, expected, strict=True):
            assert row["message"] == now["message"]
            assert str(row["T00"]) == str(now.get("T00"))
            assert str(row["inliers"]) == str(now.get("inliers"))
        return sorted(self.asked)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_rows_whose_files_changed_are_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Of a finished table, too, whose other rows are kept."""
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="vbreg[scale] is not installed")
    counted = Counted(tmp_path, monkeypatch, ending)
    assert counted() == [0, 1, 2, 3]
    assert counted() == []
    counted.write(2, "another cloud")
    assert counted() == [1, 2]
    (tmp_path / "0.txt").unlink()
    assert counted() == [0, 3]
    assert counted() == []
    counted.write(0)
    assert counted() == [0, 3]
    assert not journal_path(counted.output).exists()


@pytest.mark.parametrize("stop_after", [0, 2])
def test_a_run_that_was_stopped_notices_changed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    """Those of its journal, and those of the finished table that it began from."""
    counted = Counted(tmp_path, monkeypatch)
    (tmp_path / "0.txt").unlink()
    counted()
    counted.stop_after = stop_after
    counted.write(0)
    counted.write(2, "another cloud")
    with pytest.raises(KeyboardInterrupt):
        counted()
    done = set(counted.asked)
    assert len(done) == stop_after
    counted.stop_after = 100
    assert set(counted()) == {0, 1, 2, 3} - done
    counted.write(1, "a third cloud")
    counted.stop_after = 0
    with pytest.raises(KeyboardInterrupt):
        counted()
    counted.write(3, "a fourth cloud")
    counted.stop_after = 100
    assert counted() == [0, 1, 2, 3]


def test_failed_rows_are_done_again_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(tmp_path, monkeypatch)
    (tmp_path / "0.txt").unlink()
    assert counted() == [0, 1, 2, 3]
    assert counted() == []
    assert counted(retry_failed=True) == [0, 3]
    counted.stop_after = 0
    with pytest.raises(KeyboardInterrupt):
        counted(retry_failed=True)
    counted.stop_after = 100
    assert counted() == []  # they have failed before
    assert counted(retry_failed=True) == [0, 3]


def test_a_finished_table_that_was_changed_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may stand in another order."""
    counted = Counted(tmp_path, monkeypatch)
    counted()
    head, *lines = counted.output.read_text(encoding="utf-8").splitlines(keepends=True)
    turned = "".join([head, *reversed(lines)])
    counted.output.write_text(turned, encoding="utf-8")
    register_table(counted.pairs, counted.output, settings=SETTINGS)  # nothing is left to do
    counted.write(2, "another cloud")
    for _ in range(2):
        with pytest.raises(VBRegError, match=r"out\.csv is not what the run wrote, .*--overwrite"):
            counted()
        assert counted.output.read_text(encoding="utf-8") == turned
        assert not journal_path(counted.output).exists()
    assert counted(overwrite=True) == [0, 1, 2, 3]


def test_what_an_earlier_version_wrote_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word of the files that its rows were computed from."""
    counted = Counted(tmp_path, monkeypatch)
    counted()
    path = record_path(counted.output)
    held = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: held[name] for name in ("run", "counts")}), encoding="utf-8")
    assert counted() == []
    path.write_text(json.dumps({**held, "files": ["a"]}), encoding="utf-8")
    with pytest.raises(VBRegError, match=r"no record of a run .*files of 1 rows instead of 4"):
        counted()


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_output_has_one_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """A second run is refused and changes nothing; a lock that a kill left is none."""
    counted = Counted(tmp_path, monkeypatch)
    lock = tmp_path / "out.csv.lock"
    lock.touch()
    usual, told = counted.solve, []

    def solve(rows: Sequence[PairRow]) -> list[Row]:
        before = journal_path(counted.output).read_bytes()
        with pytest.raises(VBRegError, match=r"another run is writing .*out\.csv"):
            register_table(counted.pairs, counted.output, settings=SETTINGS, overwrite=overwrite)
        assert journal_path(counted.output).read_bytes() == before
        assert lock.exists()
        told.append(rows)
        return usual(rows)

    monkeypatch.setattr(run, "LocalPool", lambda settings, devices: HereAndNow(solve))
    assert counted() == [0, 1, 2, 3]
    assert told
    assert not lock.exists()


def test_another_table_or_setting_is_not_mixed_in(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(settings: BatchSettings, devices: Sequence[str]) -> HereAndNow:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "LocalPool", stopped)
    output = tmp_path / "poses.csv"
    with pytest.raises(KeyboardInterrupt):
        register_table(table, output, settings=SETTINGS)
    with pytest.raises(VBRegError, match=r"a run with voxel_size 0\.1, and this run has 0\.2"):
        register_table(table, output, settings=BatchSettings(voxel_size=0.2))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_that_kills_its_workers_fails_alone(tmp_path: Path, workers: int) -> None:
    rows = [PairRow(k, str(k), str(k + 1), {}) for k in range(9)]
    journal = ResultJournal(tmp_path / "journal", {})
    pool = HereAndNow(lambda some: [{"row": r.number, "status": "ok"} for r in some], workers, [4])
    BatchRun(Plan(rows, workers, 2), pool, journal)()
    assert [k for k in range(9) if journal[k]["status"] == "failed"] == [4]
    assert "3 workers ended" in journal[4]["message"]
    assert pool.restarted == 3
    journal.close()


def test_a_run_whose_workers_all_end_stops(tmp_path: Path) -> None:
    rows = [PairRow(k, str(k), str(k + 1), {}) for k in range(MAX_DEATHS)]
    journal = ResultJournal(tmp_path / "journal", {})
    pool = HereAndNow(None, 2, range(MAX_DEATHS))
    with pytest.raises(VBRegError, match="one after the other; the last: killed"):
        BatchRun(Plan(rows, 2, 2), pool, journal)()
    journal.close()


def test_rows_are_not_blamed_where_no_worker_can_work(tmp_path: Path) -> None:
    """Their failures would stay in the journal; so a run that goes on finds them as they were."""
    rows = [PairRow(k, str(k), str(k + 1), {}) for k in range(MAX_DEATHS)]
    for some in (rows[:3], rows):  # all that there are are lost, or the workers come first
        journal = ResultJournal(tmp_path / "journal", {})
        pool = HereAndNow(None, 1, range(MAX_DEATHS))
        with pytest.raises(VBRegError, match="the last: killed; put that right"):
            BatchRun(Plan(some, 1, 2), pool, journal)()
        assert len(journal) == 0
        journal.close()


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine or of a cluster: its rows are not to blame."""

    def broken(settings: BatchSettings, device: str) -> Worker:
        raise RuntimeError("no memory on this card")

    monkeypatch.setattr("vbreg.batch.worker.Worker", broken)
    sent: list[object] = []
    rows = [PairRow(0, "a", "b", {})]
    pipe: Any = SimpleNamespace(send=sent.append, recv=lambda: rows)
    serve(pipe, SETTINGS, "cuda:1")
    sent.append(OneThreadWorker(SETTINGS, "cuda:1").solve(rows))
    assert sent.pop(0) is None  # the process has begun
    said = "a worker on cuda:1 could not start (RuntimeError: no memory on this card); put that"
    assert all(str(answer).startswith(said) for answer in sent)
    pool: Any = SimpleNamespace(pipes=[SimpleNamespace(recv=lambda: sent[0])])
    with pytest.raises(VBRegError, match="no memory on this card"):
        LocalPool._event(pool, 0)
    errors = SimpleNamespace(RayActorError=OSError, OutOfMemoryError=MemoryError)
    pool = SimpleNamespace(
        ray=SimpleNamespace(get=lambda reference: sent[1], exceptions=errors), starting=set()
    )
    with pytest.raises(VBRegError, match="no memory on this card"):
        RayPool._event(pool, None, 0)


def test_a_script_that_workers_import_says_what_to_do(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers would start others; and their parent does not start more of them."""
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
        with pytest.raises(VBRegError, match=r'starts: .* under `if __name__ == "__main__":`'):
            register_table(table, tmp_path / "poses.csv", settings=SETTINGS)

    def ended() -> None:
        raise EOFError

    process = SimpleNamespace(join=lambda seconds: None, exitcode=1)
    pool: Any = SimpleNamespace(
        pipes=[SimpleNamespace(recv=ended)], processes=[process], begun=set()
    )
    with pytest.raises(VBRegError, match=r"exit code 1 before it began: .*__main__"):
        LocalPool._event(pool, 0)
    pool.begun.add(0)
    assert isinstance(LocalPool._event(pool, 0), Died)
    pool.begun.clear()
    process.exitcode = -9  # killed, which may happen to any
    assert isinstance(LocalPool._event(pool, 0), Died)


@pytest.mark.slow
def test_a_script_needs_the_usual_guard(table: Path, tmp_path: Path) -> None:
    """With it a table is done, and without it the first worker ends the run."""
    call = f"register_table({str(table)!r}, 'poses.csv', workers=1, device='cpu')"
    head = "from vbreg.batch import register_table\n"
    done = []
    for name, text in (("bare", call), ("guarded", f"if __name__ == '__main__':\n    {call}")):
        (tmp_path / f"{name}.py").write_text(f"{head}{text}\n", encoding="utf-8")
        command = [sys.executable, f"{name}.py"]
        done.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True))
    assert done[0].returncode == 1
    assert done[0].stderr.count('if __name__ == "__main__":') == 2  # of the worker, of the run
    assert done[1].returncode == 0
    assert len(read_table(tmp_path / "poses.csv")) == 6


def test_workers_get_whole_paths_of_weights(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may run in another folder; what the run is known by stays as it was given."""
    given: list[BatchSettings] = []

    def pool(settings: BatchSettings, devices: Sequence[str]) -> HereAndNow:
        given.append(settings)
        return HereAndNow(lambda rows: [failed(row.number, "for the test") for row in rows])

    monkeypatch.setattr(run, "LocalPool", pool)
    monkeypatch.chdir(tmp_path)
    for path in (SHIPPED, weights_path("fast")):
        shutil.copy(path, path.name)
    (tmp_path / "fpfh").write_text("no descriptor", encoding="utf-8")
    for weights, descriptor in (("fast.safetensors", SHIPPED.name), ("fast", "fpfh")):
        settings = BatchSettings(weights=weights, descriptor=descriptor)
        register_table(table, "poses.csv", settings=settings, workers=1, overwrite=True)
        held = json.loads(record_path(Path("poses.csv")).read_text(encoding="utf-8"))["run"]
        assert held["descriptor"][0] == descriptor
    assert given[0].weights == str(tmp_path / "fast.safetensors")
    assert given[0].descriptor == str(tmp_path / SHIPPED.name)
    assert (given[1].weights, given[1].descriptor) == ("fast", "fpfh")


def whole_lines(journal: Path) -> list[Row]:
    """The results that a run has written so far."""
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    return [row for row in map(content_of, lines[1:]) if row is not None]


@pytest.mark.slow
def test_a_killed_command_goes_on(table: Path, tmp_path: Path) -> None:
    """With processes and signals: what was found before the kill is not computed again."""
    output = tmp_path / "poses.csv"
    journal = journal_path(output)
    command = [sys.executable, "-m", "vbreg", "batch", str(table), "-o", str(output)]
    command += ["--voxel-size", "0.1", "--workers", "1", "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as first:
        while not whole_lines(journal) and first.poll() is None:
            time.sleep(0.01)
        first.kill()
    assert first.returncode != 0
    assert not output.exists()
    before = whole_lines(journal)
    assert 0 < len(before) < 6
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert f"known before {len(before)}" in done.stdout
    assert not journal.exists()
    rows = read_table(output)
    assert [row["id"] for row in rows] == list("abcdef")
    assert [row["status"] == "failed" for row in rows] == [row["id"] in "be" for row in rows]
    for known in before:  # a row that is computed again takes another time
        assert rows[known["row"]]["seconds"] == str(known["seconds"])


@pytest.mark.slow
def test_a_run_goes_on_when_a_local_worker_is_killed(table: Path, tmp_path: Path) -> None:
    """Two processes of this machine; one is killed while it has a row, and another takes over."""
    pool = Watched(SETTINGS, ["cpu", "cpu"])
    first = pool.processes[0]
    journal = ResultJournal(tmp_path / "journal", {})
    try:
        BatchRun(Plan(pair_rows(read_table(table), table.parent), 2, 1), pool, journal)()
        assert len(pool.died) == 1
        assert pool.processes[0] is not first
        assert not first.is_alive()
        assert sorted(journal.places) == list(range(6))
        assert journal.counts["failed"] == 2
        lost = pool.given[0][0]
        assert [rows for rows in pool.given if lost in rows] == [[lost], [lost]]
        assert len(pool.given) == 6 + 1
    finally:
        pool.close()
        journal.close()
    assert not any(process.is_alive() for process in pool.processes)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("source,goal\na,b\n", {}, "row 1 of the table has no target"),
        (
            "source,target,overlap,row,T00\na,b,1,2,3\n",
            {},
            "column named overlap and one named T00, as the results are called",
        ),
        ("source,target\na,b\n", {"engine": "spark"}, "engine 'spark'"),
        ("source,target\na,b\n", {"workers": 0}, "workers 0"),
        ("source,target\na,b\n", {"address": "auto"}, "only the engine 'ray'"),
        ("source,target\na,b\n", {"settings": BatchSettings(weights="huge")}, "huge"),
        (
            "source,target\na,b\n",
            {"settings": BatchSettings(descriptor="none")},
            "descriptor 'none'",
        ),
    ],
)
def test_mistakes_are_told_before_the_work(
    tmp_path: Path, content: str, options: dict[str, object], message: str
) -> None:
    (tmp_path / "pairs.csv").write_text(content, encoding="utf-8")
    with pytest.raises(VBRegError, match=message):
        register_table(tmp_path / "pairs.csv", tmp_path / "poses.csv", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"settings": BatchSettings(descriptor="none")},
        {"device": "warp"},
        {"address": "auto"},
    ],
)
def test_a_wrong_option_costs_no_earlier_results(
    tmp_path: Path, options: dict[str, object]
) -> None:
    (tmp_path / "pairs.csv").write_text("source,target\na,b\n", encoding="utf-8")
    output = tmp_path / "poses.csv"
    for path in (journal_path(output), record_path(output)):
        path.write_text("earlier", encoding="utf-8")
    with pytest.raises(VBRegError):
        register_table(tmp_path / "pairs.csv", output, overwrite=True, **options)  # type: ignore[arg-type]
    assert journal_path(output).read_text(encoding="utf-8") == "earlier"
    assert record_path(output).exists()


class MadeUpCluster:
    """In place of Ray: some of its actors never start, and one may be lost in some way."""

    class ActorLost(Exception):
        pass

    class MemoryLost(Exception):
        pass

    exceptions = SimpleNamespace(RayActorError=ActorLost, OutOfMemoryError=MemoryLost)

    def __init__(self, cpus: float, gpus: float = 0, free: int = 1) -> None:
        self.held, self.free = {"CPU": cpus, "GPU": gpus}, free
        self.answers: dict[object, Any] = {}
        self.given: list[int] = []  # rows, as they come
        self.lost: list[Exception] = []

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return self.held

    def remote(self, **options: object) -> Any:
        return lambda kind: SimpleNamespace(remote=lambda *given: self.actor())

    def actor(self) -> Any:
        runs = self.free > 0
        self.free -= runs

        def call(rows: Sequence[PairRow] = ()) -> object:
            reference = object()
            assert runs or not rows, "rows for an actor that does not run"
            self.given += [row.number for row in rows]
            if rows and self.lost:
                self.free += 1
                self.answers[reference] = self.lost.pop()
            elif runs:
                self.answers[reference] = [failed(r.number, "for the test") for r in rows] or 123
            return reference

        method = SimpleNamespace(remote=call)
        return SimpleNamespace(process_id=method, solve=method)

    def wait(
        self, references: Sequence[object], num_returns: int, timeout: float | None
    ) -> tuple[list[object], list[object]]:
        found = [reference for reference in references if reference in self.answers][:1]
        assert found or timeout, "it would wait for ever"
        if not found:
            self.free = 1
            self.answers[references[0]] = 123
        return found, []

    def get(self, reference: object) -> Any:
        answer = self.answers.pop(reference)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor: object) -> None:
        pass


@pytest.fixture
def on_cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayPool]:
    def pool(cluster: MadeUpCluster, **options: Any) -> RayPool:
        monkeypatch.setattr("vbreg.batch.cluster.import_ray", lambda: cluster)
        return RayPool(SETTINGS, **options)

    return pool


@pytest.mark.parametrize("lost", [MadeUpCluster.ActorLost, MadeUpCluster.MemoryLost])
def test_a_cluster_that_others_use_works_with_the_actors_that_start(
    tmp_path: Path, on_cluster: Callable[..., RayPool], lost: type[Exception]
) -> None:
    """One of four; it is lost in the middle, and another takes over."""
    cluster = MadeUpCluster(4, free=1)
    pool = on_cluster(cluster)
    assert pool.workers == 4
    rows = [PairRow(k, str(k), str(k + 1), {}) for k in range(9)]
    journal = ResultJournal(tmp_path / "journal", {})
    cluster.lost.append(lost("out of memory"))
    BatchRun(Plan(rows, 4, 2), pool, journal)()
    assert sorted(journal.places) == list(range(9))
    assert len(cluster.given) == 9 + 2
    journal.close()


def test_a_cluster_without_a_free_core_is_waited_for_and_that_is_told(
    on_cluster: Callable[..., RayPool],
) -> None:
    pool = on_cluster(MadeUpCluster(2, free=0))
    assert not pool.ready(0)
    with pytest.warns(VBRegWarning, match="no worker has started in 60 seconds"):
        assert pool.wait() == []
    assert pool.wait() == []
    assert pool.ready(0)
    assert not pool.ready(1)


@pytest.mark.parametrize(
    ("cpus", "gpus", "workers", "started"),
    [(4, 0, None, 4), (4, 0, 2, 2), (4, 2, None, 2), (2, 4, None, 2), (4, 0, 5, 0), (4, 2, 3, 0)],
)
def test_a_cluster_has_as_many_workers_as_it_can_run(
    on_cluster: Callable[..., RayPool], cpus: int, gpus: int, workers: int | None, started: int
) -> None:
    """More would wait for ever."""
    cluster = MadeUpCluster(cpus, gpus)
    if started:
        assert on_cluster(cluster, workers=workers).workers == started
        return
    most = min(cpus, gpus or cpus)
    with pytest.raises(VBRegError, match=rf"{workers} workers on a cluster .* at most {most},"):
        on_cluster(cluster, workers=workers)


def test_an_empty_table_is_no_work(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("source,target\n", encoding="utf-8")
    assert register_table(tmp_path / "pairs.csv", tmp_path / "poses.csv").rows == 0
    assert read_table(tmp_path / "poses.csv") == []


@pytest.mark.slow
def test_ray_goes_on_when_a_worker_is_killed(table: Path, tmp_path: Path) -> None:
    """Two actors of a local Ray; the process of one is killed in the middle."""
    ray = pytest.importorskip("ray", reason="vbreg[scale] is not installed")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        pool = RayPool(SETTINGS, workers=2, device="cpu")
        victims = [pool.process_id(0)]

        def kill(count: int) -> None:
            if victims and count:
                os.kill(victims.pop(), getattr(signal, "SIGKILL", signal.SIGTERM))

        rows = pair_rows(read_table(table), table.parent)
        journal = ResultJournal(tmp_path / "journal", {})
        first = pool.actors[0]
        BatchRun(Plan(rows, 2, 1), pool, journal, kill)()
        assert not victims
        assert pool.actors[0] is not first
        assert sorted(journal.places) == list(range(6))
        assert journal.counts["failed"] == 2
        journal.close()
        pool.close()
    finally:
        ray.shutdown()
