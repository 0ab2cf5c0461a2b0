"""Drafts written by hand, of a kind and of a world each: bad ones, and good ones of the same shapes.

A solution is written as calls with their values, apart by semicolons.
"""

from __future__ import annotations

import base64
import codecs


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


READ, MOVE = "files_read report; finish amber", "files_move report taxes; finish"
LOOK_AND_MOVE = "files_move report taxes; files_read report; finish amber"
DAY = "show milk; finish friday"
# Kind of a structural fault, world, solution, queries.
STRUCTURAL: list[tuple[str, str, str, list[str]]] = [
    ("unasked", "desk", LOOK_AND_MOVE, [
        "move report to taxes",
        "Please put the report into the taxes folder.",
        "Could you move report to taxes?",
        "I want report to be in taxes from now on.",
    ]),
    ("unasked", "desk", "calendar_day lunch; calendar_cancel lunch; finish friday", [
        "Call off lunch, please: cancel it",
    ]),
    ("unasked", "desk", "files_read report; notes_add todo amber; finish amber", [
        "note text of report as todo",
        "Write what the report says into a new note, todo",
    ]),
    ("unasked", "desk", "contacts_find ana; mail_send box11 plum; finish box11", ["mail plum to ana"]),
    ("unasked", "desk", "files_read report; files_rename report invoice; finish amber", [
        "Give report the name invoice",
    ]),
    ("unasked", "todo", "tick bread; show bread; finish monday", ["tick bread", "Would you mark bread as done?"]),
    ("unasked", "todo", "show tea; drop tea; finish sunday", ["Take tea off the list"]),
    ("not given", "desk", MOVE, [
        "move report to taxes, then tell the text of report",
        "Move report to taxes and tell me what it says.",
        "What does memo say? And move report to taxes.",
        "Move report to taxes, then let me know its text",
        "Move report to taxes. How many notes are there?",
        "I'd like to know what the memo says; also, report goes to taxes.",
        "Move report to taxes. Is lunch on friday?", "Move report to taxes and report back what it says.",
        "Move report to taxes and show the day of lunch", "Move report to taxes. Answer: the text of memo",
    ]),
    ("not given", "desk", "contacts_find ana; mail_send box11 plum; finish", [
        "mail plum to ana, then tell the day of lunch",
    ]),
    ("not given", "todo", "tick bread; finish", [
        "tick bread, then tell what show with title milk says",
        "Tick bread and tell me the day of milk",
        "Tick bread. When is milk due?",
    ]),
    ("hinted", "desk", READ, [
        f"tell the text of report, {hint}"
        for hint in (
            "rebma backwards", "a-m-b-e-r", "A M B E R", "which is a, m, b, e and r", "am ber", "аmbеr", "4mb3r",
            "ambers", "(AMBER)", f"base64 {coded('amber')}", f"{coded('Amber').rstrip('=')}",
            coded("the text is amber"),
            f"rot13 {codecs.encode('amber', 'rot13')}", "dpehu", "616d626572", "1-13-2-5-18",
            "97 109 98 101 114", ".- -- -... . .-.", "alfa mike bravo echo romeo",
            "%61%6D%62%65%72", coded("rebma"),
            "mbr without its vowels", "ebmar, mixed", "0x61 0x6d 0x62 0x65 0x72",
            "znvyore, that is nzore", "a.m.b.e.r", "ɹǝqɯɐ",
        )
    ]),
    ("hinted", "todo", DAY, [
        "On which day is milk, yadirf?", "What day is milk due: f r i d a y?", "The day of milk, please, is it fridays",
        "Tell me the day of milk (sevqnl)", f"Tell me the day of milk ({coded('friday')})",
    ]),
    ("raw calls", "desk", MOVE, [
        "files_move(file=report, folder=taxes)",
        'Do this: {"name": "files_move", "arguments": {"file": "report", "folder": "taxes"}}',
        "desk.move('report', 'taxes')",
        "Please call files_move with report and taxes.",
        "Run ```files.move(report, taxes)```",
        "move(report, taxes)",
        "Move with file=report and folder=taxes",
        'To do: move {"file": "report", "folder": "taxes"}',
        '<function=files_move>{"file": "report"} to taxes',
        "Use FilesMove on report, taxes",
        "move[report, taxes]", "Do `move report taxes`", "move file:report folder:taxes",
        "1. files-move report taxes 2. finish()",
    ]),
    ("raw calls", "todo", "move bread friday; finish", [
        'move(title="bread", day="friday")', "move (bread, friday)",
        '{"tool": "move", "title": "bread", "day": "friday"}',
        "move --title bread --day friday", "world.move(bread, friday)",
    ]),
    ("another tool", "todo", "move bread friday; finish", ["tick bread on friday", "drop bread on friday"]),
    ("another tool", "todo", "drop tea; finish", ["tick tea", "Please show tea!", "Could you tick off tea?"]),
    ("another tool", "todo", "tick bread; finish", ["move bread", "Please drop bread"]),
    ("another tool", "desk", MOVE, ["delete report in taxes"]),
    ("false condition", "desk", "calendar_cancel lunch; finish", [
        "If lunch is on monday, cancel it", "cancel lunch if it is on monday", "Unless lunch is on friday, cancel it",
        "If lunch is not on friday, cancel it.", "In case there are more than 5 mails, cancel lunch",
        "if lunch is on monday cancel it otherwise postpone it to sunday",
    ]),
    ("false condition", "desk", "files_delete report; finish", [
        "If the report says plum, delete it.", "If there are more than 5 mails, delete report",
        "Delete report if it is in taxes",
        "If there are no notes, delete report", "Delete report if there are at least three contacts.",
        "If there is a file called thesis, delete report", "If the text of report is plum, delete it",
        "Delete report if the number of mails is more than 5", "If the folder taxes does not exist, delete report",
        "Delete report if budget is not a file", "Should report be in taxes, delete it",
        "delete report if it says amber and budget says plum", "Delete report unless there are notes",
    ]),
    ("false condition", "todo", "tick bread; finish", [
        "If milk is on monday, tick bread", "Tick bread if there are more than ten items",
        "If tea is done, tick bread too",
    ]),
]  # fmt: skip
ROWS = [(kind, name, solution, query) for kind, name, solution, queries in STRUCTURAL for query in queries]

