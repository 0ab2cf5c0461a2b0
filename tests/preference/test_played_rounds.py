"""What the agents of a round played."""

from types import SimpleNamespace

from cojax.loop import State
from cojax.metrics import Stopwatch
from cojax.preference import METHODS
from cojax.preference.rounds import Rounds
from cojax.settings.tree import RoundsSettings


def test_the_distance_of_agents_that_played_nothing_is_not_known():
    """It is a mean over tokens: 0.0 would say that the agents are alike, however far apart they are."""
    engine = SimpleNamespace(busy_seconds=0.0, load=lambda weights: None, rest=lambda: None)
    learner = SimpleNamespace(weights=lambda agent, version: version)
    loop = SimpleNamespace(engine=engine, learner=learner, clock=Stopwatch(), group_size=4, seed=0, quorum=1.0)
    state = State(7, "target", (), {}, second="second")
    played = Rounds(loop, METHODS["coevolving"], RoundsSettings(), 64).play(state, (), 8)
    assert (list(played.target), list(played.second), played.distance) == ([], [], None)
