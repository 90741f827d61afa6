"""Many scans of one place, in no order, to poses in one frame.

The way of the data: `retrieval` tells which scans may overlap, `pairs` registers these, `graph`
finds poses that agree with most pairs and drops the others, `reconstruction` is the recipe.
"""
