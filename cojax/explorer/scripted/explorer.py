"""The explorer without a language model: it samples from valid actions, and the environment's grammar words drafts.

A window is a sequence of explored actions that could be a task; an ending that can follow makes it a draft.
"""

import dataclasses
import itertools
import random
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from cojax import environment as world
from cojax.environment import Environment, EnvironmentFailure, Episode, affordances, ask
from cojax.environment.replay import Play, follow
from cojax.explorer import GUIDANCE, Exploration, document_tools, make_context
from cojax.settings.tree import ScriptedSettings, Settings
from cojax.signals import Guidance
from cojax.types import (
    Action,
    Call,
    ExplorationContext,
    Message,
    Observation,
    Origin,
    Signal,
    Task,
    TaskDraft,
    Trajectory,
    Triplet,
    Turn,
    signature,
)

# The number of actions that a run may have beyond the longest draft wanted.
_EXTRA_ACTIONS = 2
# The probability that a planned call uses a value from the last observation, if it can.
_OBSERVED_PROBABILITY = 0.9


@dataclasses.dataclass(frozen=True)
class Ending:
    """The tool that ends an episode, and the parameter that carries the answer, if it has one.

    An empty `tool` means that an action without calls ends the user's turn, and after the last one the episode.
    """

    tool: str
    parameter: str | None = None

    @classmethod
    def of(cls, environment: Environment, tool: str) -> "Ending":
        """The ending by this tool, whose first parameter carries the answer. Raises ValueError for an unknown tool."""
        if not tool:
            return cls(tool)
        tools = document_tools(environment)
        if tool not in tools:
            raise ValueError(
                f"environment {environment.name!r} has no tool {tool!r} to end an episode; "
                f'it has {", ".join(tools)}. Name one of them by explorer.ending, or "" where an action without calls '
                "ends it."
            )
        return cls(tool, next(iter(tools[tool].get("parameters", {}).get("properties", {})), None))

    def after(self, step: Triplet) -> Iterator[Triplet]:
        """The possible last steps after this step: without an answer, or with this step's observation as the answer."""
        if not self.tool:
            yield Triplet(Action(), Observation(done=True), step.run)
            return
        answer_arguments = [{}] if self.parameter is None else [{}, {self.parameter: step.observation.text}]
        final_observation = Observation((Message("tool", ""),), done=True)
        for arguments in answer_arguments:
            yield Triplet(Action(calls=(Call(self.tool, arguments),)), final_observation, step.run)


def tool_of(action: Action) -> str:
    """The tool of the first call; "" for an action without calls."""
    return action.calls[0].name if action.calls else ""


def list_argument_values(action: Action) -> frozenset[str]:
    """The values of the action's arguments, as text."""
    return frozenset(str(value) for call in action.calls for value in call.arguments.values())


def words_of(text: str) -> set[str]:
    """The words of an observation, unchanged and also without the punctuation that JSON puts around them."""
    words = text.split()
    return {*words, *(word.strip("\"'{}[](),:") for word in words)} - {""}


def draw_lengths(base_length: int, extra_lengths: Sequence[int], longest: int, rng: random.Random) -> Iterator[int]:
    """Yields without end: `base_length` plus a random entry of `extra_lengths`, clipped to 1 … `longest`."""
    while True:
        yield min(longest, max(1, base_length + rng.choice(extra_lengths)))


def split_turns(window: Sequence[Triplet], probability: float, rng: random.Random) -> tuple[Triplet, ...]:
    """Ends the user's turn after each step of the window with this probability, but never after the last step."""
    steps: list[Triplet] = []
    for step in window[:-1]:
        steps.append(step)
        if rng.random() < probability:
            steps.append(Triplet(Action(), Observation(), step.run))
    return (*steps, *window[-1:])


