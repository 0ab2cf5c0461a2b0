"""cojax as functions: each runs the command of its name in a child process, or reads what one wrote.

process.py    the child process: started, stopped, its failure as an exception
child.py      its program
training.py   train, steps, evaluate, open_run; configurations and settings as flags
"""
