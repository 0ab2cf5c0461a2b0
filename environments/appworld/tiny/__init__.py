"""A small AppWorld data root, built by the installed `appworld` package from rows and scenarios of our own.

people.py      ONE table: who lives in it
rows.py        what their apps hold before any task
scenario.py    what a scenario is, and what scenarios share
scenarios/     one file each: instruction, parameters, evaluation, solution
build.py       a root of all this, laid out as APPWORLD_ROOT
prove.py       every solution succeeds, doing nothing does not

`python -m environments.appworld.tiny ROOT` builds and proves one, in AppWorld's own virtual environment; a user calls
`python -m environments.install appworld --data=tiny`. Nothing the package keeps encrypted is in these files.
"""
