"""Networks on the occupied cells of a lattice of any dimension: FCGF's, and that of DGR."""

from vbreg.sparse.cells import MAX_KERNEL, Cells, Edges, Neighbours, occupied, offsets
from vbreg.sparse.convolution import SparseConvolution, TiedConvolution, convolve, tied_classes
from vbreg.sparse.unet import Channels, Levels, ResUNet, levels_of

__all__ = [
    "MAX_KERNEL",
    "Cells",
    "Channels",
    "Edges",
    "Levels",
    "Neighbours",
    "ResUNet",
    "SparseConvolution",
    "TiedConvolution",
    "convolve",
    "levels_of",
    "occupied",
    "offsets",
    "tied_classes",
]
