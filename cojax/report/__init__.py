"""A run directory as one offline HTML page, and the lineage of its tasks. Works on whatever the directory holds."""

from cojax.report.lineage import Ancestor, Lineages, Story, Visit, lineage
from cojax.report.page import write_report
from cojax.report.run import Run, read_run

__all__ = ["Ancestor", "Lineages", "Run", "Story", "Visit", "lineage", "read_run", "write_report"]
