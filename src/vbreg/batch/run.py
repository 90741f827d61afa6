"""A table in, a table out: what is missing is given to workers and kept in a journal."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from vbreg.backends import devices
from vbreg.batch.journal import ResultJournal, journal_path
from vbreg.batch.local import MAIN_GUARD, Died, LocalPool, Pool
from vbreg.batch.lock import sole_writer
from vbreg.batch.plan import Plan
from vbreg.batch.record import (
    Record,
    check_table,
    finished_results,
    read_record,
    record_path,
    write_record,
)
from vbreg.batch.rows import (
    RESULTS,
    BatchSettings,
    PairRow,
    failed,
    files_of,
    fingerprint,
    pair_rows,
)
from vbreg.batch.tables import (
    GROUP,
    Row,
    check_cells,
    check_ending,
    column_types,
    pyarrow,
    read_table,
    write_table,
)
from vbreg.descriptors import DESCRIPTORS, descriptor_named
from vbreg.errors import VBRegError
from vbreg.inputs import check_choice, check_whole_number
from vbreg.pretrained import DEFAULT, WEIGHTS, read_header, weights_path
from vbreg.progress import progress

EngineName: TypeAlias = Literal["local", "ray"]
MAX_TRIES = 3  # of a row whose worker ends
MAX_DEATHS = 50  # of workers, one after the other, without a row done between


@dataclass(frozen=True)
class BatchSummary:
    """How a run ended."""

    rows: int
    counts: dict[str, int]  # by status
    computed: int  # rows that were not in the journal
    seconds: float
    workers: int
    output: Path


def register_table(
    pairs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    settings: BatchSettings | None = None,
    engine: EngineName = "local",
    workers: int | None = None,
    device: str = "auto",
    address: str | None = None,
    overwrite: bool = False,
    retry_failed: bool = False,
    quiet: bool = True,
) -> BatchSummary:
    """Register every pair of a table, and write a table with one row for each, in its order.

    `engine` is 'local' (a process for every GPU of this machine, or for every core) or 'ray' (an
    actor for every GPU or core of the cluster at `address`, or of this machine). A row that fails
    says why; it does not end the run. A run that was killed goes on where it stopped when it is
    called again: its journal lies beside the output until that is complete. Then a record lies
    there, by which the same call finds what is left to do: rows whose files have changed, and with
    `retry_failed` those that failed.

    Workers import the script that calls this, so there it stands under
    `if __name__ == "__main__":`.
    """
    # While a process imports the script, `parent_process` does not know yet that it has one.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise VBRegError(f"register_table was called by a worker that starts: {MAIN_GUARD}")
    pairs, output = Path(pairs), Path(output)
    settings = settings or BatchSettings()
    check_choice(engine, "engine", get_args(EngineName))
    if workers is not None:
        check_whole_number(workers, "workers", 1)
    table = read_table(pairs)
    rows = pair_rows(table, pairs.absolute().parent)
    header = {**identity(settings), "table": fingerprint(rows), "rows": len(rows)}
    open_pool = _opener(engine, _with_whole_paths(settings), address, device)
    check_cells(output, column_types(table), table)
    _check_output(output, pairs)
    start = time.perf_counter()
    with sole_writer(output):
        _check_earlier(output, overwrite)
        record = read_record(output, header)
        if record is not None and _complete(output, record, rows, retry_failed):
            return BatchSummary(len(rows), record.counts, 0, time.perf_counter() - start, 0, output)
        journal = _open_journal(output, header, record, rows, retry_failed)
        try:
            left = [row for row in rows if row.number not in journal]
            used = 0
            if left:
                used = _compute(left, journal, len(rows), open_pool, workers, quiet)
            files = _finish(output, table, journal)
        finally:
            journal.close()
        write_record(output, header, journal.counts, files)
        journal.path.unlink()
    seconds = time.perf_counter() - start
    return BatchSummary(len(rows), journal.counts, len(left), seconds, used, output)


def identity(settings: BatchSettings) -> dict[str, object]:
    """Return what results depend on; a wrong name is told here, before any work begins."""
    return {
        **settings.identity(),
        "weights": read_header(weights_path(settings.weights or DEFAULT)).get("sha256"),
        "descriptor": [settings.descriptor, descriptor_named(settings.descriptor).fingerprint],
    }


def _with_whole_paths(settings: BatchSettings) -> BatchSettings:
    """Return settings whose files workers find, wherever on a cluster they run."""
    weights, descriptor = settings.weights, settings.descriptor
    if weights is not None:
        weights = _whole_path(weights, WEIGHTS)
    return replace(settings, weights=weights, descriptor=_whole_path(descriptor, DESCRIPTORS))


def _whole_path(choice: str, names: Container[str]) -> str:
    """Return the absolute path of a file; what is a name stays as it is."""
    path = Path(choice)
    return str(path.absolute()) if choice not in names and path.is_file() else choice


def _check_output(output: Path, pairs: Path) -> None:
    """Raise where the output cannot be written."""
    if check_ending(output) == ".parquet":
        pyarrow("writing")
    if not output.absolute().parent.is_dir():
        raise VBRegError(f"{output}: the folder {output.parent} does not exist; create it")
    if output.exists() and output.samefile(pairs):
        raise VBRegError(f"{output} is the input: choose another name for the result")


def _check_earlier(output: Path, overwrite: bool) -> None:
    """Forget an earlier run where that is asked for; raise where nothing is known of an output."""
    earlier = journal_path(output), record_path(output)
    if overwrite:
        for path in earlier:
            path.unlink(missing_ok=True)
    elif output.exists() and not any(path.exists() for path in earlier):
        raise VBRegError(f"{output} exists: choose another name, or --overwrite it")


def _complete(output: Path, record: Record, rows: Sequence[PairRow], retry_failed: bool) -> bool:
    """Tell whether nothing is left to do for a finished output."""
    if journal_path(output).exists() or (retry_failed and record.counts.get("failed")):
        return False
    return all(_unchanged(row, files) for row, files in zip(rows, record.files, strict=True))


def _unchanged(row: PairRow, files: str | None) -> bool:
    """Tell whether the files of a row are what they were when it was done, as far as is known."""
    return files is None or files == files_of(row)


def _open_journal(
    output: Path,
    header: Mapping[str, Any],
    record: Record | None,
    rows: Sequence[PairRow],
    retry_failed: bool,
) -> ResultJournal:
    """Return the journal with all results that hold, those of a finished output included."""

    def holds(result: Row) -> bool:
        again = retry_failed and result["status"] == "failed"
        return not again and _unchanged(rows[result["row"]], result.get("files"))

    if record is not None and not journal_path(output).exists():
        check_table(output, record)  # before there is a journal of it
    journal = ResultJournal(journal_path(output), header, holds)
    if record is None:
        return journal
    try:
        wanted = [
            row.number
            for row, files in zip(rows, record.files, strict=True)
            if row.number not in journal and _unchanged(row, files)
        ]
        kept = filter(holds, finished_results(output, record, wanted) if wanted else ())
        while some := list(islice(kept, GROUP)):
            journal.add(some)
    except BaseException:
        journal.close()
        raise
    return journal


Opener: TypeAlias = Callable[[int | None, int], Pool]  # of the workers wanted, and the rows left


def _opener(
    engine: EngineName, settings: BatchSettings, address: str | None, device: str
) -> Opener:
    """Return what starts the workers of an engine."""
    if engine == "local":
        if address is not None:
            raise VBRegError(f"address {address!r}: only the engine 'ray' has one")

        devices.choose_device(device)  # a wrong name is told here

        def local(workers: int | None, rows: int) -> Pool:
            names = devices.for_workers(device, workers)
            return LocalPool(settings, names[: max(1, rows)])

        return local
    from vbreg.batch.cluster import RayPool, import_ray

    import_ray()
    return lambda workers, rows: RayPool(settings, address=address, workers=workers, device=device)


@dataclass(eq=False)
class BatchRun:
    """Rows that are given to workers, and what becomes of them."""

    plan: Plan
    pool: Pool
    journal: ResultJournal
    on_rows: Callable[[int], None] = lambda count: None
    busy: dict[int, list[PairRow]] = field(default_factory=dict)  # chunks by their worker
    tries: Counter[int] = field(default_factory=Counter)  # of rows whose workers ended
    deaths: int = 0  # since a worker last finished a chunk
    # Of rows that lost their workers: whether these or the rows are at fault is known when another
    # worker has finished a chunk.
    lost: list[Row] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)  # of rows that workers have, before they do
    finished: bool = False  # some chunk, in this run
    reason: str = ""  # why a worker last ended

    def __call__(self) -> None:
        """Work until every row has a result."""
        while True:
            for worker in range(self.pool.workers):
                idle = worker not in self.busy and self.pool.ready(worker)
                chunk = self.plan.take(worker) if idle else None
                if chunk is not None:
                    self.busy[worker] = chunk
                    self.files |= {row.number: files_of(row) for row in chunk}
                    self.pool.submit(worker, chunk)
            if not self.busy and not self.plan:
                break
            for event in self.pool.wait():
                chunk = self.busy.pop(event.worker, [])
                if isinstance(event, Died):
                    self._after_death(event, chunk)
                else:
                    self.deaths, self.finished = 0, True
                    self._write(event.results)
                    self._write_lost()
        if self.lost and not self.finished:
            raise self._hopeless()
        self._write_lost()

    def _after_death(self, event: Died, chunk: Sequence[PairRow]) -> None:
        """Have the rows of a lost worker done again; who loses several has failed."""
        self.deaths, self.reason = self.deaths + 1, event.reason
        if self.deaths >= MAX_DEATHS:
            raise self._hopeless()
        again = []
        for row in chunk:
            self.tries[row.number] += 1
            if self.tries[row.number] < MAX_TRIES:
                again.append(row)
        said = f"{MAX_TRIES} workers ended while they worked on this row; the last: {event.reason}"
        self.lost += [failed(row.number, said) for row in chunk if row not in again]
        self.plan.put_back(again)
        self.pool.restart(event.worker)

    def _hopeless(self) -> VBRegError:
        """Return the error of workers that end whatever they work on."""
        return VBRegError(
            f"{self.deaths} workers ended one after the other; the last: {self.reason}; put that "
            "right, and run the same command again to go on"
        )

    def _write_lost(self) -> None:
        self._write(self.lost)
        self.lost = []

    def _write(self, results: Sequence[Row]) -> None:
        before = len(self.journal)
        self.journal.add({**row, "files": self.files.pop(row["row"], None)} for row in results)
        self.on_rows(len(self.journal) - before)


def _compute(
    left: Sequence[PairRow],
    journal: ResultJournal,
    total: int,
    open_pool: Opener,
    workers: int | None,
    quiet: bool,
) -> int:
    """Compute what is missing; return by how many workers."""
    pool = open_pool(workers, len(left))
    try:
        with progress(quiet) as tell:

            def show(count: int) -> None:
                said = "  ".join(f"{status} {n}" for status, n in sorted(journal.counts.items()))
                tell("pairs", len(journal), total, said)

            show(0)
            chunk = max(1, min(pool.chunk, len(left) // (4 * pool.workers)))
            BatchRun(Plan(left, pool.workers, chunk), pool, journal, show)()
    finally:
        pool.close()
    return pool.workers


def _finish(output: Path, table: Sequence[Row], journal: ResultJournal) -> list[str | None]:
    """Write the output: the columns of the input, then the results, row by row.

    It returns what the files of each row were.
    """
    files: list[str | None] = []

    def finished() -> Iterator[Row]:
        for number, row in enumerate(table):
            result = journal[number]
            files.append(result.get("files"))
            yield {**row, **{name: result.get(name) for name in RESULTS}}

    write_table(output, {**column_types(table), **RESULTS}, finished())
    return files
