"""The study: it runs the main command for each arm and seed, and makes tables, paired differences and figures.

arms.toml      the arms and their settings
tables.toml    the arms, seeds and differences of each table
tables.py      reads both files; defines a run and its configuration
credits.py     evolve=credited: signals weighted by what earlier signals led to
frontier.py    evolve=frontier: joins mastered tasks; prefix_replay.py: how many actions of a joined task are replayed
pools.py       rules by which others choose tasks: the least seen tools, tasks once mastered, pools of difficulty
careless.py    explorer=careless: an explorer that confuses names
even.py        initial_explorer of arms whose D_0 has all tools alike
reflexion.py   evaluation.trials: tries failed tasks again, with notes
former.py      the former rule of selection, for one arm
launch.py      starts one run, pinned to a core, that ends with the study
schedule.py    starts runs in order, several at a time; no two of them train the same warm start at once
record.py      a finished run → its record, which holds all that tables and figures need
comparison.py  how a record differs from a configuration, and from another record
stored.py      records in OUT/runs or OUT/pretrained, one compressed file for each arm; the schema of a record
summary.py     records → NAME.json: means, intervals, paired differences, success by kind of task; → NAME.md, by
               page.md.jinja
statistics.py  means over seeds, paired differences, their intervals
figures.py     records → pictures
__main__.py    the command
"""
