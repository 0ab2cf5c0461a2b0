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

_CallNumbers = tuple[int | None, ...]  # of a call on x86-64 and on 64-bit ARM; None if there is none


def _read_section(section: str) -> dict[str, _CallNumbers]:
    """The calls of a section of seccomp.txt."""
    parser = configparser.ConfigParser()
    parser.read_string(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
    return {call: tuple(int(n) if n != "-" else None for n in line.split()) for call, line in parser[section].items()}


_REFUSED_CALLS, _SHARED_CALLS, _SELF_CALLS, _SOCKET_CALLS, _CHMOD_CALLS, _ATTRIBUTE_CALLS, _OTHER_CALLS = map(
    _read_section, ("refused", "refused among others", "of itself", "sockets", "marks", "attributes", "others")
)
# The highest call number that the list takes into account.
_MAX_CALL_NUMBER = 462
# Flags of clone: every kind of namespace, and a process that is a sibling of its creator.
_NAMESPACE_FLAGS = 0x7E020000 | 0x8000
# Commands of fcntl for locks of ranges: they take unbounded memory, and a child shares its files with nobody.
_LOCK_COMMANDS = (6, 7, 37, 38)
# Leases, which make whoever opens the file wait, and notices of what others do in a folder.
_WATCH_COMMANDS = (1024, 1026)
_PIPE_SIZE_COMMAND, _OWNER_COMMANDS, _IOCTL_OWNERS = 1031, (8, 15), (0x8901, 0x8902)
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_FLAGS = 1, 1, 5, 0o2004000
_SET_DUMPABLE = 4

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_LOAD, _AND, _EQUAL, _GREATER, _SET, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_MODE_FILTER, _SPEC_ALLOW = 1, 4
# The filter skips calls in groups of this size: the kernel runs it for every number when it is installed.
_GROUP_SIZE = 10
_SECCOMP_NR = {"x86_64": 317, "aarch64": 277}


def install_filter(enclosed: bool, own_pids: bool, can_chmod: bool, own_pid: int = 0) -> None:
    """Installs the filter; needs NO_NEW_PRIVS. Raises OSError if the kernel or the architecture has none."""
    arch = os.uname().machine
    kernel.seccomp(_SECCOMP_NR[arch], _MODE_FILTER, _SPEC_ALLOW, program(arch, enclosed, own_pids, can_chmod, own_pid))


@functools.lru_cache(maxsize=4)
def program(machine: str, enclosed: bool, own_pids: bool, can_chmod: bool, own_pid: int = 0) -> bytes:
    """The filter: instructions of eight bytes. Raises OSError if the architecture has none.

    `enclosed`: no sockets, and no locks, because it shares nothing. `own_pids`: the process ids are its own.
    `can_chmod`: mode, owner, times and attributes of files may be changed. `own_pid`: the process id, needed without
    `own_pids`.
    """
    if sys.platform != "linux" or machine not in _ARCHITECTURES or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"no filter of system calls for {sys.platform} on {machine}")
    architecture, column = _ARCHITECTURES[machine]
    refusal, unknown, success = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS, _ERRNO
    instructions = [_compile_load(4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, unknown)]
    # The calls of x86-64's second interface (x32) have numbers beyond the last, too.
    instructions += [_compile_load(0), (_GREATER, 0, 1, _MAX_CALL_NUMBER), (_RETURN, 0, 0, unknown)]
    verdicts: dict[_CallNumbers, int] = dict.fromkeys(_REFUSED_CALLS.values(), refusal)
    # A read that does not wait reveals whether it would have to; without that call, libraries use the plain one.
    verdicts |= {_OTHER_CALLS["clone3"]: unknown, _OTHER_CALLS["preadv2"]: unknown, _OTHER_CALLS["fadvise"]: success}
    if enclosed:
        verdicts |= dict.fromkeys(_SOCKET_CALLS.values(), refusal) | {_OTHER_CALLS["flock"]: success}
    if not own_pids:
        verdicts |= dict.fromkeys(_SHARED_CALLS.values(), refusal)
    if not can_chmod:
        verdicts |= dict.fromkeys(_CHMOD_CALLS.values(), success)
        verdicts |= dict.fromkeys(_ATTRIBUTE_CALLS.values(), _ERRNO | errno.EOPNOTSUPP)
    bodies = {numbers[column]: [(_RETURN, 0, 0, verdict)] for numbers, verdict in verdicts.items()}
    bodies |= {numbers[column]: body for numbers, body in _conditions(enclosed, own_pids, own_pid, refusal, success)}
    branches = sorted((number, body) for number, body in bodies.items() if number is not None)
    for group_start in range(0, len(branches), _GROUP_SIZE):
        group = branches[group_start : group_start + _GROUP_SIZE]
        group_code = [instruction for number, body in group for instruction in [(_EQUAL, 0, len(body), number), *body]]
        instructions += [(_GREATER, len(group_code), 0, group[-1][0]), *group_code]
    instructions.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


