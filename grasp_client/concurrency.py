"""Waiting, at once and awaited: all that `_sync` and `_async` do not do in the same words.

Both say `concurrency.sleep`, so that a test can let time pass for either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

P = ParamSpec("P")
Result = TypeVar("Result")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


async def async_sleep(seconds: float) -> None:
    await anyio.sleep(seconds)


def run(work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Work that takes its time: where others wait meanwhile, in a thread."""
    return work(*args, **kwargs)


async def async_run(work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    return await anyio.to_thread.run_sync(partial(work, *args, **kwargs))
