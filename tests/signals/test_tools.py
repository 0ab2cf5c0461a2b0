"""Which tools a trajectory called."""

from cojax.signals.tools import tools_called, tools_of
from cojax.types import Action, Call, Observation, Task, Trajectory, Turn

CODE = """I look first.
```python
rows = pages(apis.spotify.show_song_library, access_token=token)
print(apis.spotify.like_song(song_id=rows[0]["song_id"], access_token=token), other.apis)
```"""


def test_code_calls_what_it_names():
    assert tools_of(Action(CODE)) == ("spotify.show_song_library", "spotify.like_song")
    assert tools_of(Action("I think of apis and of nothing else")) == ()


def test_an_action_with_calls_is_what_it_calls():
    assert tools_of(Action(CODE, (Call("files_find"),))) == ("files_find",)


def test_failed_actions_may_be_left_out():
    turns = (Turn(Action(CODE)), Turn(Action("apis.venmo.login()"), Observation(ok=False)))
    trajectory = Trajectory(Task("appworld", "q", {}), turns=turns)
    assert tools_called(trajectory) == ("spotify.show_song_library", "spotify.like_song", "venmo.login")
    assert tools_called(trajectory, failed=False) == ("spotify.show_song_library", "spotify.like_song")
