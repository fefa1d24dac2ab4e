"""A reader who does what a page says, and looks whether it is as printed."""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from scripts.tryout.commands import Command, File, steps
from scripts.tryout.output import Memory
from scripts.tryout.shell import Service, Shell, Stuck

PRINTED_ADDRESS = "127.0.0.1:8000"
COMMAND_S = 600
LONG_POLLS = 5  # a job on a slow machine takes longer than one answer waits: who reads asks again
SET_UP_S = 3600  # of a fresh clone, which installs torch


class Differs(Exception):
    """A page promises what does not happen."""


class Reader:
    """Reads a page in a folder, with a shell, and a service on a free port."""

    def __init__(self, page: Path, folder: Path, log: Callable[[str], None] = print) -> None:
        self._page = page
        self._folder = folder
        self._log = log
        self._address = f"127.0.0.1:{_free_port()}"
        self._environment = _environment(self._address) | _like_a_terminal(folder)
        self._memory = Memory()

    def read(self) -> int:
        """How many commands were as printed. Raises Differs, with name and line, at the first that
        is not."""
        todo = steps(self._page.read_text())
        with ExitStack() as stack:
            shell = stack.enter_context(Shell(self._folder, self._environment))
            for step, following in pairwise([*todo, None]):
                if isinstance(step, File):
                    (self._folder / step.name).write_text(step.text)
                elif isinstance(step, Command):
                    self._log(f"{self._page.name}:{step.line}: {step.text}")
                    self._do(step, following, shell, stack)
        return sum(isinstance(step, Command) for step in todo)

    def _do(
        self, step: Command, following: Command | File | None, shell: Shell, stack: ExitStack
    ) -> None:
        command = self._memory.translate(step.text).replace(PRINTED_ADDRESS, self._address)
        tries = LONG_POLLS if "?wait=" in command else 1
        try:
            if command.endswith(" serve"):
                self._serve(command, stack)
                return
            for _ in range(tries):
                printed, status = shell.run(command, COMMAND_S)
                printed = printed.replace(self._address, PRINTED_ADDRESS)
                as_printed = not step.printed or self._memory.compare(step.printed, printed)
                if as_printed:
                    break
        except Stuck as error:
            raise self._differs(step, str(error)) from error
        if not as_printed:
            raise self._differs(step, f"it should print\n{step.printed}\n\nbut printed\n{printed}")
        if status and not _is_expected_to_fail(following):
            raise self._differs(step, f"it ended with {status} and printed\n{printed}")

    def _serve(self, command: str, stack: ExitStack) -> None:
        log = self._folder / "service.log"
        service = Service(command, self._folder, self._environment, log)
        stack.callback(service.stop)
        service.wait_until_ready(f"http://{self._address}", SET_UP_S)

    def _differs(self, step: Command, why: str) -> Differs:
        return Differs(f"{self._page.name}:{step.line}: {step.text}\n{why}")


def _is_expected_to_fail(following: Command | File | None) -> bool:
    """A command may fail where the page shows, by the next one, that it does."""
    return isinstance(following, Command) and following.text == "echo $?"


def _environment(address: str) -> dict[str, str]:
    """This process's, without its settings and its virtual environment."""
    ours = ("GRASP_", "VIRTUAL_ENV", "MAKE", "MFLAGS", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"GRASP_PORT": address.rpartition(":")[2], "GRASP_URL": f"http://{address}"}


def _like_a_terminal(folder: Path) -> dict[str, str]:
    """Where curl shows no progress beside what it prints, and lines are as wide as the pages."""
    (folder / ".curlrc").write_text("no-progress-meter\n")
    return {"CURL_HOME": str(folder), "COLUMNS": "100", "LC_ALL": "C.UTF-8"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
