"""The study: tables of arms × seeds of the main command, with intervals, paired differences and figures.

tables.py      which arms, seeds and settings; which differences are asked for
launch.py      one run, pinned to a core, that ends with the study
schedule.py    runs in order, several at a time, none of which trains a warm start that another one is training
record.py      a finished run → one record, all that tables and figures need
tasks.py       a run's tasks: where they lie, how like the evaluation tasks they are, how long, about which tool
breakdown.py   held-out success and task sets by kind of task
statistics.py  means, intervals, paired differences
summary.py     records → NAME.json
markdown.py    NAME.json → NAME.md
figures.py     records → pictures; panels.py: what several of them draw alike
__main__.py    the command
"""
