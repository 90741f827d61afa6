"""Many pairs from a table, on all cores or GPUs of a machine, or on a cluster.

One row in, one row out, in the same order. A run that was killed goes on where it stopped.
"""

from vbreg.batch.rows import BatchSettings
from vbreg.batch.run import BatchSummary, register_table

__all__ = ["BatchSettings", "BatchSummary", "register_table"]
