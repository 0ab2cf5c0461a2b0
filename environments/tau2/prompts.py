"""The system message of an episode, in writing or in conversation."""

from .official import Domain
from .official_texts import Texts

KINDS = ("official", "workflow", "brief")
_TICKET = "\n<ticket>\n{ticket}\n</ticket>"
_WRITTEN = """\
You are a customer service agent that helps the user according to the <policy> provided below.
You will be provided with the user's request in writing, and what is known of the user.
You will need to plan and call the appropriate tools to fulfil the request as far as the policy allows it.

Nobody answers questions. Where the policy asks for a confirmation, take it as given if it agrees with the request.
What the user asked to know goes into a call of `reply`. When nothing is left to do, call `done`.

Always follow the policy. Always make sure you generate valid JSON only."""


def instructions(domain: Domain, kind: str) -> str:
    """The system message: the official prompt with a policy text, and without the ticket, which is the user's message.

    `official` has the policy of the domain, `workflow` its variant of the telecom domain, `brief` none. Raises
    ValueError for any other, and for a policy that the domain has not.
    """
    told = domain.instruction if domain.solo else _WRITTEN
    policy = _policy(domain, kind)
    if policy is None:
        return told
    if _TICKET not in domain.prompt:
        raise ValueError("the official prompt has no <ticket> section any more; adapt environments/tau2/prompts.py")
    return domain.prompt.replace(_TICKET, "").format(agent_instruction=told, domain_policy=policy)


def of_conversation(domain: Domain, kind: str, texts: Texts) -> str:
    """The system message of an agent that talks with a customer: the official prompt. Raises ValueError as above."""
    policy = _policy(domain, kind)
    if policy is None:
        return texts.instruction
    return texts.prompt.format(agent_instruction=texts.instruction, domain_policy=policy)


def _policy(domain: Domain, kind: str) -> str | None:
    """The policy text of a kind, None where it is left out."""
    if kind not in KINDS:
        raise ValueError(f"instructions {kind!r} not found; available: {', '.join(KINDS)}")
    if kind == "brief":
        return None
    if kind not in domain.policies:
        raise ValueError(f"the domain {domain.name} has no policy {kind!r}; it has {', '.join(domain.policies)}")
    return domain.policies[kind]
