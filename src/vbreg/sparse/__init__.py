"""Networks on the occupied cells of a lattice of any dimension: FCGF's, and that of DGR."""

from vbreg.sparse.cells import MAX_KERNEL, Cells, Edges, Neighbours, occupied, offsets
from vbreg.sparse.convolution import SparseConvolution, TiedConvolution, convolve, tied_classes
from vbreg.sparse.unet import LEVELS, Channels, Levels, ResUNet

__all__ = [
    "LEVELS",
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
    "occupied",
    "offsets",
    "tied_classes",
]
