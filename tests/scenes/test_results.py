"""What a result says in words: what speaks against an edge, and how much was tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.scenes.test_graph import planted
from vbreg import PointCloud
from vbreg.scenes import Reconstruction, SceneEdge
from vbreg.scenes.joining import triangle_support
from vbreg.scenes.outputs import scene_as_json
from vbreg.scenes.report import scene_report_html

EDGE = SceneEdge(0, 1, np.eye(4), np.eye(6), 0.9, True, 0.5, 0.1, None, 4, 3, False, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"triangles": 0, "triangles_fit": 0}, ""),
        ({"triangles_fit": 2}, ""),
        ({"triangles_fit": 1}, "only 1 of 4 triangles with it close"),
        ({"bridge": True, "triangles": 0, "triangles_fit": 0}, "no loop confirms it"),
        (
            {"kept": False, "error": 7.04},
            "dropped: it contradicts the solved poses (7.0 standard deviations)",
        ),
        (
            {"kept": False, "error": 1.2, "distance": 0.314, "allowed": 0.2},
            "dropped: it moves points by up to 0.314 from where the solved poses have them, "
            "0.2 is allowed (unit of the scans)",
        ),
        (
            {"kept": False, "error": np.inf},
            "dropped: it would join scans that nothing else joins",
        ),
        (
            {"kept": False, "error": np.inf, "cut": True},
            "dropped: further pairs across it were tried and do not fit",
        ),
        (
            {"kept": False, "error": 7.04, "probability": 0.3},
            "improbable, not used: it contradicts the solved poses (7.0 standard deviations)",
        ),
    ],
)
def test_a_doubt_says_what_speaks_against_an_edge(changes: dict[str, Any], words: str) -> None:
    assert replace(EDGE, **changes).doubt == words


def test_a_wrong_edge_that_was_kept_is_told_by_its_triangles() -> None:
    T, edges, right = planted(8, 22, wrong=0.1, seed=3)
    closed, fit = triangle_support(edges, np.ones(len(edges), dtype=bool), len(T))
    doubts = [
        replace(EDGE, triangles=int(c), triangles_fit=int(f)).doubt
        for c, f in zip(closed, fit, strict=True)
    ]
    wrong = np.flatnonzero(~right)
    assert len(wrong) == 2
    for e in wrong.tolist():
        assert doubts[e] == f"only 0 of {closed[e]} triangles with it close"
    assert sum(doubt == "" for doubt in doubts) == right.sum()


def scene(edges: tuple[SceneEdge, ...], registrations: int = 3) -> Reconstruction:
    """Five scans, each alone."""
    names, T = tuple("abcde"), np.tile(np.eye(4), (5, 1, 1))
    alone, tried = np.arange(5), ((0, 1), (0, 2), (3, 4))
    none = np.zeros((5, 5))
    return Reconstruction(names, T, alone, edges, none, (), tried, registrations, 0.1, False)


@pytest.mark.parametrize(
    ("component", "words"),
    [
        ([0, 0, 0, 0, 0], "1: 5 scans"),
        ([0, 0, 0, 1, 0], "2: 4 and 1 scans"),
        ([0, 1, 0, 1, 2], "3: 2, 2 and 1 scans"),
        ([0, 1, 2, 3, 4], "5: 1 scan each"),
        ([*range(11), 0], "11: 2, 1, 1, 1, 1, 1, 1, 1, 1, 1 scans and 1 more component"),
        ([*range(12), 0], "12: 2, 1, 1, 1, 1, 1, 1, 1, 1, 1 scans and 2 more components"),
    ],
)
def test_components_are_told_with_their_sizes(component: list[int], words: str) -> None:
    assert replace(scene(()), component=np.array(component)).components_in_words == words


def test_the_dropped_edges_are_counted_as_they_are_listed() -> None:
    """An improbable pose that nobody used is none of them, in words, in JSON and on the page."""
    dropped = replace(EDGE, kept=False, error=7.0)
    found = scene((EDGE, dropped, replace(dropped, probability=0.3)))
    assert found.edges_in_words == "1 kept, 1 dropped, 1 improbable and not used"
    assert scene((EDGE, dropped)).edges_in_words == "1 kept, 1 dropped"
    assert [edge["dropped"] for edge in scene_as_json(found)["edges"]] == [False, True, False]
    page = scene_report_html(found, [PointCloud(np.eye(3))] * 5)
    assert f"Edges: {found.edges_in_words}.".encode() in page


@pytest.mark.parametrize(
    ("registrations", "words"),
    [(3, "3 of 10 registered (30 %)"), (5, "3 of 10 registered (30 %), 2 of them again")],
)
def test_pairs_are_told_from_those_tried_again(registrations: int, words: str) -> None:
    found = scene((), registrations)
    assert found.pairs_in_words == words
    assert "3 pairs tried" in repr(found)