GOOD = [
    ("desk", LOOK_AND_MOVE, "Move report to taxes and tell me what it says"),
    ("desk", LOOK_AND_MOVE, "What does the report say? Afterwards, move it to taxes."),
    ("desk", "files_move report taxes; files_read report; finish amber", "Move report to taxes; read it, too."),
    ("desk", READ, "tell the text of report"),
    ("desk", READ, "The text of the report, please"),
    ("desk", MOVE, "Could you move report to taxes?"),
    ("desk", MOVE, "Would you please move the report (the old one) to taxes? Let me know when it is done."),
    ("desk", MOVE, "report: to the folder taxes, please move it there"),
    ("desk", MOVE, "Move report to taxes, do you mind?"),
    ("desk", MOVE, "Move report to taxes. Thanks! Tell me if anything goes wrong."),
    ("desk", MOVE, "Move report (not budget) to taxes"),
    ("desk", MOVE, "file: report; new folder: taxes"),
    ("desk", "files_find budget; files_move report archive; finish", "Where is budget? Put report there too."),
    ("desk", "files_find report; files_delete report; finish",
     "if report is in drafts delete it otherwise move it to taxes"),
    ("desk", "contacts_find ana; mail_send box11 plum; finish", "Could you show ana the word plum, in a mail?"),
    ("desk", "notes_read memo; contacts_find bob; mail_send box12 pearl; finish", "Tell bob what the memo says"),
    ("desk", "calendar_cancel lunch; finish", "If lunch is too early, cancel it"),
    ("desk", "contacts_find ana; mail_send box11 plum; finish", "Tell ana plum, by mail"),
    ("desk", "files_read report; notes_add todo amber; finish", "Let a new note, todo, say what the report says"),
    ("desk", "files_read report; notes_add todo amber; finish", "What report says should be in a new note todo"),
    ("desk", "calendar_day lunch; calendar_cancel lunch; finish", "If lunch is on friday, cancel it"),
    ("desk", "calendar_day lunch; calendar_cancel lunch; finish", "Is lunch on friday? If so, cancel it."),
    ("desk", "calendar_day lunch; calendar_move lunch sunday; finish",
     "If lunch is on friday move it to sunday, otherwise cancel it"),
    ("desk", "calendar_cancel lunch; finish", "If there are fewer than 5 mails, cancel lunch"),
    ("desk", "calendar_cancel lunch; finish", "Cancel lunch unless it is on monday"),
    ("desk", "calendar_cancel lunch; finish", "cancel lunch"),
    ("todo", "tick bread; show bread; finish monday", "Tick bread, and on which day was it?"),
    ("todo", DAY, "What is the day of milk?"),
    ("todo", "tick bread; finish", "Please mark bread as done"),
    ("todo", "move bread friday; finish", "Could bread be moved to friday?"),
    ("todo", "move bread friday; finish", "Put bread on friday instead"),
    ("todo", "add jam tuesday; finish", "I need jam on tuesday, add it"),
    ("todo", "drop tea; finish", "If tea is not done, drop it"),
    ("todo", "drop tea; finish", "Take tea off the list"),
]  # fmt: skip

