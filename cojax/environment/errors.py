"""What may go wrong in an episode, and whose fault it is."""

from __future__ import annotations


class EnvironmentFailure(RuntimeError):
    """The environment broke, or the process that serves it did. It says nothing about the policy."""


class EpisodeFailure(EnvironmentFailure):
    """The episode's world raised, or its own process had ended before the call. What serves it works.

    In `step` and `evaluate` the actions may have caused it. They are charged where they lead to it again, and the task
    without them is evaluated.
    """


class LimitExceeded(EnvironmentFailure):
    """An episode hit a deadline or a resource limit, or its process died, during a call.

    Inside `step` the action may have caused it: the outcome is `timeout`. The episode is then played once more, and
    the policy is charged only where it happens again. In `evaluate` it is as an EpisodeFailure, and anywhere else a
    failure like any other.
    """


class PolicyLoss(LimitExceeded):
    """An episode that runs a policy's code was lost after reset, though the process that serves it works.

    Wherever that shows (in `step`, between steps, in `evaluate`), the outcome is `timeout`, as for LimitExceeded.
    """


class InstallError(RuntimeError):
    """An environment's packages cannot be installed, or are not installed."""


class EngineError(RuntimeError):
    """The engine could not produce a completion. It says nothing about the policy."""


class OutOfContext(Exception):
    """The conversation no longer fits the policy's context."""
