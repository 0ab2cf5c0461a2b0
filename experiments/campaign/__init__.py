"""The campaign: thousands of hostile episodes and a thousand faults, each with a known right outcome.

    python -m experiments.campaign --episodes=10000 --faults=1000 --seed=0

cases.py        what a case is, which kinds there are of each half, what a violation is
playing.py      one episode through the collector that training uses, and its judgement
desk.py bfcl.py appworld.py    cases of the three environments: honest, damaged, hostile
texts.py        hostile texts and arguments, as a looping or hostile policy writes them
code.py         hostile blocks of code for AppWorld
hostile.py      an environment whose actions do what hostile code would; deeds.py: that code; wild.py: its cases
drafts.py       an explorer whose model is hostile, what may not enter the pool; plots.py: what that model does
endpoint.py     a chat endpoint on loopback that misbehaves on command
faults.py       the kinds of fault
runs.py         the main command, killed and gone on with
resumption.py   a mutated run directory, judged by the code that resumes
mutations.py    what is done to a file of a run directory
losses.py       workers, fork servers and children that die or stop
disk.py         a small file system that fills up
servers.py      endpoints that fail
residue.py      what is left behind: processes, descriptors, files, memory
"""
