"""The explorer with a language model, which reflects, explores and abstracts (CoEvolve §3.2–3.3).

The model's replies are checked, never trusted. The environment decides whether an action worked, and drafts consist of
recorded actions that worked. Text written by a model or an environment appears in prompts as data between marks, never
as an instruction. The actor asks the model for each action of an episode: on an expedition, or in an attempt that sees
nothing but a task's query.
"""

import contextlib
import dataclasses
import functools
import json
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import AliasChoices, BaseModel, Field

from cojax import environment as world
from cojax.drafts import DraftRefused
from cojax.environment import Environment, Episode
from cojax.environment.replay import Play
from cojax.environment.watch import CALL_TIMEOUT_S as _PATIENCE
from cojax.environment.watch import ask_within
from cojax.explorer import GUIDANCE, Exploration, Explorer, document_tools, make_context
from cojax.explorer.llm import prompting
from cojax.explorer.llm.abstraction import Drafts, make_drafts, number_actions, write_abstraction_prompt
from cojax.explorer.llm.chat_model import Budget, ChatFailure, ChatModel, make_seed, structured_reply
from cojax.explorer.scripted.explorer import Ending
from cojax.settings.tree import ModelExplorerSettings
from cojax.signals import Guidance
from cojax.types import (
    Action,
    Call,
    ExplorationContext,
    Message,
    Origin,
    Signal,
    Task,
    TaskDraft,
    Trajectory,
    Triplet,
    Turn,
    signature,
)

# The prompt of an unguided explorer names at most this many popular tools.
_MAX_POPULAR_TOOLS = 10
# At most this many actions that would work are shown at first: some environments do not list what they contain.
_MAX_HINTS = 16
# The prompt names at most this many of the refused actions, each in at most this many characters.
_MAX_REMINDERS, _MAX_REMINDER_LENGTH = 20, 200
_OMISSION_TEXT = "(left out)"
# How often in one turn a model may repeat an action that it must avoid.
_MAX_REPEATS = 2
# The window divided by these is the most room for the episode's opening, and for the actions that would work.
_OPENING_DIVISOR, _PER_HINT = 3, 6
# The most characters of a hint, which is an action that would work.
_MAX_HINT_LENGTH = 300
# A call, and one of its arguments, in a line. A line with nested brackets may be code, so it does not match.
_CALL_PATTERN, _ARGUMENT_PATTERN = re.compile(r"([\w.]+)\(([^()]*)\)"), re.compile(r"[\w.-]+=(?!=)")


def _pick_reminders(failed_actions: Sequence[str], focus: Sequence[str]) -> list[str]:
    """The failed actions that a prompt names: those of tools in focus first, and the newest first."""
    reminders = [prompting.shorten(" ".join(line.split()), _MAX_REMINDER_LENGTH) for line in reversed(failed_actions)]
    reminders.sort(key=lambda line: line.partition("(")[0] not in focus)
    extra_count = len(reminders) - _MAX_REMINDERS
    return [*reminders[:_MAX_REMINDERS], *([f"(and {extra_count} more)"] if extra_count > 0 else [])]