def windows(
    triplets: Sequence[Triplet],
    lengths: Iterator[int],
    focus: Collection[str],
    rng: random.Random,
    min_calls: Mapping[str, int] = types.MappingProxyType({}),
) -> Iterator[tuple[Triplet, ...]]:
    """Yields, once each, the windows of all runs that call each tool at least as often as `min_calls` says.

    Each has the next length of `lengths`, or the nearest length left. Among windows of one length, those with a tool in
    focus come first.
    """
    steps_by_run: dict[int, list[Triplet]] = {}
    for triplet in triplets:
        if triplet.observation.ok and not triplet.observation.done:
            steps_by_run.setdefault(triplet.run, []).append(triplet)
    min_counts = Counter(min_calls)
    candidates = (window for steps in steps_by_run.values() for window in _list_run_windows(steps))
    matches = [w for w in candidates if not min_counts or Counter(tool_of(step.action) for step in w) >= min_counts]
    rng.shuffle(matches)
    # Windows are popped from the end, so those with a tool in focus are sorted last.
    matches.sort(key=lambda window: any(tool_of(step.action) in focus for step in window))
    windows_by_length: dict[int, list[tuple[Triplet, ...]]] = {}
    for window in matches:
        windows_by_length.setdefault(len(window), []).append(window)
    while windows_by_length:
        wanted_length = next(lengths)
        nearest_length = min(windows_by_length, key=lambda length: (abs(length - wanted_length), length))
        yield windows_by_length[nearest_length].pop()
        if not windows_by_length[nearest_length]:
            del windows_by_length[nearest_length]


def _list_run_windows(steps: Sequence[Triplet]) -> list[tuple[Triplet, ...]]:
    """Every sequence of successive steps, and every sequence of successive purposes with the steps that they depend on.

    A purpose is a step whose observation no later step uses.
    """
    sources = _find_sources(steps)
    used_steps = {source for step_sources in sources for source in step_sources}
    purposes = [i for i in range(len(steps)) if i not in used_steps]
    closures: list[set[int]] = []  # each step with its sources, their sources, and so on
    for i, step_sources in enumerate(sources):
        closures.append({i}.union(*(closures[source] for source in step_sources)))
    index_spans = {tuple(range(i, j + 1)) for i in range(len(steps)) for j in range(i, len(steps))}
    for i in range(len(purposes)):
        indices: set[int] = set()
        for purpose in purposes[i:]:
            indices |= closures[purpose]
            index_spans.add(tuple(sorted(indices)))
    return [tuple(steps[i] for i in index_span) for index_span in sorted(index_spans)]


def _find_sources(steps: Sequence[Triplet]) -> list[set[int]]:
    """For each step, the latest earlier steps whose observations hold the values of its arguments."""
    newest_step: dict[str, int] = {}  # word → the last step that showed it
    sources: list[set[int]] = []
    for step_index, step in enumerate(steps):
        sources.append({newest_step[value] for value in list_argument_values(step.action) if value in newest_step})
        newest_step |= dict.fromkeys(words_of(step.observation.text), step_index)
    return sources


def no_neighbours(tool: str) -> tuple[str, ...]:
    """Returns no tools, for an environment that does not say which tools are related."""
    return ()


