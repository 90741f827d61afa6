"""Choice by the clouds: of several poses that matches allow, which lays one cloud onto the other?

The way of the data: `evidence` lays the clouds upon each other under every candidate and tells
what lands on what, `network` judges it, `judge` puts both to work for `register`.
"""

from vbreg.verification.judge import (
    CANDIDATES,
    Judge,
    Question,
    Verdict,
    give_verdict,
    load_judge,
    refined_within,
    shipped_judge,
)

__all__ = [
    "CANDIDATES",
    "Judge",
    "Question",
    "Verdict",
    "give_verdict",
    "load_judge",
    "refined_within",
    "shipped_judge",
]
