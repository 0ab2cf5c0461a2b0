"""AppWorld's environment and episodes: one worker runs the code, another replays its calls and reaches the verdict.

The process that ran the code is not trusted. The calls that it reports are replayed in a process where no model's code
ever ran, and judged there by their effects. So it can claim only calls that honest code could have made.
"""

import contextlib
import math
import random
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.environment import Episode, EpisodeFailure, LimitExceeded, read_counted_seconds
from cojax.types import Action, Call, Check, Evaluation, Message, Observation, Task, content_hash
from ..worker import IsolatedEnvironment
from . import data as roots
from . import report, skills
from .world import MAX_CALLS

NAME = "appworld"
# Split → the benchmark's split. `seed` has the scenarios of train, without question or answer.
SPLITS: Mapping[str, str] = {
    "seed": "train",
    **dict(zip(roots.SPLITS, roots.SPLITS, strict=True)),
    "eval": "test_normal",
    "challenge": "test_challenge",
}

# The judge replays this many calls in one step, which has one deadline.
_CALLS_PER_BATCH = 100
# The most reference effects of synthesized tasks that stay in memory.
_MAX_REFERENCE_EFFECTS = 4_096

_PROMPT_TEXT = Path(__file__).with_name("prompt.txt").read_text(encoding="utf-8").removesuffix("\n")
NO_CODE_REPLY = (
    "There is no code block in your message, so nothing was run. Write one, and in it the next step:\n"
    "```python\n# your code\n```\n"
    "If the task is done, call apis.supervisor.complete_task() in it."
)
COMPLETED_REPLY = "The task was completed; nothing was run."

_CODE_BLOCK_PATTERN = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
# The most characters of code in one block.
_MAX_CODE = 50_000
# The most characters at a message's end that are searched for code.
_MAX_SEARCHED_CHARACTERS = 200_000


class AppWorld:
    """The environment. The worker `play` runs code and the worker `judge` replays calls, on the data root `data`.

    With `solutions`, tasks have the benchmark's own solutions, which only a check of the environment may see. With
    `skills`, a policy may call the skills as tools. The judge replays calls for at most `verdict` seconds.
    """

    name = NAME
    runs_policy_code = True
    # The tools are the scripted explorer's skills, each named after its API. A policy sees none of them.
    tools = staticmethod(skills.documentation)
    phrase = staticmethod(skills.phrase)
    popularity, neighbours = staticmethod(skills.popularity), staticmethod(skills.neighbours)

    def __init__(
        self,
        play: IsolatedEnvironment,
        judge: IsolatedEnvironment,
        data: str,
        *,
        solutions: bool = False,
        skills: bool = False,
        verdict_timeout_s: float = 120.0,
    ) -> None:
        self.verdict = verdict_timeout_s
        self.play, self.judge, self.data, self.solutions, self.skills = play, judge, data, solutions, skills
        self.layers = play.layers
        self._effects_by_key: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._locks_by_key: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """The first `count` tasks of a split, or all if it has fewer; `seed` orders only the split `seed`.

        Raises ValueError for an unknown split.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} not found; available: {', '.join(SPLITS)}")
        if split == "seed":
            scenario_tasks = [Task(NAME, "", {"scenario": id}) for id in roots.read_task_ids(self.data, "train")]
            random.Random(repr(("places", seed))).shuffle(scenario_tasks)
            return tuple(scenario_tasks[:count])
        return tuple(self._make_task(id) for id in roots.read_task_ids(self.data, SPLITS[split])[:count])

    def start(self, task: Task) -> "AppWorldEpisode":
        return AppWorldEpisode(self, task)

    def _make_task(self, task_id: str) -> Task:
        blocks = roots.read_solution(self.data, task_id) if self.solutions else ()
        solution = tuple(Action(f"```python\n{block}\n```") for block in blocks)
        return Task(NAME, roots.read_specs(self.data, task_id)["instruction"], {"task": task_id}, solution)

    def close(self) -> None:
        """Ends every process behind this environment."""
        self.play.close()
        self.judge.close()

    def find_reference_effects(self, task: Task) -> Mapping[str, Any]:
        """The effects of a synthesized task's solution, found by replaying its calls in the judge.

        They stay in memory if each step was ok. Raises EnvironmentFailure if they cannot be determined.
        """
        # The key holds each action's code, as a call before the action's own calls.
        parts_as_calls = [call for action in task.solution for call in (Call(action.text), *action.calls)]
        cache_key = f"{task.id} {content_hash([[call.name, dict(call.arguments)] for call in parts_as_calls])}"
        with self._lock:
            lock = self._locks_by_key.setdefault(cache_key, threading.Lock())
        with lock:
            if cache_key in self._effects_by_key:
                return self._effects_by_key[cache_key]
            is_sound = False
            try:
                effects, is_sound = self._play_solution(task)
            finally:
                with self._lock:
                    if is_sound:
                        self._effects_by_key[cache_key] = effects
                    else:
                        self._locks_by_key.pop(cache_key, None)
                    while len(self._effects_by_key) > _MAX_REFERENCE_EFFECTS:
                        self._locks_by_key.pop(self._effects_by_key.popitem(last=False)[0], None)
            return effects

    def _play_solution(self, task: Task) -> tuple[Mapping[str, Any], bool]:
        """The solution's effects, and whether every step was ok: a step that failed once may succeed next time."""
        with contextlib.closing(AppWorldEpisode(self, task)) as episode:
            episode.reset()
            successes = [episode.step(action).ok for action in task.solution]
            return episode.state(), all(successes)


