"""Reports: a run, several runs or an evaluation as an offline HTML page, and the lineage of a run's tasks.

Every part of a run directory is optional, so that an interrupted run has a report too.
"""
