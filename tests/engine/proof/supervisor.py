"""Run apply.py with a fault at its n-th system call that changes a file.

Linux offers this as seccomp's user notification (man 2 seccomp_unotify): the kernel hands each call named below, of
every process that the run starts, to this program and waits for the answer. So git is stepped through as well as
Python, and nothing in apply.py knows about it.

As a program (`python supervisor.py PROJECT`) it loads the engine of a project once and reads one run per line of JSON
from stdin: {"argv": [...], "env": {...}, "fault": kind or null, "at": n, "more": what the kind needs}. Each run is a
fork. The answer is one line: {"code": exit code, or null when it was killed, "out": ..., "err": ..., "calls": [name of
each call, with the path that a rename replaces or an unlink removes], "fired": bool, "second": [code, output] of a
second process}.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from pathlib import Path

# Calls that change a file or a folder, by their numbers on x86-64 (asm/unistd_64.h).
CALLS = {
    "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74, "truncate": 76, "ftruncate": 77,
    "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "chmod": 90,
    "fchmod": 91, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266,
    "fchmodat": 268, "fallocate": 285, "renameat2": 316, "copy_file_range": 326,
}  # fmt: skip
NAMES = {number: name for name, number in CALLS.items()}
OPENS = {"open": 1, "openat": 2}  # the argument with the flags
ON_HANDLES = {"write", "pwrite64", "writev", "ftruncate", "fchmod", "fsync"}  # the first argument is a file descriptor
# What a rename replaces or an unlink removes: the arguments with the folder (or None) and the path.
TARGETS = {"rename": (None, 1), "renameat": (2, 3), "renameat2": (2, 3), "unlink": (None, 0), "unlinkat": (0, 1)}
COPIES = {"write", "pwrite64", "writev", "sendfile", "copy_file_range", "fallocate"}
GROWS = COPIES | {"mkdir", "mkdirat", "symlink", "symlinkat"}
NEEDS_PERMISSION = set(CALLS) - COPIES - {"ftruncate", "fsync"}

KILLS = ("kill all", "kill alone", "torn write")
INTERRUPT = "Ctrl-C"
ERRORS = {"disk full": errno.ENOSPC, "permission lost": errno.EACCES, "one I/O error": errno.EIO}
FAULTS = (*KILLS, INTERRUPT, *ERRORS)
# Not faults but company: somebody saves a file as editors do (a new file renamed over the old one), writes into it, or
# runs another apply.py.
SAVED, WRITTEN, SECOND = "saved", "written into", "second process"

SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND = 0xC0502100, 0xC0182101
CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """Why runs cannot be supervised on this machine, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "needs Linux on x86-64 (seccomp user notification, numbers of system calls)"
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        actions = []
    if "user_notif" not in actions:
        return "this kernel has no seccomp user notification"
    probe = os.fork()
    if probe == 0:
        try:
            install_filter()
        except OSError:
            os._exit(1)
        os._exit(0)
    return "a seccomp filter may not be installed here" if os.waitpid(probe, 0)[1] else None


def program() -> bytes:
    """The filter in BPF: notify for CALLS (an open only where it may write), allow the rest."""
    load, equal, any_bit, end = 0x20, 0x15, 0x45, 0x06
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    rows = [(load, 0, 0, 0)]  # the number of the call
    for name, number in CALLS.items():
        if name in OPENS:
            rows += [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * OPENS[name]), (any_bit, 0, 1, writes)]
            rows += [(end, 0, 0, SECCOMP_RET_USER_NOTIF), (end, 0, 0, SECCOMP_RET_ALLOW)]
        else:
            rows += [(equal, 0, 1, number), (end, 0, 0, SECCOMP_RET_USER_NOTIF)]
    rows.append((end, 0, 0, SECCOMP_RET_ALLOW))
    return b"".join(struct.pack("HBBI", *row) for row in rows)


class FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install_filter() -> int:
    """In the process to be supervised; returns the descriptor on which its calls are announced."""
    code = program()
    buffer = ctypes.create_string_buffer(code)
    argument = FilterProgram(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: a plain user may then install a filter
    handle = libc.syscall(317, 1, 8, ctypes.byref(argument))  # seccomp(SET_MODE_FILTER, NEW_LISTENER)
    if handle < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return handle


def descendants(process: int) -> list[int]:
    found = [process]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        found += map(int, children)
    return found


class Supervisor:
    """Answers the kernel for one run, and does what `fault` says at call number `at`."""

    def __init__(self, process: int, listener: int, order: dict):
        self.process, self.listener = process, listener
        self.fault, self.at, self.more = order["fault"], order["at"], order.get("more")
        self.calls: list[str] = []
        self.fired = False
        self.second: subprocess.Popen | None = None

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while True:
            for _, event in poll.poll():
                if event & select.POLLHUP:  # the last process with this filter has ended
                    return
                self.answer()

    def answer(self) -> None:
        request = bytearray(80)
        try:
            fcntl.ioctl(self.listener, SECCOMP_IOCTL_NOTIF_RECV, request)
        except OSError as error:
            if error.errno == errno.ENOENT:  # the caller was killed meanwhile
                return
            raise
        ident, caller, _, number, _, _, *args = struct.unpack_from("QIIiIQ6Q", request)
        try:
            code = self.decide(caller, NAMES[number], args)
        except (FileNotFoundError, ProcessLookupError):  # likewise, while we looked at it
            return
        response = bytearray(struct.pack("QqiI", ident, 0, -code, 0 if code else CONTINUE))
        try:
            fcntl.ioctl(self.listener, SECCOMP_IOCTL_NOTIF_SEND, response)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def decide(self, caller: int, name: str, args: list[int]) -> int:
        """0 lets the call go on; else it fails with this number."""
        if name in ON_HANDLES and not is_file(caller, args[0]):
            return 0
        if name in OPENS and string_at(caller, args[OPENS[name] - 1]).startswith(b"/dev/"):
            return 0
        self.calls.append(f"{name} {target_of(caller, name, args)}" if name in TARGETS else name)
        if self.fault is None or len(self.calls) < self.at or not self.strikes(caller, name, args):
            return 0
        self.fired = True
        if self.fault in KILLS:
            self.kill(caller, name, args)
        elif self.fault == INTERRUPT:
            self.interrupt()
        elif self.fault not in ERRORS:
            self.join_in()
        return ERRORS.get(self.fault, 0)

    def strikes(self, caller: int, name: str, args: list[int]) -> bool:
        """A full disk and a lost permission last; all else happens once."""
        if self.fault == "disk full":
            return name in GROWS or (name in OPENS and not exists(caller, name, args))
        if self.fault == "permission lost":
            return name in NEEDS_PERMISSION
        return len(self.calls) == self.at

    def interrupt(self) -> None:
        """As a terminal does it: to all processes of the foreground group."""
        for process in descendants(self.process):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process) == os.getpgid(self.process):
                    os.kill(process, signal.SIGINT)

    def join_in(self) -> None:
        if self.fault == SECOND:
            self.second = subprocess.Popen(
                [sys.executable, *self.more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            return
        path = Path(self.more["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        place = path.with_name(".#" + path.name) if self.fault == SAVED else path
        place.write_text(self.more["text"])
        place.rename(path)

    def kill(self, caller: int, name: str, args: list[int]) -> None:
        if self.fault == "torn write" and name == "write" and args[2] > 1:
            write_half(caller, args)
        for process in [self.process] if self.fault == "kill alone" else descendants(self.process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def is_file(process: int, handle: int) -> bool:
    try:
        target = os.readlink(f"/proc/{process}/fd/{handle}")
    except OSError:
        return False
    return target.startswith("/") and not target.startswith(("/dev/", "/memfd:"))  # its output goes to a memfd


def exists(process: int, name: str, args: list[int]) -> bool:
    """Whether the file to be opened is there already: then it takes no new room in its folder."""
    return os.path.lexists(full_path(process, args[0] if name == "openat" else None, args[OPENS[name] - 1]))


def target_of(process: int, name: str, args: list[int]) -> str:
    folder, path = TARGETS[name]
    full = full_path(process, None if folder is None else args[folder], args[path])
    return os.fsdecode(os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full)))


def full_path(process: int, folder: int | None, address: int) -> bytes:
    start = f"/proc/{process}/cwd"
    if folder is not None and ctypes.c_int(folder).value >= 0:  # else AT_FDCWD
        start = f"/proc/{process}/fd/{folder}"
    return os.path.join(os.fsencode(start), string_at(process, address))


def string_at(process: int, address: int) -> bytes:
    """A path in the memory of a process, read page by page: the page after its end may not be there."""
    found = b""
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        while b"\0" not in found:
            memory.seek(address + len(found))
            piece = memory.read(4096 - (address + len(found)) % 4096)
            if not piece:
                raise ProcessLookupError(process)
            found += piece
    return found.split(b"\0")[0]


def write_half(process: int, args: list[int]) -> None:
    """Leave what a write leaves that is cut short, at the caller's own position in the file."""
    handle, address, size = args[:3]
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        half = memory.read(size // 2)
    status = Path(f"/proc/{process}/status").read_text()
    pidfd = os.pidfd_open(int(status.split("Tgid:")[1].split()[0]))  # the caller may be a thread
    mine = libc.syscall(438, pidfd, handle, 0)  # pidfd_getfd
    os.close(pidfd)
    if mine < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    os.write(mine, half)
    os.close(mine)


def supervise(main, order: dict) -> dict:
    """main(argv) in a fork of this process, under the fault that the order names."""
    ours, theirs = socket.socketpair()
    streams = [os.fdopen(os.memfd_create(name), "w+b") for name in ("out", "err")]
    process = os.fork()
    if process == 0:
        ours.close()
        run_child(main, order, theirs, *(stream.fileno() for stream in streams))
    theirs.close()
    _, handles, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    supervisor = Supervisor(process, handles[0], order)
    supervisor.serve()
    os.close(handles[0])
    text = supervisor.second.communicate()[0] if supervisor.second else ""
    status = wait_for_all(process)
    said = []
    for stream in streams:
        with stream:
            stream.seek(0)
            said.append(stream.read().decode("utf-8", "replace"))
    code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    second = [supervisor.second.returncode, text] if supervisor.second else None
    return {
        "code": code,
        "out": said[0],
        "err": said[1],
        "calls": supervisor.calls,
        "fired": supervisor.fired,
        "second": second,
    }


def wait_for_all(process: int) -> int:
    """The status of this child, once all others that the run started have ended too.

    Since Linux 6.11 a process gives its filter back before it closes its files: after serve() it may still hold a lock.
    """
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return found
        if ended == process:
            found = status


def run_child(main, order: dict, channel: socket.socket, out: int, err: int) -> None:
    """Never returns."""
    os.environ.update(order["env"])
    os.dup2(out, 1)
    os.dup2(err, 2)
    handle = install_filter()
    socket.send_fds(channel, [b"x"], [handle])
    os.close(handle)
    channel.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as apply.py does around main()
    code = 1
    try:
        code = main(order["argv"])
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(project: str) -> None:
    sys.path.insert(0, project)
    from engine.cli import main as apply_main

    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what a killed apply.py leaves running becomes our child
    for line in sys.stdin:
        print(json.dumps(supervise(apply_main, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
