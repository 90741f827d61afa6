"""Pairs of scans to relative poses, kept on disk, so that a run that was ended goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vbreg.backends.devices import chunk_size
from vbreg.constraints import Constraints
from vbreg.errors import VBRegError
from vbreg.io.tables import Table
from vbreg.matching import MAX_CORRESPONDENCES, DescribedCloud, MatchedClouds, match_clouds
from vbreg.model import GIVEN_TOGETHER, GIVEN_TOGETHER_CPU, VBReg
from vbreg.scale import Scale
from vbreg.types import Alternative, Float64, Registration


def scan_key(name: str, *content: Tensor) -> str:
    """Return what tells a scan from another: its name and a checksum of its content."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part.cpu().numpy().tobytes())
    return f"{name} {digest.hexdigest()[:12]}"


@dataclass(frozen=True, eq=False)
class PairResult:
    """The pose between two scans, as far as a scene needs it."""

    source: int  # number of the scan
    target: int
    T_target_source: Float64  # (4, 4)
    covariance: Float64  # (6, 6) as `Registration` has it
    probability: float  # of being right
    overlap: float
    determined: bool
    alternatives: tuple[Alternative, ...] = ()
    guided: bool = False  # by a guess: its probability is that of a pose near the guess
    failure: str | None = None  # why there is no pose

    @staticmethod
    def of(source: int, target: int, found: Registration, guided: bool = False) -> PairResult:
        """Return what is kept of a registration."""
        covariance = found.covariance
        return PairResult(
            source,
            target,
            found.T_target_source,
            np.eye(6) if covariance is None else covariance,
            found.success_probability or 0.0,
            found.overlap or 0.0,
            found.determined,
            found.alternatives,
            guided,
        )

    @staticmethod
    def failed(
        source: int, target: int, guided: bool = False, failure: str | None = None
    ) -> PairResult:
        """Return a pair that no pose was found for."""
        nothing = PairResult(source, target, np.eye(4), np.eye(6), 0.0, 0.0, False)
        return replace(nothing, guided=guided, failure=failure)

    def as_row(self, key: str) -> dict[str, Any]:
        """Return the result as JSON's types; scans are known by the key."""
        return {
            "pair": key,
            "T_target_source": self.T_target_source.tolist(),
            "covariance": self.covariance.tolist(),
            "probability": self.probability,
            "overlap": self.overlap,
            "determined": self.determined,
            "alternatives": [
                {"T_target_source": a.T_target_source.tolist(), "probability": a.probability}
                for a in self.alternatives
            ],
            "guided": self.guided,
            "failure": self.failure,
        }

    @staticmethod
    def of_row(source: int, target: int, row: Mapping[str, Any]) -> PairResult:
        """Return a result that `as_row` wrote."""
        return PairResult(
            source,
            target,
            np.array(row["T_target_source"], dtype=np.float64),
            np.array(row["covariance"], dtype=np.float64),
            float(row["probability"]),
            float(row["overlap"]),
            bool(row["determined"]),
            tuple(
                Alternative(np.array(a["T_target_source"], dtype=np.float64), a["probability"])
                for a in row["alternatives"]
            ),
            bool(row["guided"]),
            row["failure"],
        )


@dataclass(frozen=True, eq=False)
class Guess:
    """About where a pair should lie, and how far off that may be."""

    T_target_source: Float64  # (4, 4)
    max_translation: float
    max_rotation: float  # degrees

    def constraints(self) -> Constraints:
        """Return what the search is told."""
        found = Constraints.of(None, self.T_target_source, self.max_translation, self.max_rotation)
        assert found is not None
        return found


def register_pairs(
    scans: Sequence[DescribedCloud],
    pairs: Sequence[tuple[int, int]],  # source, target
    scale: Scale,
    model: VBReg,
    guesses: Mapping[tuple[int, int], Guess] | None = None,
) -> Iterator[PairResult]:
    """Yield the pose of each pair of described scans, in the order of the pairs.

    Some pairs are matched and solved together, as the device likes; one that fails does so alone.
    """
    size = chunk_size(model.device, cpu=GIVEN_TOGETHER_CPU, gpu=GIVEN_TOGETHER)
    for first in range(0, len(pairs), size):
        yield from _registered(scans, pairs[first : first + size], scale, model, guesses or {})


def _registered(
    scans: Sequence[DescribedCloud],
    pairs: Sequence[tuple[int, int]],
    scale: Scale,
    model: VBReg,
    guesses: Mapping[tuple[int, int], Guess],
) -> list[PairResult]:
    """Return the poses of pairs that are solved together."""
    matched: dict[tuple[int, int], MatchedClouds] = {}
    found: dict[tuple[int, int], Registration | VBRegError] = {}
    for source, target in pairs:
        try:
            ends = scans[source], scans[target]
            matched[source, target] = match_clouds(*ends, scale, max_matches=None)
        except VBRegError as error:  # too few matches
            found[source, target] = error
    limits = [guesses[pair].constraints() if pair in guesses else None for pair in matched]
    solved = model.solve_each(
        list(matched.values()), constraints=limits, max_correspondences=MAX_CORRESPONDENCES
    )
    found |= zip(matched, solved, strict=True)  # an error where no matches are within the limits
    return [_result(pair, found[pair], pair in guesses) for pair in pairs]


def _result(pair: tuple[int, int], found: Registration | VBRegError, guided: bool) -> PairResult:
    if isinstance(found, VBRegError):
        return PairResult.failed(*pair, guided, str(found))
    return PairResult.of(*pair, found, guided)


class PairStore:
    """Results of pairs, in memory and in a folder if one is given.

    A pair is known by what its scans are (name and content) and by the settings, so that
    a changed scan or setting is computed anew and scans may be added.
    """

    def __init__(
        self, folder: Path | None, settings: Mapping[str, Any], scan_keys: Sequence[str]
    ) -> None:
        self.scan_keys = scan_keys
        self._table: Table | None = None
        self._held: dict[str, dict[str, Any]] = {}
        if folder is not None:
            text = json.dumps(dict(settings), sort_keys=True)
            name = hashlib.sha256(text.encode()).hexdigest()[:12]
            self._table = Table(folder / f"pairs-{name}.jsonl", settings)
            self._held = dict(self._table.rows)

    def key(self, source: int, target: int, guess: Guess | None = None) -> str:
        """Return the name of a pair in the store."""
        name = f"{self.scan_keys[source]} > {self.scan_keys[target]}"
        if guess is None:
            return name
        # A guess is the same if it is the same to a thousandth: graphs are solved anew.
        rounded = np.round(guess.T_target_source, 3) + 0.0
        said = json.dumps([rounded.tolist(), guess.max_translation, guess.max_rotation])
        return f"{name} near {hashlib.sha256(said.encode()).hexdigest()[:12]}"

    def get(self, source: int, target: int, guess: Guess | None = None) -> PairResult | None:
        """Return what is known of a pair; None where it has not been tried."""
        row = self._held.get(self.key(source, target, guess))
        return None if row is None else PairResult.of_row(source, target, row)

    def add(self, result: PairResult, guess: Guess | None = None) -> None:
        """Keep a result."""
        row = result.as_row(self.key(result.source, result.target, guess))
        self._held[row["pair"]] = row
        if self._table is not None:
            self._table.add(row)
