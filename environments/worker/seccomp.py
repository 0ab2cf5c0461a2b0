"""The filter of a child's system calls (seccomp). It is permanent, and binds every process that the child starts.

It refuses the calls of a list: those that make namespaces, mounts, memory and objects that no limit counts, and those
that reach other processes. It also refuses calls that are newer than the list.
"""

import configparser
import errno
import functools
import os
import struct
import sys
from pathlib import Path

from . import kernel

_Numbers = tuple[int | None, ...]  # of a call on x86-64 and on 64-bit ARM; None if there is none


def _section(name: str) -> dict[str, _Numbers]:
    """The calls of a section of seccomp.txt."""
    lists = configparser.ConfigParser()
    lists.read_string(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
    return {call: tuple(int(raw) if raw != "-" else None for raw in line.split()) for call, line in lists[name].items()}


_CALLS, _AMONG_OTHERS, _OF_ITSELF, _SOCKETS, _MARKS, _ATTRIBUTES, _OTHERS = map(
    _section, ("refused", "refused among others", "of itself", "sockets", "marks", "attributes", "others")
)
# The highest call number that the list takes into account.
_LAST = 462
# Flags of clone: every kind of namespace, and a process that is a sibling of its creator.
_NEW = 0x7E020000 | 0x8000
# Commands of fcntl for locks of ranges: they take unbounded memory, and a child shares its files with nobody.
_LOCKS = (6, 7, 37, 38)
# Leases, which make whoever opens the file wait, and notices of what others do in a folder.
_WATCHES = (1024, 1026)
_PIPE_SIZE, _OWNERS, _IOCTL_OWNERS = 1031, (8, 15), (0x8901, 0x8902)
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_FLAGS = 1, 1, 5, 0o2004000
_DUMPABLE = 4

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_LOAD, _AND, _EQUAL, _GREATER, _SET, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4
# The filter skips calls in groups of this size: the kernel runs it for every number when it is installed.
_GROUP = 10
_SECCOMP = {"x86_64": 317, "aarch64": 277}


def install(enclosed: bool, alone: bool, marks: bool, own_pid: int = 0) -> None:
    """Installs the filter; needs NO_NEW_PRIVS. Raises OSError if the kernel or the architecture has none."""
    machine = os.uname().machine
    kernel.seccomp(_SECCOMP[machine], _SET_MODE_FILTER, _SPEC_ALLOW, program(machine, enclosed, alone, marks, own_pid))


@functools.lru_cache(maxsize=4)
def program(machine: str, enclosed: bool, alone: bool, marks: bool, own_pid: int = 0) -> bytes:
    """The filter: instructions of eight bytes. Raises OSError if the architecture has none.

    `enclosed`: no sockets, and no locks, because it shares nothing. `alone`: the process ids are its own.
    `marks`: mode, owner, times and attributes of files may be changed. `own_pid`: the process id, unless it is `alone`.
    """
    if sys.platform != "linux" or machine not in _ARCHITECTURES or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"no filter of system calls for {sys.platform} on {machine}")
    architecture, column = _ARCHITECTURES[machine]
    refusal, unknown, success = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS, _ERRNO
    code = [_load(4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, unknown)]
    # The calls of x86-64's second interface (x32) have numbers beyond the last, too.
    code += [_load(0), (_GREATER, 0, 1, _LAST), (_RETURN, 0, 0, unknown)]
    verdicts: dict[_Numbers, int] = dict.fromkeys(_CALLS.values(), refusal)
    # A read that does not wait reveals whether it would have to; without that call, libraries use the plain one.
    verdicts |= {_OTHERS["clone3"]: unknown, _OTHERS["preadv2"]: unknown, _OTHERS["fadvise"]: success}
    if enclosed:
        verdicts |= dict.fromkeys(_SOCKETS.values(), refusal) | {_OTHERS["flock"]: success}
    if not alone:
        verdicts |= dict.fromkeys(_AMONG_OTHERS.values(), refusal)
    if not marks:
        verdicts |= dict.fromkeys(_MARKS.values(), success)
        verdicts |= dict.fromkeys(_ATTRIBUTES.values(), _ERRNO | errno.EOPNOTSUPP)
    bodies = {numbers[column]: [(_RETURN, 0, 0, verdict)] for numbers, verdict in verdicts.items()}
    bodies |= {numbers[column]: body for numbers, body in _conditions(enclosed, alone, own_pid, refusal, success)}
    branches = sorted((number, body) for number, body in bodies.items() if number is not None)
    for start in range(0, len(branches), _GROUP):
        group = branches[start : start + _GROUP]
        inner = [step for number, body in group for step in [(_EQUAL, 0, len(body), number), *body]]
        code += [(_GREATER, len(inner), 0, group[-1][0]), *inner]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


_Instruction = tuple[int, int, int, int]


def _conditions(
    enclosed: bool, alone: bool, own_pid: int, refusal: int, success: int
) -> list[tuple[_Numbers, list[_Instruction]]]:
    """The parts of the filter for calls that depend on an argument; each ends in a verdict."""
    allow = (_RETURN, 0, 0, _ALLOW)
    owners = {} if alone else dict.fromkeys(_OWNERS, refusal)
    locks = dict.fromkeys(_LOCKS, success) if enclosed else {}
    commands = locks | dict.fromkeys((*_WATCHES, _PIPE_SIZE), refusal) | owners
    conditions: list[tuple[_Numbers, list[_Instruction]]] = [
        (_OTHERS["clone"], [_argument(0), (_SET, 0, 1, _NEW), (_RETURN, 0, 0, refusal), allow]),
        (_OTHERS["fcntl"], [*_cases(1, commands), allow]),
        # A child's memory stays private, even if the child wants otherwise.
        (_OTHERS["prctl"], [*_cases(0, {_DUMPABLE: refusal}), allow]),
    ]
    if not alone:
        conditions.append((_OTHERS["ioctl"], [*_cases(1, dict.fromkeys(_IOCTL_OWNERS, refusal)), allow]))
        itself = {0: _ALLOW, own_pid: _ALLOW, -own_pid & 0xFFFFFFFF: _ALLOW}
        conditions += [(numbers, [*_cases(0, itself), (_RETURN, 0, 0, refusal)]) for numbers in _OF_ITSELF.values()]
    if enclosed:
        # Not datagrams: such a socket can be disconnected and can then send to any name.
        kinds = _cases(1, {_SOCK_STREAM: _ALLOW, _SOCK_SEQPACKET: _ALLOW}, mask=~_SOCK_FLAGS & 0xFFFFFFFF)
        body = [_argument(0), (_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, refusal), *kinds, (_RETURN, 0, 0, refusal)]
        conditions.append((_OTHERS["socketpair"], body))
    return conditions


def _cases(index: int, verdicts: dict[int, int], mask: int = 0) -> list[_Instruction]:
    """Verdicts by the low half of an argument: the arguments that are checked have 32 bits."""
    code = [_argument(index)] + ([(_AND, 0, 0, mask)] if mask else [])
    for value, verdict in verdicts.items():
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, verdict)]
    return code


def _load(offset: int) -> _Instruction:
    return (_LOAD, 0, 0, offset)


def _argument(index: int) -> _Instruction:
    return _load(16 + 8 * index)
