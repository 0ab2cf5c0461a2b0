"""An environment from a few functions. The rest has defaults: verdict, actions worth trying, wording, splits.

    from environments.tools import ToolEnvironment

    def make():
        return ToolEnvironment("todo", tools=[add, remove], open=TodoList, setups=[{"items": []}])

`tools`    Functions, or documents. A function takes the world first, and then the arguments, by name; its type hints
           are the tool's schema, and its docstring is the description. A document is {"name", "description",
           "parameters"}, with the parameters as a JSON schema; OpenAI's and MCP's forms are read too.
`open`     setup → world: a fresh world, equal for equal setups. The setup is a copy that the world may keep.
`setups`   The setups in which episodes start: JSON objects. Duplicates count once.

The world is plain JSON, or an object with

    state() → JSON                        all that counts for success, equal for equal worlds
    call(name, arguments) → text          carries out a tool that is a document; raises an exception to refuse
    over() → bool                         optional: the world itself has ended the episode
    introduction() → text                 optional: what it shows first, after the instructions
    listen(action), listened()            optional: called before and after an action's calls are made
    on_offer() → documents                optional: the tools on offer, if a world may offer only some of them
    close()                               optional: frees what the world holds

Text, or JSON, that a tool returns is its observation. None becomes "ok". An exception is a refusal: its message is the
observation, and the world must be as before. `cojax.environment.EnvironmentFailure` says that the world is broken.

Optional:

`ending`        The tool that ends an episode; its first parameter is the answer. If the world has no tool of that name,
                one is added. The default is finish(answer), or finish_episode(answer) if the world has a tool
                `finish` of its own, which then ends nothing; if it should, say ending="finish". With "", an action
                without calls ends an episode, and its text is the answer; then there may be no tools at all.
`judge`         (task, world, answer, finished) → reward in [0, 1], or an Evaluation, or None to judge by replay, as
                without a judge.
`fork`          world → an independent copy; then only actions that work are offered. Plain JSON is always copied.
`affordances`   world → (name, arguments) of calls worth trying, in place of those from schemas and values seen.
`lookups`       The names of the tools that never change the world. Without it, tools are tried on the first setups.
`trials`        Whether each tool is tried on the first setups, to find where the values of its parameters come from.
                Say False if opening a world is slow; names alone decide then.
`instructions`  Text of the system message, or setup → text.
`splits`        Split → tasks to evaluate on; or tasks, which a hash of the setup divides into dev (a fifth) and eval. A
                task is a `Task`, or {"query", "setup", "solution": [{"name", "arguments"}, …]}. Without it, a run holds
                out a part of its own initial tasks.
`phrase`        steps → query, in place of the plain wording; see `cojax.environment.Environment.phrase`.
`traits`        What a run must know of the world, see `cojax.environment.Traits`.

environment.py  the environment: setups, splits, reference ends, look-ups; one episode; the tool that ends it
toolset.py      functions and documents → tools, and their calls
commands.py     worlds that take commands as text
arguments.py    arguments worth trying, from schemas and values seen
wording.py      calls → a query
in_worker.py    worlds in a worker, which take whole actions
"""

from .environment import ToolEnvironment

__all__ = ["ToolEnvironment"]
