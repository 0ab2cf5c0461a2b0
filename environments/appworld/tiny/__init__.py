"""A small AppWorld data root, built by the installed `appworld` package from rows and scenarios of our own.

rows.json      its people, and the parts of rows
rows.py        the rows that the apps hold before any task
scenarios.md   the scenarios: instruction, solution, evaluation
scenarios.py   the tasks of each scenario
build.py       builds a root from these, laid out as APPWORLD_ROOT
prove.py       proves that every solution succeeds, and that doing nothing does not

`python -m environments.appworld.tiny ROOT` builds and proves one, in AppWorld's own virtual environment; a user calls
`python -m environments.install appworld --data=tiny`. Nothing the package keeps encrypted is in these files.
"""
