"""See a registration: the page that `vbreg view` serves, and the report, one file with that page.

Both show a `ShownPair` with the same script, which is made from `viewer/` at the top of the
repository (`make viewer`) and checked in under `static/`.
"""

from vbreg.viewer.report import write_report
from vbreg.viewer.scene import ShownPair, votes_of
from vbreg.viewer.server import ServerLimits, ViewServer
from vbreg.viewer.session import Session

__all__ = ["ServerLimits", "Session", "ShownPair", "ViewServer", "votes_of", "write_report"]
