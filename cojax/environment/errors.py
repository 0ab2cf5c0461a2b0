"""What may go wrong in an episode, and whose fault it is."""

from __future__ import annotations


class EnvironmentFailure(RuntimeError):
    """The environment broke, or the process that serves it did. It says nothing about the policy."""


class EpisodeFailure(EnvironmentFailure):
    """The episode's own process raised, or had ended before the call. The process that serves it works."""


class LimitExceeded(EnvironmentFailure):
    """An episode hit a deadline or a resource limit, or its process died, during a call.

    Inside `step` the action may have caused it: the outcome is `timeout`. The episode is then played once more, and
    the policy is charged only where it happens again. Anywhere else it is a failure like any other.
    """


class PolicyLoss(LimitExceeded):
    """An episode that runs a policy's code was lost after reset, though the process that serves it works.

    Wherever that shows (in `step`, between steps, in `evaluate`), the outcome is `timeout`, as for LimitExceeded.
    """


class EngineError(RuntimeError):
    """The engine could not produce a completion. It says nothing about the policy."""


class OutOfContext(Exception):
    """The conversation no longer fits the policy's context."""
