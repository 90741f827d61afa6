"""One worker on one device: rows in, results out. It never ends because of a row."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

from vbreg.batch.cache import CloudCache
from vbreg.batch.rows import BatchSettings, PairRow, failed, request_options, succeeded
from vbreg.batch.tables import Row
from vbreg.constraints import Constraints
from vbreg.descriptors import descriptor_named
from vbreg.errors import VBRegError
from vbreg.inputs import check_choice
from vbreg.model import VBReg
from vbreg.pretrained import DEFAULT
from vbreg.registrar import Registrar, Request
from vbreg.scale import VOXEL_SIZES


class Worker:
    """Registers rows, and keeps the clouds that it used last."""

    def __init__(self, settings: BatchSettings, device: str) -> None:
        self.settings = settings
        self.cache = CloudCache(settings.cache_bytes)
        self.registrar = Registrar(
            VBReg.from_pretrained(settings.weights or DEFAULT, device=device),
            descriptor_named(settings.descriptor),
            settings.keypoints,
            settings.matching,
            settings.max_correspondences,
            settings.verify,
            settings.refine,
            retry=settings.retry,
            describe=self.cache.describe,
        )

    def __call__(self, rows: Sequence[PairRow]) -> list[Row]:
        """Return the result of each row."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a result says what is to be said of its row
            return self._results(rows)

    def _results(self, rows: Sequence[PairRow]) -> list[Row]:
        results: list[Row] = []
        requests: dict[int, Request] = {}
        for k, row in enumerate(rows):
            start = time.perf_counter()
            try:
                requests[k] = self._request(row)
                seconds = time.perf_counter() - start
                requests[k].clock.seconds["prepare"] = seconds
            except Exception as error:  # whatever is wrong with a file is a row, not an end
                results.append(failed(row.number, _said(error), time.perf_counter() - start))
        try:
            found = self.registrar(list(requests.values()))
        except Exception as error:  # out of memory, say: the fault of one is not that of all
            if len(requests) > 1:
                return results + [row for k in requests for row in self._results([rows[k]])]
            return results + [failed(rows[k].number, _said(error)) for k in requests]
        for k, result in zip(requests, found, strict=True):
            number = rows[k].number
            if isinstance(result, VBRegError):
                seconds = sum(requests[k].clock.seconds.values())
                results.append(failed(number, str(result), seconds))
            else:
                results.append(succeeded(number, result, self.settings.min_probability))
        return results

    def _request(self, row: PairRow) -> Request:
        """Read the clouds of a row, and what it says."""
        given = request_options(row, self.settings)
        known = ("gravity", "guess", "max_translation", "max_rotation")
        if given.get("preset") is not None:
            check_choice(given["preset"], "preset", tuple(VOXEL_SIZES))
        return Request.of(
            self.cache.cloud(row.source),
            self.cache.cloud(row.target),
            voxel_size=given.get("voxel_size"),
            preset=given.get("preset"),
            viewpoint=given.get("viewpoint"),
            constraints=Constraints.of(**{name: given.get(name) for name in known}),
        )


def open_worker(settings: BatchSettings, device: str) -> Worker:
    """Open a worker; whatever keeps it from starting is an error that tells so."""
    try:
        return Worker(settings, device)
    except VBRegError:
        raise
    except Exception as error:
        raise VBRegError(
            f"a worker on {device} could not start ({_said(error)}); put that right, and run the "
            "same command again to go on"
        ) from error


def _said(error: Exception) -> str:
    """Return what an error says; one that is no user's mistake is named."""
    text = str(error)
    return text if isinstance(error, VBRegError) else f"{type(error).__name__}: {text}"
