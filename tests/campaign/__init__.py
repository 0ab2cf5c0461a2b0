"""The campaign: thousands of hostile episodes and a thousand faults, each with a known right outcome.

    python -m experiments.campaign --episodes=10000 --faults=1000 --seed=0

cases.py                 the types: a case, a violation, the kinds of each half and their shares
playing.py               plays a case through the collector that training uses, and judges it
episodes.py              the half that plays episodes
desk.py bfcl.py appworld.py    cases of the three environments: honest, damaged, hostile
tools.py                 cases of a world of Python functions that calls leave without a state
mcp.py                   cases of an MCP server whose state is read by calls
mcp_server.py            that server
texts.py                 hostile texts and arguments, as a looping or hostile policy writes them
code.py                  hostile blocks of code for AppWorld
hostile_environment.py   an environment whose actions are hostile code
hostile_actions.py       that code
hostile_cases.py         cases of that environment
drafts.py                cases of an explorer whose model is hostile
hostile_replies.py       the behaviours of that model
endpoint.py              a chat endpoint on loopback that misbehaves on command
faults.py                the half that injects faults
runs.py                  the main command, killed and resumed
resumption.py            a mutated run directory, judged by the code that resumes
mutations.py             the mutations of a file of a run directory
foreign.py               a run directory from somebody else, read by each command
foreign_attacks.py       that directory, and what is planted in it
losses.py                workers, fork servers and children that die or stop
disk.py                  a small file system that fills up
servers.py               endpoints that fail
leaks.py                 finds leaks: processes, descriptors, files, memory
"""
