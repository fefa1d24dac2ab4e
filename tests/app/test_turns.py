"""What strangers can make large is done by few at once."""

import asyncio
import threading

import pytest

from app.service import Turns


@pytest.mark.parametrize(("takes_long", "most"), [(True, 1), (False, 4)])
def test_few_are_at_work_at_once(takes_long: bool, most: int) -> None:
    under_way, seen, lock = 0, [0], threading.Lock()

    def work(number: int) -> int:
        nonlocal under_way
        with lock:
            under_way += 1
            seen.append(under_way)
        threading.Event().wait(0.01)
        with lock:
            under_way -= 1
        return number

    async def all_at_once() -> list[int]:
        turns = Turns()
        return await asyncio.gather(*(turns.run(takes_long, work, n) for n in range(20)))

    assert asyncio.run(all_at_once()) == list(range(20))
    assert max(seen) <= most