class AppWorldEpisode:
    """One run of one task: a world to act in and, once its state is needed, a second world to judge in.

    The task's setup is {"task": id} for a task of the benchmark, and {"scenario": id} for a new task in its world.
    """

    def __init__(self, environment: AppWorld, task: Task) -> None:
        """Raises ValueError for another setup."""
        if len(task.setup) != 1 or not task.setup.keys() <= {"task", "scenario"}:
            raise ValueError(f'setup is {dict(task.setup)!r:.200}; expected {{"task": id}} or {{"scenario": id}}')
        self.environment, self.task = environment, task
        self.world = Task(NAME, task.query, {"task": str(*task.setup.values())})
        self.playing: Episode = environment.play.start(self.world)
        self.judging: Episode | None = None
        self.calls: list[Call] = []
        self.judged = 0
        self.differing: list[str] = []
        self.bytes = 0
        self.over = False
        self.done = False

    def reset(self) -> tuple[Message, ...]:
        self.playing.reset()
        specs = roots.read_specs(self.environment.data, self.world.setup["task"])
        return (Message("user", write_opening(self.task.query, specs)),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The skills if they are on, else none: the benchmark intends a policy to find APIs through `apis.api_docs`."""
        return self.environment.tools() if self.environment.skills else ()

    def step(self, action: Action) -> Observation:
        """Runs the action's code block or, if the action has no text, the code of the skills that it calls.

        The episode is done after a call of `complete_task`.
        """
        if self.done:
            return Observation((Message("user", COMPLETED_REPLY),), ok=False, done=True)
        code, complaint = find_code(action, self.environment.skills)
        if complaint:
            return Observation((Message("user", complaint),), ok=False)
        observation = self.playing.step(Action(code))
        # Raises LimitExceeded for a dishonest reply.
        output, calls, report_bytes = report.read_report(observation)
        self.bytes += report_bytes
        self.over = self.over or len(self.calls) + len(calls) > MAX_CALLS or self.bytes > report.REPORT_BYTES
        if not self.over:
            self.calls += calls
        self.done = observation.done
        return Observation((Message("user", output),), ok=observation.ok, done=self.done)

    def state(self) -> Mapping[str, Any]:
        """The changes that the calls so far made in the databases, and the task's answer and status; see judge.py."""
        return self._replay_calls().state()

    def affordances(self) -> tuple[Action, ...]:
        """Skills that would work now in this world. The last one completes the task."""
        return () if self.done else self.playing.affordances()

    def evaluate(self) -> Evaluation:
        """Runs the benchmark's tests or, for a synthesized task, compares the changes with those of its solution.

        The reward is 1.0 if all checks pass, else 0.0. A task without a solution gets 0.0 and no checks. If a replayed
        call was answered differently, a failed check says so, and does not change the reward.
        """
        if "scenario" in self.task.setup and not self.task.solution:
            return Evaluation(0.0)
        if self.over:
            return Evaluation(0.0, (Check(f"at most {MAX_CALLS:,} calls of {report.REPORT_BYTES:,} bytes", False),))
        # The machinery causes a failure here; the calls may cause one below.
        reference_effects = (
            self.environment.find_reference_effects(self.task) if "scenario" in self.task.setup else None
        )
        deadline = read_counted_seconds() + self.environment.verdict
        for _ in range(2):
            self._open_judge_world()
            try:
                return self._compute_verdict(reference_effects, deadline)
            except (EpisodeFailure, LimitExceeded):
                # The judge's process failed. Only a second failure is blamed on the calls.
                self._close_judge_world()
        return Evaluation(0.0, (Check("what the calls did could be found out in time", False),))

    def _compute_verdict(self, reference_effects: Mapping[str, Any] | None, deadline: float) -> Evaluation:
        judge_episode = self._replay_calls(deadline)
        evaluation = (
            judge_episode.evaluate()
            if reference_effects is None
            else report.compare_effects(reference_effects, judge_episode.state())
        )
        if self.differing:
            call_names = ", ".join(dict.fromkeys(self.differing))
            checks = (*evaluation.checks, Check(f"answered alike again: {call_names[:200]}", False))
            return Evaluation(evaluation.reward, checks, evaluation.partial)
        return evaluation

    def close(self) -> None:
        self.playing.close()
        if self.judging is not None:
            self.judging.close()

    def _replay_calls(self, deadline: float = math.inf) -> Episode:
        """Replays the calls that were not replayed yet; returns the judge's world.

        Raises LimitExceeded if calls remain when `read_counted_seconds()` passes `deadline`.
        """
        judge_episode = self._open_judge_world()
        while self.judged < len(self.calls):
            if read_counted_seconds() > deadline:
                raise LimitExceeded(f"{len(self.calls) - self.judged} calls were not made again in time")
            batch = self.calls[self.judged : self.judged + _CALLS_PER_BATCH]
            self.judged += len(batch)
            observation = judge_episode.step(Action(calls=tuple(batch)))
            self.differing += [message.content for message in observation.messages]
        return judge_episode

    def _open_judge_world(self) -> Episode:
        """The judge's world, opened at first use."""
        if self.judging is None:
            self.judging = self.environment.judge.start(self.world)
            try:
                self.judging.reset()
            except BaseException:
                self._close_judge_world()
                raise
        return self.judging

    def _close_judge_world(self) -> None:
        """Closes the judge's world, so that the next verdict begins with a new one."""
        if self.judging is not None:
            self.judging.close()
        self.judging, self.judged, self.differing = None, 0, []


def write_opening(query: str, specs: Mapping[str, Any]) -> str:
    """Returns the message that opens an episode; `specs` hold the supervisor, and the date and time."""
    return _PROMPT_TEXT.format(**specs["supervisor"], datetime=specs["datetime"].replace("T", " "), query=query)


def find_code(action: Action, accepts_calls: bool = False) -> tuple[str, str]:
    """(code, "") of the first ```python block outside of thoughts, whether it is closed or not; else ("", the error).

    An action without text stands for its calls' code (skills.py). With `accepts_calls`, one without a block does too.
    """
    searched_text = action.text[-_MAX_SEARCHED_CHARACTERS:].rpartition("</think>")[2].partition("<think>")[0]
    code_match = _CODE_BLOCK_PATTERN.search(searched_text)
    if code_match is None and action.calls and (accepts_calls or not action.text):
        try:
            return skills.write_code(action.calls), ""
        except ValueError as error:
            return "", f"Execution failed: {error}"
    if code_match is None or not code_match[1].strip():
        return "", NO_CODE_REPLY
    if len(code_match[1]) > _MAX_CODE:
        return (
            "",
            f"The code block has {len(code_match[1]):,} characters; at most {_MAX_CODE:,} are run. Write less at once.",
        )
    return code_match[1], ""
