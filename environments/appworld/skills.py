"""ONE table of the scripted explorer's skills in AppWorld, each in code and in words; their steps worded as a query.

A skill has the name of its main API, so that it is the same tool as in a policy's code. Its arguments are names as
people say them; its code finds the ids. {slot} stands for an argument, in the code as a Python literal. A wording may
also have {slot:yes|no} for a truth value, and {!slot} for an argument without quotes. A look-up prints one value, which
may be the answer of a task.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Call, Triplet

ENDING = "supervisor.complete_task"
# The r-th skill has the weight r ** -POPULARITY for an unguided explorer.
POPULARITY = 1.3

# The beginning of every block of code: functions for a list's rows, for one row, and for an app's access token.
_PROLOGUE = """\
def pages(api, most=20, **arguments):
    rows = []
    for page in range(most):
        more = api(page_index=page, page_limit=20, **arguments)
        rows += more
        if len(more) < 20:
            break
    return rows

def one(rows, **wanted):
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    if len(found) != 1:
        raise Exception(f"{len(found)} fit {wanted}")
    return found[0]

def token(app):
    passwords = apis.supervisor.show_account_passwords()
    profile = apis.supervisor.show_profile()
    name = profile["phone_number" if app == "phone" else "email"]
    return apis[app].login(username=name, password=one(passwords, account_name=app)["password"])["access_token"]

def named(person):
    return f"{person['first_name']} {person['last_name']}"

def called(people, name):
    return one([{**person, "name": named(person)} for person in people], name=name)
