"""Runs a function in a forked child of this process, with a limit."""

import os
import select
import signal
import warnings

_SECONDS = 30


def said_in_fork(ask):
    """What a function returns in a forked child, or what it raises, as text."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside other threads
        child = os.fork()
    if child == 0:
        try:
            try:
                said = str(ask())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], _SECONDS)
        assert ready, "the child does not answer"
        return os.read(reader, 1 << 16).decode()
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
