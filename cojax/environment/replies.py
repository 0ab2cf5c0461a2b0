"""Checks and bounds an environment's replies: the right shape, and text that any tokenizer takes."""

from collections.abc import Sequence

from cojax.types import ROLES, Check, Evaluation, Message, Observation

# At most this many messages are kept of one observation, and of the opening.
MAX_MESSAGES = 256
# A verdict has at most this many checks. At most this many characters of a check's name are kept.
_MAX_CHECKS, _MAX_NAME_LENGTH = 10_000, 10_000


def bound_messages(reply: Sequence[Message], max_characters: int) -> tuple[Message, ...]:
    """The messages, cut to `max_characters` in all, with a note of the cut. Raises TypeError for another shape."""
    bounded_messages: list[Message] = []
    for message in reply[:MAX_MESSAGES]:
        if not (isinstance(message, Message) and isinstance(message.content, str) and _is_role(message.role)):
            raise TypeError(
                f"a message is {message!r:.100}; expected a Message with role and content as text, "
                f"and as role one of {', '.join(sorted(ROLES))}"
            )
        bounded_content = _encodable(message.content[:max_characters])
        if cut_count := len(message.content) - len(bounded_content):
            bounded_content = f"{bounded_content}\n[{cut_count} characters cut]"
        max_characters = max(0, max_characters - len(bounded_content))
        bounded_messages.append(Message(message.role, bounded_content))
    if cut_count := len(reply) - len(bounded_messages):
        bounded_messages.append(Message(bounded_messages[-1].role, f"[{cut_count} messages cut]"))
    return tuple(bounded_messages)


def bound_observation(reply: Observation, max_characters: int) -> Observation:
    """The observation with bounded messages and plain truth values. Raises TypeError for another shape."""
    if not isinstance(reply, Observation):
        raise TypeError(f"step returned {type(reply).__name__}; expected an Observation")
    return Observation(bound_messages(reply.messages, max_characters), ok=bool(reply.ok), done=bool(reply.done))


def bound_evaluation(reply: Evaluation) -> Evaluation:
    """The evaluation with plain numbers and text. Raises TypeError for another shape, ValueError out of bounds."""
    if not isinstance(reply, Evaluation):
        raise TypeError(f"evaluate returned {type(reply).__name__}; expected an Evaluation")
    reward, partial = float(reply.reward), float(reply.partial)
    for figure_name, reward_value in (("reward", reward), ("partial reward", partial)):
        if not 0.0 <= reward_value <= 1.0:
            raise ValueError(f"{figure_name} {reward_value!r}; expected a number in [0, 1]")
    if len(reply.checks) > _MAX_CHECKS:
        raise ValueError(f"{len(reply.checks):,} checks; expected at most {_MAX_CHECKS:,}")
    checks = tuple(Check(_encodable(str(check.name)[:_MAX_NAME_LENGTH]), bool(check.passed)) for check in reply.checks)
    return Evaluation(reward, checks, partial)


def _is_role(role: object) -> bool:
    return isinstance(role, str) and role in ROLES


def _encodable(text: str) -> str:
    """The text with "?" for half a surrogate pair, which a Python string may hold but no encoding can represent."""
    return text.encode("utf-8", "replace").decode()
