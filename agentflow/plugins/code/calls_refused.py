"""The system calls that fail in `Bubblewrap`, as a filter for the kernel (seccomp).

Namespaces and limits do not cover them: memory in unnamed files, queues and shared segments counts toward no limit of a
process, the user's keyring is that of the host, and io_uring bypasses the filter. Programs do not need the others, which
have often been used to attack kernels.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

from agentflow.errors import UsageError

_CALLS: Final = {  # the numbers on x86-64, and on the other architectures
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "ptrace": (101, 117),
}
_MACHINES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
"""The kernel's number of each architecture, and the index of its numbers in the values of `_CALLS`."""
# Instructions of classic BPF, and results of a seccomp filter (linux/bpf_common.h, linux/seccomp.h).
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_KILL, _FAIL, _ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
_X32_ABI: Final = 0x40000000  # the bit of a second ABI of x86-64, which has other numbers for the same calls


def refusing(machine: str) -> bytes:
    """Return the filter for a machine: the calls fail with `EPERM`; calls of another architecture end the process.

    Raises:
        UsageError: The numbers of the machine's system calls are unknown.

    Example:
        >>> len(refusing("x86_64")) // 8  # instructions
        21
    """
    if machine not in _MACHINES:
        raise UsageError(
            f"Bubblewrap: the system calls of a {machine} are unknown; it runs on {', '.join(_MACHINES)}. Use Monty()."
        )
    architecture, table = _MACHINES[machine]
    numbers = [numbers[table] for numbers in _CALLS.values()]
    # Offsets in struct seccomp_data: 4 is the architecture, 0 the number of the call. Jumps count the skipped
    # instructions.
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    steps.append((_AT_LEAST, len(numbers) + 1, 0, _X32_ABI))
    steps += [(_EQUAL, len(numbers) - n, 0, number) for n, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL)]
    return b"".join([struct.pack("HBBI", *step) for step in steps])