_Instruction = tuple[int, int, int, int]


def _conditions(
    enclosed: bool, own_pids: bool, own_pid: int, refusal: int, success: int
) -> list[tuple[_CallNumbers, list[_Instruction]]]:
    """The parts of the filter for calls that depend on an argument; each ends in a verdict."""
    allow = (_RETURN, 0, 0, _ALLOW)
    owner_verdicts = {} if own_pids else dict.fromkeys(_OWNER_COMMANDS, refusal)
    lock_verdicts = dict.fromkeys(_LOCK_COMMANDS, success) if enclosed else {}
    command_verdicts = lock_verdicts | dict.fromkeys((*_WATCH_COMMANDS, _PIPE_SIZE_COMMAND), refusal) | owner_verdicts
    conditions: list[tuple[_CallNumbers, list[_Instruction]]] = [
        (_OTHER_CALLS["clone"], [_argument(0), (_SET, 0, 1, _NAMESPACE_FLAGS), (_RETURN, 0, 0, refusal), allow]),
        (_OTHER_CALLS["fcntl"], [*_cases(1, command_verdicts), allow]),
        # A child's memory stays private, even if the child wants otherwise.
        (_OTHER_CALLS["prctl"], [*_cases(0, {_SET_DUMPABLE: refusal}), allow]),
    ]
    if not own_pids:
        conditions.append((_OTHER_CALLS["ioctl"], [*_cases(1, dict.fromkeys(_IOCTL_OWNERS, refusal)), allow]))
        verdicts = {0: _ALLOW, own_pid: _ALLOW, -own_pid & 0xFFFFFFFF: _ALLOW}
        conditions += [(numbers, [*_cases(0, verdicts), (_RETURN, 0, 0, refusal)]) for numbers in _SELF_CALLS.values()]
    if enclosed:
        # Not datagrams: such a socket can be disconnected and can then send to any name.
        kind_cases = _cases(1, {_SOCK_STREAM: _ALLOW, _SOCK_SEQPACKET: _ALLOW}, mask=~_SOCK_FLAGS & 0xFFFFFFFF)
        body = [_argument(0), (_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, refusal), *kind_cases, (_RETURN, 0, 0, refusal)]
        conditions.append((_OTHER_CALLS["socketpair"], body))
    return conditions


def _cases(argument_index: int, verdicts: dict[int, int], mask: int = 0) -> list[_Instruction]:
    """Verdicts by the low half of an argument: the arguments that are checked have 32 bits."""
    instructions = [_argument(argument_index)] + ([(_AND, 0, 0, mask)] if mask else [])
    for argument_value, verdict in verdicts.items():
        instructions += [(_EQUAL, 0, 1, argument_value), (_RETURN, 0, 0, verdict)]
    return instructions


def _compile_load(offset: int) -> _Instruction:
    return (_LOAD, 0, 0, offset)


def _argument(argument_index: int) -> _Instruction:
    return _compile_load(16 + 8 * argument_index)
