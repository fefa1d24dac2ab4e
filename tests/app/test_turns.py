"""What strangers can make large is done by few at once."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from app.http.turns import Turns
from app.intake.receiving import BATCH, BATCHES, batched


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


def test_the_more_uploads_the_smaller_what_each_holds() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(100_000)

    async def largest(count: int) -> int:
        filling = [batched(endless()) for _ in range(count)]
        for batches in filling:
            await anext(batches)  # the first comes as it is
        sizes = [len(await anext(batches)) for batches in filling]
        for batches in filling:
            await batches.aclose()  # type: ignore[attr-defined]
        return max(sizes)

    alone, many, alone_again = (asyncio.run(largest(count)) for count in (1, 256, 1))

    assert alone == alone_again >= BATCH
    assert many <= BATCHES // 256 + 100_000
