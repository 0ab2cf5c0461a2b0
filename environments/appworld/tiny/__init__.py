"""A small AppWorld data root, built by the installed `appworld` package from rows and scenarios of our own.

scenario.py    who lives in it, in ONE table; what a scenario is, and what scenarios share
rows.py        what their apps hold before any task
train.py       the scenarios of the split train: parameters, evaluation, instruction, solution
held_out.py    those of dev, test_normal and test_challenge
build.py       a root of all this, laid out as APPWORLD_ROOT
prove.py       every solution succeeds, doing nothing does not

`python -m environments.appworld.tiny ROOT` builds and proves one, in AppWorld's own virtual environment; a user calls
`python -m environments.install appworld --data=tiny`. Nothing the package keeps encrypted is in these files.
"""
