"""The study: tables of arms × seeds of the main command, with intervals, paired differences and figures.

arms.py        the arms and their settings
grounds.py     arms and tables of the study of signals
table.py       what an arm and a table are
tables.py      which arms and seeds; which differences are asked for
former.py      the former rule of selection, for one arm
runs.py        a run and its configuration
launch.py      starts one run, pinned to a core, that ends with the study
schedule.py    runs in order, several at a time; two of them never train the same warm start at once
record.py      a finished run → its record, which holds all that tables and figures need
machines.py    what of a machine decides a run's bits
comparison.py  how a record differs from a configuration, and from another record
shape.py       refuses a record that lacks a part, or has one of another type
stored.py      records in OUT/runs, one compressed file an arm
tasks.py       a run's tasks as numbers: position in a plane, similarity to evaluation tasks, length, tool
failures.py    what the agents of preference methods failed at, and which pairs they learned from
origins.py     what the tasks of each origin were worth
breakdown.py   held-out success and task sets by kind of task
statistics.py  means, intervals, paired differences
summary.py     records → NAME.json
markdown.py    NAME.json → NAME.md
cells.py       figures as text
figures.py     records → pictures
panels.py      parts of several pictures
composition.py a command: are long tasks failed for their skills, or for composing them?
rounding.py    a command: how much of a result is rounding?
command.py     what the commands share
__main__.py    the command
"""
