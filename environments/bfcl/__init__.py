"""BFCL multi-turn: the official tasks, APIs and checker of the installed `bfcl-eval` wheel (Apache-2.0).

calls.py        calls in and out: literal-only Python calls, limits on arguments, results as text
official.py     what the wheel holds: tasks, documentation, APIs, checker; the only importer of it
apis.py         the instances of one episode, and calls run on them
state.py        what an API instance holds, as JSON
episode.py      one dialogue: user turns, calls, force-quit, verdict
scene.py        what an episode makes known, and where values for arguments come from
arguments.py    ONE table of arguments worth trying
offers.py       which calls would work now
wordings.py     ONE table of wordings: what was done → the user's turns
inside.py       the environment, as it runs inside the wheel's own virtual environment
"""
