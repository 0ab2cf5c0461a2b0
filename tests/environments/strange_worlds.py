"""Worlds as strangers write them: odd names, hardly any checks. None of them says what its parameters' values are."""

from __future__ import annotations

import dataclasses
import sqlite3

from environments.tools import ToolEnvironment

BOOKS = {"middlemarch": "Eliot", "emma": "Austen", "dracula": "Stoker"}
READERS = ["ann", "bert", "cleo"]


def lend(world, book: str, reader: str):
    world["loans"][book] = reader


def reserve(world, book: str, reader: str):
    world["waiting"].setdefault(book, []).append(reader)


def library():
    """Books are keys, and nothing is checked."""
    setups = [{"books": BOOKS, "readers": READERS, "loans": {book: "ann"}, "waiting": {}} for book in BOOKS]
    return ToolEnvironment("library", [lend, reserve], dict, setups)


def transfer(w, src: str, dst: str, amt: float):
    if w["balances"][src] < amt:
        raise RuntimeError("not enough")
    w["balances"][src] -= amt
    w["balances"][dst] += amt


def freeze(w, acct: str, reason: str):
    w["frozen"][acct] = reason


def balance(w, acct: str):
    return w["balances"][acct]


def bank():
    """No name of a parameter is in the state, but two tools look accounts up."""
    setups = [{"balances": {"alice": 50 + n, "bob": 80, "dave": 10}, "frozen": {}} for n in range(3)]
    return ToolEnvironment("bank", [transfer, freeze, balance], lambda setup: setup, setups)


def favour(w, title: str):
    if w["favourites"].pop(title, None) is None:
        w["favourites"][title] = {"stars": 1}


def favourites():
    """A tool adds what is not there, and removes what is."""
    setups = [{"favourites": {"emma": {"stars": 1}, "dracula": {"stars": 1}}}]
    return ToolEnvironment("favourites", [favour], lambda setup: setup, setups)


class Clinic:
    def __init__(self, setup):
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.execute("create table patients (id integer primary key, name text)")
        self.db.execute("create table visits (patient integer, slot text)")
        self.db.executemany("insert into patients values (?, ?)", setup["patients"])

    def state(self):
        return {table: self.db.execute(f"select * from {table}").fetchall() for table in ("patients", "visits")}


def book(clinic, patient_id: int, slot: str):
    clinic.db.execute("insert into visits values (?, ?)", (patient_id, slot))


def register(clinic, name: str) -> int:
    return clinic.db.execute("insert into patients (name) values (?)", (name,)).lastrowid


def cancel(clinic, patient_id: int):
    clinic.db.execute("delete from visits where patient = ?", (patient_id,))


def find_patient(clinic, name: str):
    return clinic.db.execute("select * from patients where name = ?", (name,)).fetchall()


def clinic():
    """A database whose state is rows without names; a world that cannot be copied."""
    patients = [(11, "Iris Hall"), (12, "Omar Said"), (13, "Lea Brandt")]
    setups = [{"patients": patients[:count]} for count in (2, 3)]
    return ToolEnvironment("clinic", [book, register, cancel, find_patient], Clinic, setups)


@dataclasses.dataclass
class Store:
    columns: dict
    log: list = dataclasses.field(default_factory=list)

    def state(self):
        frame = {name: {str(row): value for row, value in enumerate(cells)} for name, cells in self.columns.items()}
        return {"stock": frame, "log": self.log}

    def pick(self, sku: str, n: int):
        if sku in self.columns["sku"]:
            self.columns["qty"][self.columns["sku"].index(sku)] -= n
        self.log.append(["out", sku, n])

    def move(self, sku: str, to: str):
        self.columns["bin"][self.columns["sku"].index(sku)] = to

    def scan(self, code, spot):
        return self.columns["missing"][code]


def store():
    """A data frame as its own `to_dict` writes it, and a tool that always raises."""
    columns = {"sku": ["BOLT-8", "NUT-8", "HINGE-2"], "qty": [120, 80, 14], "bin": ["A1", "A2", "B4"]}
    return ToolEnvironment("store", [Store.pick, Store.move, Store.scan], lambda setup: Store(setup["columns"]),
                           [{"columns": columns}])  # fmt: skip


TICKETS = [
    {"id": 101, "title": "Printer on fire", "assignee": "moss"},
    {"id": 102, "title": "Cannot log in", "assignee": None},
    {"id": 103, "title": "New mouse", "assignee": "roy"},
]
STAFF = [{"login": "moss"}, {"login": "roy"}, {"login": "jen"}]


def assign(db, ticket_id: int, to: str):
    ticket = next((one for one in db["tickets"] if one["id"] == ticket_id), None)
    if ticket is None:
        return {"error": "no such ticket"}
    ticket["assignee"] = to
    return {"ok": True}


def hire(db, login: str):
    if login in [person["login"] for person in db["staff"]]:
        return {"error": "works here already"}
    db["staff"].append({"login": login})
    return {"ok": True}


def tickets():
    """Records in lists, and errors that are returned."""
    return ToolEnvironment("tickets", [assign, hire], dict, [{"tickets": TICKETS, "staff": STAFF}])