"""


@dataclasses.dataclass(frozen=True)
class ApiSkill:
    """One skill. `slots`: kind of value (see offers.py) → the arguments that it gives."""

    name: str
    slots: Mapping[str, tuple[str, ...]]
    wording: str
    code: str
    look: bool = False

    @property
    def app(self) -> str:
        return self.name.partition(".")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(itertools.chain.from_iterable(self.slots.values()))


def _skill(name: str, slots: str, wording: str, code: str, *, look: bool = False) -> ApiSkill:
    """`slots` reads `kind:argument,argument kind:argument …`."""
    pairs = (slot.partition(":") for slot in slots.split())
    return ApiSkill(name, {kind: tuple(names.split(",")) for kind, _, names in pairs}, wording, code, look)


def _change(name: str, slots: str, wording: str, arguments: str, before: str = "") -> ApiSkill:
    """A skill whose code is `before`, then a call of its API with these arguments, which says what was done."""
    call = f"apis.{name}({arguments}, access_token=access)"
    return _skill(name, slots, wording, f'{before}print({call}["message"])')


_SONG = 'song = one(pages(apis.spotify.search_songs, 3, query={title}), title={title})\nsong_id = song["song_id"]\n'
_LIKED = 'song_id = one(pages(apis.spotify.show_liked_songs, access_token=access), title={title})["song_id"]\n'
_PLAYLIST = "playlist = one(pages(apis.spotify.show_playlist_library, access_token=access), title={playlist})\n"
_ARTIST = 'artist_id = one(pages(apis.spotify.search_artists, 3, query={artist}), name={artist})["artist_id"]\n'
_NOTE = (
    'note_id = one(pages(apis.simple_note.search_notes, access_token=access, query={note}), title={note})["note_id"]\n'
)
_PROJECT = 'project_id = one(pages(apis.todoist.show_projects, access_token=access), name={project})["project_id"]\n'
_TODO = (
    _PROJECT + "listed = apis.todoist.show_tasks(project_id=project_id, access_token=access)\n"
    'task_id = one(listed["no_section_tasks"], title={todo})["task_id"]\n'
)
_FRIEND = 'email = called(pages(apis.venmo.search_friends, access_token=access), {person})["email"]\n'
_CONTACT = "contact = called(pages(apis.phone.search_contacts, access_token=access), {person})\n"

SKILLS: Mapping[str, ApiSkill] = {
    skill.name: skill
    for skill in (
        _change("spotify.like_song", "song:title", "like the song {title} on Spotify", "song_id=song_id", _SONG),
        _change(
            "simple_note.create_note",
            "new_note:note text:content",
            "write a note titled {note} that says {content}",
            "title={note}, content={content}",
        ),
        _skill(
            "spotify.show_song",
            "song:title about:fact",
            "tell me the {!fact} of the song {title}",
            _SONG + "song = apis.spotify.show_song(song_id=song_id)\n"
            'song["artist"] = ", ".join(artist["name"] for artist in song["artists"])\n'
            'song["length in seconds"] = song["duration"]\nprint(song[{fact}])',
            look=True,
        ),
        _change(
            "spotify.create_playlist",
            "new_playlist:playlist",
            "make a Spotify playlist named {playlist}",
            "title={playlist}",
        ),
        _skill(
            "venmo.create_transaction",
            "friend:person amount:amount purpose:description",
            "send {!person} {amount} dollars on Venmo with the description {description}",
            _FRIEND + "sent = apis.venmo.create_transaction(receiver_email=email, amount={amount}, "
            'description={description}, access_token=access)\nprint(sent["message"])',
        ),
        _change(
            "spotify.follow_artist",
            "artist:artist",
            "follow the artist {!artist} on Spotify",
            "artist_id=artist_id",
            _ARTIST,
        ),
        _skill(
            "todoist.update_task",
            "todo:todo,project",
            "mark the task {todo} in my Todoist project {project} as done",
            _TODO + "done = apis.todoist.update_task(task_id=task_id, is_completed=True, access_token=access)\n"
            'print(done["message"])',
        ),
        _skill(
            "phone.send_text_message",
            "contact:person text:message",
            "text {!person} the message {message}",
            _CONTACT + 'sent = apis.phone.send_text_message(phone_number=contact["phone_number"], message={message}, '
            'access_token=access)\nprint(sent["message"])',
        ),
        _skill(
            "spotify.add_song_to_playlist",
            "song:title playlist:playlist",
            "put the song {title} on my playlist {playlist}",
            _SONG + _PLAYLIST + "added = apis.spotify.add_song_to_playlist("
            'playlist_id=playlist["playlist_id"], song_id=song_id, access_token=access)\nprint(added["message"])',
        ),
        _skill(
            "venmo.show_venmo_balance",
            "",
            "tell me how much money I have on Venmo",
            'print(apis.venmo.show_venmo_balance(access_token=access)["venmo_balance"])',
            look=True,
        ),
        _skill(
            "phone.search_contacts",
            "contact:person",
            "tell me the phone number of {!person}",
            _CONTACT + 'print(contact["phone_number"])',
            look=True,
        ),
        _skill(
            "todoist.create_task",
            "project:project chore:todo",
            "add the task {todo} to my Todoist project {project}",
            _PROJECT + "made = apis.todoist.create_task(project_id=project_id, title={todo}, access_token=access)\n"
            'print(made["message"])',
        ),
        _change(
            "spotify.unlike_song",
            "liked:title",
            "take back my like of the song {title} on Spotify",
            "song_id=song_id",
            _LIKED,
        ),
        _skill(
            "venmo.create_payment_request",
            "friend:person amount:amount purpose:description",
            "ask {!person} for {amount} dollars on Venmo with the description {description}",
            _FRIEND + "asked = apis.venmo.create_payment_request(user_email=email, amount={amount}, "
            'description={description}, access_token=access)\nprint(asked["message"])',
        ),
        _change("simple_note.delete_note", "note:note", "delete my note {note}", "note_id=note_id", _NOTE),
        _skill(
            "todoist.show_tasks",
            "project:project",
            "tell me how many tasks of my Todoist project {project} are not done yet",
            _PROJECT + "listed = apis.todoist.show_tasks(project_id=project_id, access_token=access)\n"
            'tasks = listed["no_section_tasks"] + [task for part in listed["sections"] for task in part["tasks"]]\n'
            'print(sum(not task["is_completed"] for task in tasks))',
            look=True,
        ),
        _skill(
            "phone.update_alarm",
            "alarm:label,enabled",
            "switch {enabled:on|off} my phone's alarm labelled {label}",
            'alarm_id = one(pages(apis.phone.show_alarms, access_token=access), label={label})["alarm_id"]\n'
            "set_ = apis.phone.update_alarm(alarm_id=alarm_id, enabled={enabled}, access_token=access)\n"
            'print(set_["message"])',
        ),
        _skill(
            "spotify.show_playlist_library",
            "playlist:playlist",
            "tell me how many songs are on my playlist {playlist}",
            _PLAYLIST + 'print(len(playlist["song_ids"]))',
            look=True,
        ),
        _change(
            "spotify.unfollow_artist",
            "followed:artist",
            "stop following the artist {!artist} on Spotify",
            "artist_id=artist_id",
            _ARTIST,
        ),
        _skill(
            "simple_note.add_content_to_note",
            "note:note text:content",
            "append {content} to my note {note}",
            _NOTE + "told = apis.simple_note.add_content_to_note(note_id=note_id, added_content={content}, "
            'append_or_prepend="append", access_token=access)\nprint(told["message"])',
        ),
        _change(
            "spotify.review_song",
            "song:title rating:stars",
            "review the song {title} on Spotify with {stars} stars",
            "song_id=song_id, rating={stars}",
            _SONG,
        ),
        _change(
            "todoist.delete_task",
            "todo:todo,project",
            "delete the task {todo} from my Todoist project {project}",
            "task_id=task_id",
            _TODO,
        ),
    )
}


def code(calls: Sequence[Call]) -> str:
    """The code of these skills as one block of Python. Raises ValueError for a call of no skill."""
    parts = [_PROLOGUE]
    for call in calls:
        if call.name == ENDING:
            if not call.arguments.keys() <= {"answer"}:
                raise ValueError(f"{ENDING} takes an answer alone, or nothing")
            given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            parts.append(f"apis.supervisor.complete_task({given})")
            continue
        skill = SKILLS.get(call.name)
        if skill is None:
            raise ValueError(f"there is no skill {call.name!r:.100}")
        values = call.arguments
        if values.keys() != set(skill.parameters) or not all(isinstance(v, (str, int, float)) for v in values.values()):
            raise ValueError(f"{skill.name} takes {', '.join(skill.parameters) or 'nothing'}, each text or a number")
        body = _fill(skill.code, values)
        parts.append(f'access = token("{skill.app}")\n{body}')
    return "\n".join(parts)


def documentation() -> tuple[Mapping[str, Any], ...]:
    """The skills as tools in OpenAI function format, the ending last."""
    documented = [_function(skill.name, skill.wording, skill.parameters) for skill in SKILLS.values()]
    return (*documented, _function(ENDING, "complete the task, with the answer if it asks for one", ("answer",)))


def popularity() -> Mapping[str, float]:
    """Skill → its weight for an unguided explorer, by its position in the table."""
    return {name: rank**-POPULARITY for rank, name in enumerate((*SKILLS, ENDING), start=1)}


def neighbours(name: str) -> tuple[str, ...]:
    """The other skills of the same app. Raises KeyError for an unknown one."""
    if name == ENDING:
        return ()
    app = SKILLS[name].app
    return tuple(other.name for other in SKILLS.values() if other.app == app and other.name != name)


def _fill(text: str, given: Mapping[str, Any]) -> str:
    return re.sub(r"{(\w+)}", lambda slot: repr(given[slot[1]]), text)


def _function(name: str, description: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {parameter: {} for parameter in parameters}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


_JOINER = ", then "
_SLOT = re.compile(r"{(!?)(\w+)(?::([^|}]*)\|([^}]*))?}")


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that the steps fulfil; None where they cannot be worded.

    A task ends by completing it, once. A look-up is worded where it stands last and its value is the answer.
    """
    done = [(call, step.observation) for step in steps for call in step.action.calls]
    if len(done) < 2 or len(done) != len(steps) or not all(observation.ok for _, observation in done):
        return None
    (*before, (last, observed)), (ending, _) = done[:-1], done[-1]
    if ending.name != ENDING or any(call.name not in SKILLS for call, _ in done[:-1]):
        return None
    if any(SKILLS[call.name].look for call, _ in before):
        return None
    if ending.arguments != ({"answer": observed.text} if SKILLS[last.name].look else {}):
        return None
    if SKILLS[last.name].look and not (observed.text.strip() and "\n" not in observed.text):
        return None
    clauses = [_wording(call) for call, _ in done[:-1]]
    if None in clauses or len(set(clauses)) < len(clauses):
        return None
    text = _JOINER.join(filter(None, clauses))
    return f"{text[0].upper()}{text[1:]}."


def _wording(call: Call) -> str | None:
    skill = SKILLS[call.name]
    if call.arguments.keys() != set(skill.parameters):
        return None
    return _SLOT.sub(lambda slot: _value_text(call.arguments[slot[2]], slot), skill.wording)


def _value_text(value: Any, slot: re.Match[str]) -> str:
    bare, _, yes, no = slot.groups()
    if yes or no:
        return str(yes if value else no)
    if isinstance(value, str) and (bare or not re.search(r"['\\\x00-\x1f]", value)):
        return value if bare else f"'{value}'"
    return json.dumps(value, ensure_ascii=False)