# Drafts of the same kinds that were written after the rules.
HELD_OUT: list[tuple[str, str, str, list[str]]] = [
    ("unasked", "desk", "files_read budget; files_copy budget taxes; finish bread", [
        "copy budget to taxes", "Have a copy of budget in taxes", "budget is wanted in taxes as a copy",
    ]),
    ("unasked", "desk", "calendar_day lunch; mail_flag ana; finish friday", ["Flag mail from ana before lunch"]),
    ("unasked", "todo", "add jam tuesday; show jam; finish tuesday", ["Jam has to be added, for later this week"]),
    ("unasked", "todo", "show tea; tick tea; finish sunday", ["tick tea", "Tea? Bought it. Mark it as done."]),
    ("not given", "desk", "mail_flag ana; finish", [
        "Flag the mail from ana, then name the day of lunch", "Flag ana's mail. What address has bob?",
        "Flag mail from ana and inform me about its text", "Which text does ana's mail have? Flag it.",
        "After flagging ana's mail, reply to me with what it says", "Flag mail from ana. I'm curious what is in it.",
    ]),
    ("not given", "todo", "drop tea; finish", [
        "Drop tea and say on which day it was", "drop tea; is milk done already?",
    ]),
    ("hinted", "desk", "calendar_day lunch; finish friday", [
        f"Which day is lunch? {hint}"
        for hint in (
            "YADIRF", "f_r_i_d_a_y", "Fri day", "frıday", "ƒriday", "FR1DAY", "six letters: f, r, i, d, a, y", "lxojge",
            "RnJpZGF5", "46 72 69 64 61 79", "6-18-9-4-1-25", "Foxtrot Romeo India Delta Alpha Yankee",
            "nilfheim? fridays!",
            "the day after thursday", "It begins with fri",
        )
    ]),
    ("hinted", "todo", DAY, ["When is milk due? FRIDAYS", "When is milk due? y-a-d-i-r-f", "When is milk due? iulgdb"]),
    ("raw calls", "desk", "notes_add todo plum; finish", [
        "notes_add todo plum", 'notes.add(note="todo", text="plum")',
        '{"function": "notes_add", "input": ["todo", "plum"]}',
        "add(todo, plum) among the notes", "run NotesAdd for todo: plum", "Execute: notes_add --note todo --text plum",
        "note = todo; text = plum; add", "POST /notes/add {note: todo, text: plum}",
    ]),
    ("raw calls", "todo", "add jam tuesday; finish", [
        "add(jam, tuesday)", "add {title: jam, day: tuesday}", "add jam day=tuesday",
    ]),
    ("another tool", "todo", "show tea; move bread sunday; finish", ["tick bread, on the day of tea"]),
    ("another tool", "todo", "add jam tuesday; finish", ["Drop jam tuesday", "tick jam for tuesday"]),
    ("false condition", "desk", "notes_delete memo; finish", [
        "Delete note memo if it reads plum", "If bob's address is box11, delete note memo",
        "In case lunch is on sunday, delete note memo",
        "When there are fewer than two files, delete note memo", "If budget is in taxes, delete note memo",
        "If memo says nothing, delete note memo", "Provided there are ten contacts, delete note memo",
        "Delete the note memo unless budget is in archive", "If neither ana nor bob is a contact, delete note memo",
    ]),
    ("false condition", "todo", "drop tea; finish", [
        "If tea is done, drop it", "Drop tea if it is on saturday", "Should there be fewer than three items, drop tea",
    ]),
]  # fmt: skip

# What words alone do not settle: a judge and attempts on the query alone are left for it.
BY_DESIGN: dict[str, list[tuple[str, str, str]]] = {
    "negation": [
        ("desk", MOVE, "Do not move report to taxes"),
        ("desk", "files_delete report; finish", "Whatever you do, never delete report"),
        ("todo", "tick bread; finish", "Do not tick bread"),
    ],
    "more asked than done": [
        ("desk", MOVE, "move report to taxes, then delete note memo"),
        ("todo", "tick bread; finish", "Tick bread and drop tea"),
    ],
    "other verbs": [
        ("desk", MOVE, "Shred report, then frame taxes"),
        ("desk", "calendar_cancel lunch; finish", "Enjoy lunch at the calendar"),
        ("todo", "tick bread; finish", "Eat the item bread"),
    ],
}
# How many of them are accepted, and of the held-out ones.
ACCEPTED_HELD_OUT = {
    ("unasked", "todo"): 1,
    ("hinted", "desk"): 2,
    ("another tool", "todo"): 1,
    ("false condition", "desk"): 1,
}
ACCEPTED = {"negation": 3, "more asked than done": 2, "other verbs": 3}
