"""Tells which pieces of a mesh are the same but for their pose."""

from collections import Counter

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from vbreg.simulator.meshes import Mesh


def pieces(mesh: Mesh) -> Counter[tuple[float, ...]]:
    """How often each connected piece occurs, up to its pose: one key per rigid shape.

    Only what is wider than a hand in two directions counts.
    """
    ends = np.concatenate([mesh.faces[:, :2], mesh.faces[:, 1:]])
    graph = coo_matrix((np.ones(len(ends)), ends.T), shape=[len(mesh.vertices)] * 2)
    count, label = connected_components(graph, directed=False)
    size = np.bincount(label, minlength=count)
    used = np.isin(np.arange(count), label[mesh.faces[:, 0]])
    mean = np.stack([np.bincount(label, v, count) / size for v in mesh.vertices.T], axis=-1)
    offset = mesh.vertices - mean[label]
    square = (offset[:, :, None] * offset[:, None]).reshape(-1, 9)
    scatter = np.stack([np.bincount(label, s, count) / size for s in square.T], axis=-1)
    spread = np.sqrt(np.linalg.eigvalsh(scatter.reshape(-1, 3, 3)).clip(0))
    keep = used & (spread[:, 1] > 0.08)
    return Counter(map(tuple, np.c_[size, spread.round(6)][keep].tolist()))
