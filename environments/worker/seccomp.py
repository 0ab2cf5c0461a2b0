"""The filter of a child's system calls (seccomp), in force for good and for all processes that it starts.

It refuses the calls of a list: those that make namespaces, mounts, memory and objects that no limit counts, and those
that reach other processes. It also refuses calls that are newer than the list.
"""

import dataclasses
import errno
import functools
import os
import struct
import sys

from . import kernel

_Numbers = tuple[int | None, int | None]

# Number of each refused call on x86-64 and on 64-bit ARM; None where there is none. From 424 on they are the same.
_CALLS: dict[str, _Numbers] = {
    # Namespaces, mounts, the machine.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "acct": (163, 89), "syslog": (103, 116),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "vhangup": (153, 58), "uselib": (134, None), "lookup_dcookie": (212, 18),
    # Files by number instead of by path, and calls that reveal how others use a file.
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "inotify_init": (253, None), "inotify_init1": (294, 26),
    # Memory and objects that no limit of a process counts, or that outlive it.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0), "io_submit": (209, 2),
    # Which pages of a file are in memory: a later episode could find out what this one read.
    "cachestat": (451, 451), "mincore": (27, 232), "readahead": (187, 213),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
# Refused where process ids are shared with others. Without new sessions and groups one signal ends all of a child.
_AMONG_OTHERS: dict[str, _Numbers] = {
    "setsid": (112, 157), "setpgid": (109, 154), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122),
}  # fmt: skip
# The first argument of these calls must be the process itself, or 0.
_OF_ITSELF: dict[str, _Numbers] = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261),
}  # fmt: skip
# A pair of connected streams can still be made, as it reaches nobody.
_SOCKETS: dict[str, _Numbers] = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
}  # fmt: skip
# Changes of files that Landlock does not cover, by a user who owns more than the child's files. They do nothing and
# report success, as copying a file ends with one.
_MARKS: dict[str, _Numbers] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
_ATTRIBUTES: dict[str, _Numbers] = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
_FLOCK, _CLONE, _CLONE3, _FCNTL, _IOCTL, _PRCTL, _SOCKETPAIR, _PREADV2, _FADVISE = (
    (73, 32), (56, 220), (435, 435), (72, 25), (16, 29), (157, 167), (53, 199), (327, 286), (221, 223),
)  # fmt: skip
# The highest call number that the list takes into account.
_LAST = 462
# Flags of clone: every kind of namespace, and a process that is a sibling of its creator.
_NEW = 0x7E020000 | 0x8000
# Commands of fcntl for locks of ranges: they take unbounded memory, and a child shares its files with nobody.
_LOCKS = (6, 7, 37, 38)
# Leases, for which whoever opens the file waits, and notices of what others do in a folder.
_WATCHES = (1024, 1026)
_PIPE_SIZE, _OWNERS, _IOCTL_OWNERS = 1031, (8, 15), (0x8901, 0x8902)
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_FLAGS = 1, 1, 5, 0o2004000
_DUMPABLE = 4

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_LOAD, _AND, _EQUAL, _GREATER, _SET, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4
# So many calls are skipped together: the kernel runs the filter for every number when it is installed.
_GROUP = 10
_SECCOMP = {"x86_64": 317, "aarch64": 277}


@dataclasses.dataclass(frozen=True)
class Scope:
    """How much the filter refuses.

    `enclosed`: no sockets, and no locks, as nothing is shared with others. `alone`: the process ids are its own.
    `marks`: mode, owner, times and attributes of files may be changed. `own`: the process id, where it is not alone.
    """

    enclosed: bool
    alone: bool
    marks: bool
    own: int = 0


def install(scope: Scope) -> None:
    """Installs the filter; needs NO_NEW_PRIVS. Raises OSError where the kernel or the architecture has none."""
    machine = os.uname().machine
    instructions = program(machine, scope)
    kernel.seccomp(_SECCOMP[machine], _SET_MODE_FILTER, _SPEC_ALLOW, instructions)


