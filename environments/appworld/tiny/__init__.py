"""A small AppWorld data root, built by the installed `appworld` package from rows and scenarios of our own.

rows.json      who lives in it, and what rows are made of
rows.py        what their apps hold before any task
scenarios.md   the scenarios: instruction, solution, evaluation
scenarios.py   what the tasks of each scenario are
build.py       a root of all this, laid out as APPWORLD_ROOT
prove.py       every solution succeeds, doing nothing does not

`python -m environments.appworld.tiny ROOT` builds and proves one, in AppWorld's own virtual environment; a user calls
`python -m environments.install appworld --data=tiny`. Nothing the package keeps encrypted is in these files.
"""
