"""`cojax audit`: can a world's reward be gamed? Attackers play its tasks, and rules say what of it is a finding.

    python -m environments.audit NAME [--tasks=N] [--json]

player.py       plays attempts through `cojax.environment.play`, within deadlines; states as comparable leaves
scene.py        what an attacker knows of a task: its tools, calls that work, how an episode ends, the honest solution
attackers.py    ONE table of attackers: what each does, when that is a finding, how severe it is
cheap.py        attackers that do no work: null, greeting, random, shotgun, echo, inject
variations.py   attackers that change the honest solution: drop, swap, stop, extra, double, order
breaking.py     the attacker that sends values which a world may choke on
repetition.py   leaks between episodes; plays in other processes, with another clock, place and hash seed
child.py        such a process
findings.py     findings, what is accepted, and the exit status
examination.py  plays every attacker on every task and judges what happened
page.py, page.html   the page that `--html` writes
__main__.py     the command

Validation calls `examination.choose_for_drafts`, where attackers are named: there is one implementation.
"""