@dataclasses.dataclass(frozen=True)
class ScriptedExplorer:
    """Explores by weighted random choice among the actions that would work now.

    An expedition has `runs` independent episodes. Each has at most `steps` actions, and at most two more than the
    longest draft wanted. A guided run either repeats the task's own solution with steps dropped, replaced or added, or
    chooses tools by weight: `focus_weight` for those in focus, `neighbour_weight` for their `neighbours`, 1 for others.
    An unguided run chooses a tool by the weights of the expedition, then an action of it. `ScriptedActor` explains
    `chase`. `ending` is the tool that ends an episode; "" if an action without calls ends the episode or the user's
    turn.

    A guided draft has the length of its parent's solution plus a random entry of `stretch` (in actions, without the
    ending), so tasks get shorter as well as longer. If the guidance asks for the `whole` plan, each draft has all its
    calls. An unguided draft has 1 to `longest` actions. For each draft, at most `tries` sequences of actions are put
    into words. After each step of a draft except the last, the user's turn ends with probability `cut`, so drafts can
    have several user turns. `width` expeditions run in parallel. `guidance` says what contexts of each kind ask for.

    Raises ValueError for a `cut` outside [0, 1], and for one above 0 if a tool ends the episode.
    """

    runs: int = Settings.explorer.runs
    steps: int = Settings.explorer.steps
    neighbours: Callable[[str], tuple[str, ...]] = no_neighbours
    ending: str = Settings.explorer.ending
    stretch: tuple[int, ...] = ScriptedSettings.stretch
    longest: int = ScriptedSettings.longest
    tries: int = 12
    cut: float = ScriptedSettings.cut
    chase: float = 0.7
    focus_weight: float = 8.0
    neighbour_weight: float = 3.0
    width: int = 1
    play: Play = world.play
    name: str = "scripted"
    guidance: Mapping[str, Guidance] = dataclasses.field(default_factory=lambda: GUIDANCE)

    def __post_init__(self) -> None:
        if not 0.0 <= self.cut <= 1.0:
            raise ValueError(f"cut is {self.cut}; expected a probability in [0, 1]")
        if self.cut and self.ending:
            raise ValueError(f'cut is {self.cut}, but the tool {self.ending!r} ends the episode; set ending to ""')

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None = None) -> ExplorationContext:
        return make_context(trajectory, kind, signal, self.ending, self.guidance)

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None = None,
    ) -> Exploration:
        start_task = dataclasses.replace(task, solution=())
        triplets: list[Triplet] = []
        failures: list[str] = []
        max_turns = min(self.steps, self._max_actions(context) + _EXTRA_ACTIONS)
        tool_weight = (lambda tool: 1.0) if weights is None else (lambda tool: weights.get(tool, 0.0))
        for run_number in range(self.runs):
            rng = random.Random(repr(("explore", seed, run_number)))
            if context:
                actor = self._make_guided_run(environment, task, context, rng)
            else:
                actor = ScriptedActor(tool_weight, rng, ending=self.ending, chase=self.chase)
            trajectory = self.play(environment, start_task, actor, max_turns=max_turns)
            if trajectory.valid:
                triplets += [Triplet(turn.action, turn.observation, run_number) for turn in trajectory.turns]
            else:
                failures.append(trajectory.error)
        return Exploration(task, context, seed, tuple(triplets), tuple(failures))

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterator[TaskDraft]:
        task, context = exploration.task, exploration.context
        rng = random.Random(repr(("abstract", exploration.seed)))
        ending = Ending.of(environment, self.ending)
        base, stretch = (len(self._make_plan(context)), self.stretch) if context else (0, range(1, self.longest + 1))
        lengths = draw_lengths(base, stretch, self._max_actions(context), rng)
        focus = context.focus_patterns if context else ()
        # If the guidance asks for the whole plan, each draft has all its calls.
        min_calls = Counter(self._make_plan(context) if context and self.guidance[context.kind].whole else ())
        candidates = windows(exploration.triplets, lengths, focus, rng, min_calls)
        # A separate generator, so that `cut` does not change the other random numbers.
        cut_rng = random.Random(repr(("cut", exploration.seed)))
        queries: set[str] = set()
        for steps in itertools.islice(candidates, self.tries * limit):
            window = split_turns(steps, self.cut, cut_rng)
            draft = self._make_draft(window, environment, task, ending)
            if draft is not None and draft.query not in queries:
                queries.add(draft.query)
                yield draft
            if len(queries) == limit:
                return

    def _make_draft(
        self, window: Sequence[Triplet], environment: Environment, task: Task, ending: Ending
    ) -> TaskDraft | None:
        """The draft of a window: replays its actions from a fresh start and words them; None if either fails."""
        wordings = ((end_step, ask(environment.phrase, (*window, end_step))) for end_step in ending.after(window[-1]))
        end_step, wording = next(((end_step, phrase) for end_step, phrase in wordings if phrase), (None, None))
        if end_step is None or wording is None:
            return None
        actions = tuple(step.action for step in (*window, end_step))
        # The query determines how many turns the user takes.
        start_task = dataclasses.replace(task, query=wording, solution=())
        replay = self.play(environment, start_task, follow(actions), max_turns=len(actions))
        if replay.outcome != "finished" or not all(turn.observation.ok for turn in replay.turns):
            return None
        # The replay's observations may differ from those explored; the query must describe the replay's.
        query = ask(environment.phrase, [Triplet(turn.action, turn.observation, end_step.run) for turn in replay.turns])
        if query is None:
            return None
        return TaskDraft(
            environment=task.environment,
            setup=task.setup,
            description=f"run {window[0].run}: {', '.join(call.name for action in actions for call in action.calls)}",
            query=query,
            solution=actions,
            criterion="the final state and the answer equal those of the replayed solution",
            runs=(window[0].run,),
        )

    def _make_guided_run(
        self, environment: Environment, task: Task, context: ExplorationContext, rng: random.Random
    ) -> "ScriptedActor":
        documentation = document_tools(environment)
        # The trajectory may have called tools that do not exist.
        focus = [tool for tool in context.focus_patterns if tool in documentation]
        nearby_tools = {neighbour for tool in focus for neighbour in self.neighbours(tool)} - {*focus, self.ending}

        def weigh(tool: str) -> float:
            return self.focus_weight if tool in focus else self.neighbour_weight if tool in nearby_tools else 1.0

        guidance = self.guidance[context.kind]
        preferred_tools = (*focus, *sorted(nearby_tools))
        tool_plan: list[str] = []
        if preferred_tools and rng.random() < guidance.rehearse:
            picks = iter(lambda: rng.choices(preferred_tools, [weigh(tool) for tool in preferred_tools])[0], None)
            tool_plan = vary(self._make_plan(context), picks, guidance.change, rng, add=0.0 if guidance.whole else 0.5)
        return ScriptedActor(
            weigh, rng, ending=self.ending, chase=self.chase, plan=tool_plan, do_not_repeat={*context.do_not_repeat}
        )

    def _max_actions(self, context: ExplorationContext | None) -> int:
        """The number of actions of the longest draft wanted, without the ending."""
        return min(self.steps, max(1, len(self._make_plan(context)) + max(self.stretch)) if context else self.longest)

    def _make_plan(self, context: ExplorationContext) -> list[str]:
        """The tools of the context's plan, or of its task's solution if it has none, without the ending."""
        solution_tools = (call.name for action in context.task.solution for call in action.calls)
        return [tool for tool in context.plan or solution_tools if tool != self.ending]