# Its schema is sent to the model: the class's name and docstring are part of every request's journal key.
class Move(BaseModel):
    """One action of a tool-calling model; without a tool, the end of the user's turn."""

    thought: str = ""
    tool: str = Field(validation_alias=AliasChoices("tool", "name"))
    arguments: dict[str, Any] = Field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class ChatModelActor:
    """The actor of one episode of at most `max_actions` actions; single-use.

    `prompt_file` is the prompt file of its messages. `prompt_texts` fills the slots of the first two messages that the
    episode does not fill.

    The actor sees at most `window` untrusted characters, not counting the tools' documentation and the newest exchange.
    `untrusted_length` of these characters are in `prompt_texts`. The actor sees at most `hint_count` actions that would
    work. Actions in `do_not_repeat` are refused. If the model fails, or keeps repeating one of them, `ChatFailure` ends
    the episode as an engine_error, with the actions so far.
    """

    prompt_file: str
    prompt_texts: Mapping[str, str]
    max_actions: int
    ending: str
    window: int
    do_not_repeat: tuple[str, ...] = ()
    hint_count: int = 0
    untrusted_length: int = 0
    _: dataclasses.KW_ONLY
    chat_model: ChatModel
    budget: Budget
    seed: tuple
    call_place: str
    first_messages: tuple[Message, ...] = ()
    exchanges: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # the model's reply, the observation
    last_reply: str = ""  # the last one, not yet answered by the environment
    max_characters: int = 0
    writes_text: bool = False

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        observation = "\n".join(message.content for message in messages)
        if self.first_messages:
            self.exchanges.append((self.last_reply, observation))
        else:
            self.first_messages = self._open(episode, observation)
        return Turn(self._choose_action())

    def _open(self, episode: Episode, opening: str) -> tuple[Message, ...]:
        """The system and the user message. Their untrusted text leaves less room for the conversation."""
        tools = ask_within(_PATIENCE, episode.tools)
        self.writes_text = not tools
        # Hints are written as calls; they do not help if actions are free text.
        hint_count = 0 if self.writes_text else self.hint_count
        hints = sample_hints(episode, hint_count, self.seed) if hint_count else []
        hint_list = [hint for hint in prompting.fit_texts(hints[::-1], self.window // _PER_HINT, 3) if hint is not None]
        opening = prompting.shorten(opening, self.window // _OPENING_DIVISOR)
        hint_text = prompting.list_lines(hint_list[::-1]) if hint_list else ""
        self.max_characters = self.window - self.untrusted_length - len(opening) - len(hint_text)
        phrases = prompting.sections(self.prompt_file)
        opening_text = prompting.fill(phrases.get("opening", "{{opening}}"), opening=prompting.data(opening))
        return prompting.prompt(
            self.prompt_file,
            **self.prompt_texts,
            steps=str(self.max_actions),
            acting=describe_action_format(tools, self.ending),
            opening=opening_text if opening.strip() else phrases.get("silent", ""),
            hints=f"\n{prompting.fill(phrases['hints'], actions=prompting.data(hint_text))}\n" if hint_text else "",
        )

    def _choose_action(self) -> Action:
        """The next action that is not to be avoided. Raises ChatFailure."""
        refusal: tuple[Message, ...] = ()
        turn_index = len(self.exchanges)
        for repeats in range(_MAX_REPEATS + 1):
            place = f"{self.call_place}/turn {turn_index + 1}" + f"/again {repeats}" * bool(repeats)
            action, reply = self._ask_model((*self._conversation(), *refusal), place, (*self.seed, turn_index, repeats))
            if _make_action_key(signature(action)) not in self._avoided_keys:
                self.last_reply = reply
                return action
            refusal = (*refusal, Message("assistant", reply), Message("user", prompting.sections("explore")["refused"]))
        raise ChatFailure("refused", f"it keeps choosing an action to avoid: {signature(action)[:200]}")

    def _ask_model(self, messages: Sequence[Message], place: str, seed: tuple) -> tuple[Action, str]:
        """The action of one reply, and the reply's text."""
        if self.writes_text:
            reply_text = self._ask_for_text(messages, place, seed)
            return Action(reply_text), reply_text
        move = structured_reply(self.chat_model, messages, Move, budget=self.budget, seed=make_seed(*seed), place=place)
        calls = (Call(move.tool, move.arguments),) if move.tool else ()
        return Action(calls=calls), json.dumps(move.model_dump(), ensure_ascii=False)

    def _ask_for_text(self, messages: Sequence[Message], call_place: str, seed: tuple) -> str:
        """An action in free text. An empty or truncated reply is asked for again, once. Raises ChatFailure."""
        for attempt in range(2):
            reply = self.chat_model.reply(
                messages, budget=self.budget, seed=make_seed(*seed), place=call_place + "/repair" * attempt, schema=None
            )
            if reply.text.strip() and not reply.truncated:
                return reply.text
            problem_text = "was cut off: write much less at once" if reply.truncated else "was empty"
            failed_answer = Message("assistant", reply.text[:2_000] or "(nothing)")
            messages = (*messages, failed_answer, Message("user", f"That answer {problem_text}. Write one action."))
        self.chat_model.count_failure("truncated" if reply.truncated else "empty")
        raise ChatFailure("truncated" if reply.truncated else "empty", "twice in a row")

    @functools.cached_property
    def _avoided_keys(self) -> set[tuple[str, ...]]:
        return {_make_action_key(action_line) for action_line in self.do_not_repeat}

    def _conversation(self) -> tuple[Message, ...]:
        """The first messages and all exchanges. If they are too long, texts are shortened and the oldest left out.

        The newest exchange is never shortened, because the next action depends on it.
        """
        fitted_exchanges = [*prompting.fit_pairs(self.exchanges[:-1], self.max_characters), *self.exchanges[-1:]]
        opening = self.first_messages
        if missing_count := len(self.exchanges) - len(fitted_exchanges):
            omission_note = prompting.fill(prompting.sections("act")["left_out"], count=str(missing_count))
            opening = (*opening[:-1], Message(opening[-1].role, f"{opening[-1].content}\n\n{omission_note}"))
        messages, template = list(opening), prompting.sections(self.prompt_file)["next"]
        for exchange_number, (reply, observation) in enumerate(fitted_exchanges, start=missing_count + 1):
            steps_left = str(self.max_actions - exchange_number)
            text = prompting.fill(template, observation=prompting.data(observation), left=steps_left)
            messages += [Message("assistant", reply), Message("user", text)]
        return tuple(messages)


def _make_action_key(action_line: str) -> tuple[str, ...]:
    """A key that is equal for two lines that write the same action.

    White space is ignored, and so is the order of arguments in a line of the form `tool(name=value, …)`.
    """
    action_line = " ".join(action_line.split())
    if (call := _CALL_PATTERN.fullmatch(action_line)) is None:
        return (action_line,)
    argument_texts = call[2].split(", ")
    return (call[1], *sorted(argument_texts)) if all(map(_ARGUMENT_PATTERN.match, argument_texts)) else (action_line,)


def sample_hints(episode: Episode, hint_count: int, seed: tuple) -> list[str]:
    """At most `hint_count` actions that would work now, drawn at random, each of a different tool."""
    rng = random.Random(repr(("hints", seed)))
    actions_by_tool: dict[str, list[Action]] = {}
    for action in ask_within(_PATIENCE, episode.affordances):
        if action.calls:
            actions_by_tool.setdefault(action.calls[0].name, []).append(action)
    tool_names = rng.sample(sorted(actions_by_tool), min(hint_count, len(actions_by_tool)))
    return [prompting.shorten(signature(rng.choice(actions_by_tool[name])), _MAX_HINT_LENGTH) for name in tool_names]


def describe_action_format(tools: Sequence[Mapping[str, Any]], ending: str) -> str:
    """The prompt's rules for writing actions: as calls of these tools; without tools, in the environment's format."""
    phrases = prompting.sections("act")
    if not tools:
        ending_rule = f" {prompting.fill(phrases['ending_text'], tool=ending)}" if ending else ""
        return prompting.fill(phrases["text"], ending=ending_rule)
    ending_rule = f" {prompting.fill(phrases['ending_tool'], tool=ending)}" if ending else f" {phrases['ending_turn']}"
    documentation = prompting.data("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    return prompting.fill(phrases["tools"], tools=documentation, ending=ending_rule)


@dataclasses.dataclass
class LLMExplorer:
    """Explores by the actions that a model chooses: `runs` parallel episodes of at most `steps` actions each.

    `ending` is the tool that ends an episode; "" if an action without calls ends the episode or the user's turn.
    `separator` separates the user's turns of a query; "" if a query has one turn. A draft has at least `shortest`
    actions (3 in the paper): a call that ends the episode counts, an action without calls does not.

    `window` bounds the untrusted characters of a prompt, the model's own earlier actions included. It does not count
    our own words, the tools' documentation, the newest exchange of a conversation, or what a request for repair
    repeats. `width` expeditions run in parallel. An attempt on the query alone takes at most `attempt_turns` actions.
    `guidance` says what contexts of each kind ask for.

    `place` and `evolution` are the prefixes of the names that the journal gives the calls of an expedition and of the
    whole evolution. `name`, which is stored in a task's lineage, consists of kind, model and version of the prompts.
    """

    chat_model: ChatModel
    runs: int = 4
    steps: int = 8
    ending: str = "finish"
    separator: str = ModelExplorerSettings.separator
    shortest: int = ModelExplorerSettings.shortest
    window: int = 60_000
    width: int = 1
    play: Play = world.play
    kind: str = "llm"
    attempt_turns: int = 30
    budget: Budget | None = None
    place: str = "0"
    evolution: str = "0"
    guidance: Mapping[str, Guidance] = dataclasses.field(default_factory=lambda: GUIDANCE)
    name: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.name = f"{self.kind}:{self.chat_model.name}@{prompting.hash_prompts()}"

    def begin(self, evolution: tuple) -> None:
        self.place = self.evolution = _name_seed(evolution)
        self.budget = self.chat_model.begin(self.evolution)

    @contextlib.contextmanager
    def split(self, seeds: Sequence[tuple]) -> Iterator[list[Explorer]]:
        with self.remaining_budget().split(len(seeds)) as budgets:
            pairs = zip(budgets, seeds, strict=True)
            yield [dataclasses.replace(self, budget=budget, place=_name_seed(seed)) for budget, seed in pairs]

    def figures(self) -> dict[str, Any]:
        return self.chat_model.figures()

    def remaining_budget(self) -> Budget:
        """What is left of the evolution's budget; a full budget if no evolution has begun.

        Once it is closed, the next call of every explorer that shares it raises; `begin` makes a new one.
        """
        if self.budget is None:
            self.budget = self.chat_model.begin()
        return self.budget

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None = None) -> ExplorationContext:
        """The context, which always lists the trajectory's failed actions as not to be repeated. Raises ChatFailure."""
        context = make_context(trajectory, kind, signal, self.ending, self.guidance)
        messages = prompting.reflection_prompt(trajectory, self.guidance[kind].reason, signal, self.window)
        place = f"{self.place}/reflect"
        budget, seed = self.remaining_budget(), make_seed(place)
        reflection = structured_reply(
            self.chat_model, messages, prompting.Reflection, budget=budget, seed=seed, place=place
        )
        return prompting.add_reflection(context, reflection)

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None = None,
    ) -> Exploration:
        """Plays `runs` episodes. If the model fails in one, its earlier actions count, and the failure is recorded.

        Raises ChatFailure if the budget covers no further call.
        """
        self.remaining_budget().check(1)
        start_task = dataclasses.replace(task, solution=())
        brief_text, untrusted_length = self._write_brief(document_tools(environment), task, context, weights)
        purpose_text = self.guidance[context.kind].purpose if context else "Purpose: a survey."
        about = {"brief": brief_text, "guidance": purpose_text, "data_rule": prompting.sections("data")["rule"]}
        do_not_repeat = context.do_not_repeat if context else ()
        actor_bounds = self.steps, self.ending, self.window, do_not_repeat, _MAX_HINTS, untrusted_length
        make_actor = functools.partial(ChatModelActor, "explore", about, *actor_bounds, chat_model=self.chat_model)
        with self.remaining_budget().split(self.runs) as budgets, ThreadPoolExecutor(self.runs) as threads:

            def play_run(run: int) -> Trajectory:
                actor = make_actor(budget=budgets[run], seed=(*seed, run), call_place=f"{self.place}/run {run}")
                return self.play(environment, start_task, actor, max_turns=self.steps)

            trajectories = list(threads.map(play_run, range(self.runs)))
        # Observations of a broken environment are not used. If the model fails, earlier actions remain valid.
        triplets = tuple(
            Triplet(turn.action, turn.observation, run_number)
            for run_number, trajectory in enumerate(trajectories)
            if trajectory.valid or trajectory.outcome == "engine_error"
            for turn in trajectory.turns
        )
        failure_lines = (f"run {number}: {t.error}" for number, t in enumerate(trajectories) if not t.valid)
        return Exploration(task, context, seed, triplets, tuple(failure_lines))

    def _write_brief(
        self, real: Collection[str], task: Task, context: ExplorationContext | None, weights: Mapping[str, float] | None
    ) -> tuple[str, int]:
        """The text that briefs an expedition, and its number of untrusted characters: at most a third of the window."""
        phrases = prompting.sections("explore")
        if context is None:
            # Without weights the explorer prefers no tool.
            popular = sorted(weights or {}, key=lambda tool: -(weights or {})[tool])[:_MAX_POPULAR_TOOLS]
            demand = f"Users mostly want: {', '.join(popular)}." if popular else "Every function is of equal interest."
            return prompting.fill(phrases["unguided"], popular=demand), 0
        focus_tools = [tool for tool in context.focus_patterns if tool in real] or list(context.focus_patterns)
        # If there is too little room, texts are left out in this order.
        texts = {
            "do_not_repeat": prompting.list_lines(_pick_reminders(context.do_not_repeat, focus_tools)),
            "instability_pattern": context.instability_pattern or "nothing known",
            "summary": context.summary,
            "failure_cause": context.failure_cause or "nothing",
            "focus": ", ".join(focus_tools) or "all of it",
            "objectives": prompting.list_lines(context.objectives),
            "task": task.query,
        }
        fitted_texts = prompting.fit_texts(list(texts.values()), self.window // 3 - len(texts) * len(_OMISSION_TEXT))
        section_texts = [_OMISSION_TEXT if text is None else text for text in fitted_texts]
        slot_texts = dict(zip(texts, map(prompting.data, section_texts), strict=True))
        return prompting.fill(phrases["guided"], **slot_texts), sum(map(len, section_texts))

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterator[TaskDraft]:
        """Yields the drafts of one reply; a draft that breaks a rule has an objection that says so.

        Raises ChatFailure if no reply can be used.
        """
        actions = number_actions(exploration.triplets)
        if not any(step.observation.ok for step in actions.values()):
            return
        draft_rules = Ending.of(environment, self.ending), self.separator, self.shortest
        messages = write_abstraction_prompt(exploration, actions, environment, *draft_rules, self.window, limit)
        budget, seed = self.remaining_budget(), make_seed("abstract", *exploration.seed)
        place = f"{self.place}/abstract"
        reply = structured_reply(self.chat_model, messages, Drafts, budget=budget, seed=seed, place=place)
        yield from make_drafts(reply, actions, exploration.task, *draft_rules, limit)

    @contextlib.contextmanager
    def attempters(self, task: Task, attempt_count: int) -> Iterator[list[ChatModelActor]]:
        """Actors that see nothing but the task's query, by which validation checks that the query suffices."""
        actor_bounds = self.attempt_turns, self.ending, self.window
        make_actor = functools.partial(ChatModelActor, "solve", {}, *actor_bounds, chat_model=self.chat_model)
        # Named by the evolution, not the expedition, so that a task found twice costs one attempt.
        place_prefix = f"{self.evolution}/task {task.id}/attempt"
        with self.remaining_budget().split(attempt_count) as budgets:
            yield [
                make_actor(budget=budget, seed=("attempt", task.id, number), call_place=f"{place_prefix} {number}")
                for number, budget in enumerate(budgets)
            ]


def _name_seed(seed: tuple) -> str:
    return "/".join(map(str, seed))


# Its schema is sent to the model: the class's name and docstring are part of every request's journal key.
class Judgement(BaseModel):
    """The reply of a model about a draft."""

    consistent: bool
    safe: bool
    reason: str = ""


def judge(chat_model: ChatModel, has_veto: bool, task: Task, draft: TaskDraft, budget: Budget, may_review: bool) -> str:
    """The model's opinion of whether query and actions belong together, as a line of evidence, paid from `budget`.

    Without `has_veto` the opinion is only evidence. With `has_veto` an objection or a failure raises DraftRefused; with
    `may_review`, an unsafe draft is set aside for a person to review.
    """
    actions = [prompting.shorten(signature(action) or "(back to the user)", 2_000) for action in draft.solution]
    data_rule, solution_text = prompting.sections("data")["rule"], prompting.data(prompting.list_lines(actions))
    messages = prompting.prompt("judge", data_rule=data_rule, query=prompting.data(draft.query), solution=solution_text)
    place, is_safe = f"judge/{task.id}", True
    try:
        judgement = structured_reply(
            chat_model, messages, Judgement, budget=budget, seed=make_seed(place), place=place, temperature=0.0
        )
    except ChatFailure as failure:
        # Otherwise a draft could avoid a refusal by making the judge fail.
        line = f"judge: no opinion ({failure})"
    else:
        is_safe, reason = judgement.safe, prompting.shorten(" ".join(judgement.reason.split()), 200)
        if judgement.consistent and is_safe:
            return f"judge: no objection ({reason})"
        line = f"judge: {'query and actions do not belong together' if is_safe else 'unsafe'} ({reason})"
    if not has_veto:
        return line
    raise DraftRefused(line) if is_safe or not may_review else DraftRefused(f"set aside for review: {line}", line)
