"""The study: tables of arms × seeds of the main command, with intervals, paired differences and figures.

arms.toml      the arms and their settings
tables.toml    which arms and seeds; which differences are asked for
tables.py      reads both; a run and its configuration
credits.py     evolve=credited: signals weighted by what earlier ones led to
frontier.py    evolve=frontier: mastered tasks joined; prefix_replay.py: how many actions of a joined task are replayed
careless.py    explorer=careless: an explorer that confuses names
reflexion.py   evaluation.trials: failed tasks tried again, with notes
former.py      the former rule of selection, for one arm
launch.py      starts one run, pinned to a core, that ends with the study
schedule.py    runs in order, several at a time; two of them never train the same warm start at once
record.py      a finished run → its record, which holds all that tables and figures need
comparison.py  how a record differs from a configuration, and from another record
stored.py      records in OUT/runs, one compressed file an arm; what a record has to look like
summary.py     records → NAME.json: means, intervals, paired differences, success by kind of task; → NAME.md, by
               page.md.jinja
figures.py     records → pictures
__main__.py    the command
"""
