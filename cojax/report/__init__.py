"""Reports: a run, several runs or an evaluation as an offline HTML page, and the lineage of a run's tasks.

Every part of a run directory is optional, so that an interrupted run has a report too.
"""

from cojax.report.comparison import write_comparison
from cojax.report.exchanges import about, places_of, read_exchanges
from cojax.report.lineage import TaskHistory, TaskVisit, lineage
from cojax.report.live import serve
from cojax.report.page import write_evaluation_report, write_report
from cojax.report.run import Run, read_run

__all__ = [
    "Run", "TaskHistory", "TaskVisit", "about", "lineage", "places_of", "read_exchanges", "read_run",
    "serve", "write_comparison", "write_evaluation_report", "write_report",
]  # fmt: skip
