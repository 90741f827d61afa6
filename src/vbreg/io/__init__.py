"""Point clouds from files and into files.

cloud = vbreg.io.read("scan.ply")
vbreg.io.write("aligned.ply", result.transform(cloud.points))
"""

from vbreg.io.atomic import atomic_path
from vbreg.io.formats import FORMATS, Format, read, write
from vbreg.io.pickles import read_pickle

__all__ = ["FORMATS", "Format", "atomic_path", "read", "read_pickle", "write"]