@functools.lru_cache(maxsize=4)
def program(machine: str, scope: Scope) -> bytes:
    """The filter: instructions of eight bytes. Raises OSError where the architecture has none."""
    if sys.platform != "linux" or machine not in _ARCHITECTURES or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"no filter of system calls for {sys.platform} on {machine}")
    architecture, column = _ARCHITECTURES[machine]
    refused, unknown, done = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS, _ERRNO
    code = [_load(4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, unknown)]
    # The calls of x86-64's second interface (x32) have numbers beyond the last, too.
    code += [_load(0), (_GREATER, 0, 1, _LAST), (_RETURN, 0, 0, unknown)]
    verdicts: dict[_Numbers, int] = dict.fromkeys(_CALLS.values(), refused)
    # A read that does not wait reveals whether it would have to; without that call, libraries use the plain one.
    verdicts |= {_CLONE3: unknown, _PREADV2: unknown, _FADVISE: done}
    if scope.enclosed:
        verdicts |= dict.fromkeys(_SOCKETS.values(), refused) | {_FLOCK: done}
    if not scope.alone:
        verdicts |= dict.fromkeys(_AMONG_OTHERS.values(), refused)
    if not scope.marks:
        verdicts |= dict.fromkeys(_MARKS.values(), done)
        verdicts |= dict.fromkeys(_ATTRIBUTES.values(), _ERRNO | errno.EOPNOTSUPP)
    bodies = {numbers[column]: [(_RETURN, 0, 0, verdict)] for numbers, verdict in verdicts.items()}
    bodies |= {numbers[column]: body for numbers, body in _conditions(scope, refused, done)}
    found = sorted((number, body) for number, body in bodies.items() if number is not None)
    for start in range(0, len(found), _GROUP):
        group = found[start : start + _GROUP]
        inner = [each for number, body in group for each in [(_EQUAL, 0, len(body), number), *body]]
        code += [(_GREATER, len(inner), 0, group[-1][0]), *inner]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


_Instruction = tuple[int, int, int, int]


def _conditions(scope: Scope, refused: int, done: int) -> list[tuple[_Numbers, list[_Instruction]]]:
    """The parts of the filter for calls that depend on an argument; each ends in a verdict."""
    allowed = (_RETURN, 0, 0, _ALLOW)
    owners = {} if scope.alone else dict.fromkeys(_OWNERS, refused)
    locks = dict.fromkeys(_LOCKS, done) if scope.enclosed else {}
    commands = locks | dict.fromkeys((*_WATCHES, _PIPE_SIZE), refused) | owners
    found: list[tuple[_Numbers, list[_Instruction]]] = [
        (_CLONE, [_argument(0), (_SET, 0, 1, _NEW), (_RETURN, 0, 0, refused), allowed]),
        (_FCNTL, [*_cases(1, commands), allowed]),
        # A child's memory stays private, even if the child wants otherwise.
        (_PRCTL, [*_cases(0, {_DUMPABLE: refused}), allowed]),
    ]
    if not scope.alone:
        found.append((_IOCTL, [*_cases(1, dict.fromkeys(_IOCTL_OWNERS, refused)), allowed]))
        itself = {0: _ALLOW, scope.own: _ALLOW, -scope.own & 0xFFFFFFFF: _ALLOW}
        found += [(numbers, [*_cases(0, itself), (_RETURN, 0, 0, refused)]) for numbers in _OF_ITSELF.values()]
    if scope.enclosed:
        # Not datagrams: such a socket can be disconnected and can then send to any name.
        kinds = _cases(1, {_SOCK_STREAM: _ALLOW, _SOCK_SEQPACKET: _ALLOW}, mask=~_SOCK_FLAGS & 0xFFFFFFFF)
        body = [_argument(0), (_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, refused), *kinds, (_RETURN, 0, 0, refused)]
        found.append((_SOCKETPAIR, body))
    return found


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
