"""Reports: a run or an evaluation as an offline HTML page, and the lineage of a run's tasks.

Every part of a run directory is optional, so that an interrupted run has a report too.
"""

from cojax.report.evaluation import write_evaluation_report
from cojax.report.exchanges import Exchange, Exchanges, about
from cojax.report.lineage import Ancestor, Lineages, TaskHistory, TaskVisit, lineage
from cojax.report.page import write_report
from cojax.report.run import Run, read_run

__all__ = [
    "Ancestor", "Exchange", "Exchanges", "Lineages", "Run", "TaskHistory", "TaskVisit", "about", "lineage", "read_run",
    "write_evaluation_report", "write_report",
]  # fmt: skip
