"""Many scans of one place, in no order, to poses in one frame.

The way of the data: `retrieval` tells which scans may overlap, `pairs` registers these, `graph`
finds poses that agree with most pairs, `joining` decides what may be put into one frame, `overlaps`
tells what scans share and lays them onto each other, `search` puts these to work, `reconstruction`
is the recipe, `report` the page about it.
"""

from vbreg.scenes.graph import GraphSolution, PoseEdges, solve_graph
from vbreg.scenes.pairs import PairResult, PairStore, register_pairs
from vbreg.scenes.reconstruction import reconstruct, scan_files
from vbreg.scenes.results import Reconstruction, SceneEdge
from vbreg.scenes.retrieval import similarities

__all__ = [
    "GraphSolution",
    "PairResult",
    "PairStore",
    "PoseEdges",
    "Reconstruction",
    "SceneEdge",
    "reconstruct",
    "register_pairs",
    "scan_files",
    "similarities",
    "solve_graph",
]