def vary(tools: Sequence[str], picks: Iterator[str], change: float, rng: random.Random, add: float = 0.5) -> list[str]:
    """Drops or replaces each of the tools with probability `change`, and inserts one more with probability `add`."""
    plan: list[str] = []
    for tool in tools:
        draw = rng.random()
        if draw >= change:
            plan.append(tool)
        elif draw >= change / 2:
            plan.append(next(picks))
    if rng.random() < add:
        plan.insert(rng.randint(0, len(plan)), next(picks))
    return plan


@dataclasses.dataclass(eq=False)
class ScriptedActor:
    """The actor of one run; single-use, like its episode.

    It first follows `plan` (tool names), then chooses a tool by `weigh_tool` and an action of that tool. With
    probability `chase` the action has an argument from the last observation; otherwise, with half of that probability,
    one from the last action. Three kinds of actions are a last resort: those already taken, those whose signature is in
    `do_not_repeat`, and calls of `ending`. Raises EnvironmentFailure if the episode offers no action.
    """

    weigh_tool: Callable[[str], float]
    rng: random.Random
    _: dataclasses.KW_ONLY
    ending: str
    chase: float
    plan: list[str] = dataclasses.field(default_factory=list)
    do_not_repeat: set[str] = dataclasses.field(default_factory=set)
    last_values: frozenset[str] = frozenset()

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        possible_actions = affordances(episode)
        if not possible_actions:
            raise EnvironmentFailure(
                "the episode offers no affordances; the scripted explorer needs some to choose from"
            )
        actions = [action for action in possible_actions if tool_of(action) != self.ending] or list(possible_actions)
        # Tools are compared first: signatures are expensive to build.
        tools = {action_line.partition("(")[0] for action_line in self.do_not_repeat}
        actions = [a for a in actions if tool_of(a) not in tools or signature(a) not in self.do_not_repeat] or actions
        # Before the first action the messages are the task's text, not an observation.
        words = {word for message in messages for word in words_of(message.content)} if self.last_values else set[str]()
        action = self._choose_action(actions, words)
        self.do_not_repeat.add(signature(action))
        self.last_values = list_argument_values(action)
        return Turn(action)

    def _choose_action(self, options: Sequence[Action], words: Collection[str]) -> Action:
        while self.plan:
            tool = self.plan.pop(0)
            if tool_actions := [action for action in options if tool_of(action) == tool]:
                fitting_actions = mentioning(tool_actions, words) if self.rng.random() < _OBSERVED_PROBABILITY else []
                return self.rng.choice(fitting_actions or tool_actions)
        candidates = mentioning(options, words) if self.rng.random() < self.chase else []
        if not candidates and self.rng.random() < self.chase / 2:
            candidates = mentioning(options, self.last_values)
        return self._draw_by_tool(candidates or options)

    def _draw_by_tool(self, options: Sequence[Action]) -> Action:
        """Draws a tool by its weight, then any of its actions, so that tools with more arguments are no likelier."""
        actions_by_tool: dict[str, list[Action]] = {}
        for action in options:
            actions_by_tool.setdefault(tool_of(action), []).append(action)
        tools = list(actions_by_tool)
        weights = [self.weigh_tool(tool) for tool in tools]
        tool = self.rng.choices(tools, weights)[0] if any(weights) else self.rng.choice(tools)
        return self.rng.choice(actions_by_tool[tool])


def mentioning(actions: Sequence[Action], words: Collection[str]) -> list[Action]:
    """The actions that have one of these words as an argument."""
    return [action for action in actions if not list_argument_values(action).isdisjoint(words)]
