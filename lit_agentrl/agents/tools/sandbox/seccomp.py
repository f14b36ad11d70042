"""A seccomp filter: system calls that code of a model never needs are refused by the kernel. Standard library only."""

from __future__ import annotations

import ctypes
import errno
import struct

from lit_agentrl.agents.tools.sandbox.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MACHINE,
    syscall,
)

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_X32_BIT = 0x40000000
_AF_UNIX = 1
_NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

# Name: numbers on x86_64 and aarch64. Refused with EPERM.
_REFUSED: dict[str, tuple[int, int]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # memory that neither the work folder's size nor the address space bounds
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # large and often broken parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    # the machine's clock and name
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENT_0 = 0, 4, 16
_SET_MODE_FILTER = 1


def filter_program(machine: str = MACHINE) -> bytes:
    """Return the filter as an array of BPF instructions.

    Raises:
        KeyError: The numbers of this architecture are not known.
    """
    place = ("x86_64", "aarch64").index(machine) if machine in _ARCHITECTURE else None
    if place is None:
        raise KeyError(machine)
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
    ]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    for numbers in _REFUSED.values():
        program += [(_EQUAL, 0, 1, numbers[place]), refuse]
    # Its flags are in memory, where a filter cannot look: the C library then falls back on clone.
    program += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    program += [
        (_EQUAL, 0, 4, _SOCKET[machine]),
        (_LOAD, 0, 0, _AT_ARGUMENT_0),
        (_EQUAL, 0, 1, _AF_UNIX),  # event loops and multiprocessing talk to themselves through these
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EACCES),
        (_EQUAL, 0, 3, _CLONE[machine]),
        (_LOAD, 0, 0, _AT_ARGUMENT_0),
        (_ANY_BIT, 0, 1, _NAMESPACES),
        refuse,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def install() -> None:
    """Filter this process and all that it starts, for good; `no_new_privs` must be set.

    Raises:
        OSError: The kernel has no filters.
    """
    program = filter_program()
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    syscall(_SECCOMP[MACHINE], ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(0), header)
