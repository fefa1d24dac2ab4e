"""Many sources for many models at once, with two workers: every chain comes out as it must."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.service.client import Client
from tests.service.fake_folds import checkpoint
from tests.service.harness import Harness

MODELS = 5
SOURCES = 30
SENDERS = 8


def test_thirty_sources_over_five_models_each_folded_once_and_in_order(home: Path) -> None:
    with Harness(home, workers=2) as harness:
        client = Client(harness.client)
        models = client.make_models(MODELS)
        files = {
            f"{model}-{number}": (model, checkpoint(f"{model}-{number}", ticks=2))
            for number in range(SOURCES // MODELS)
            for model in models
        }

        def send(name: str) -> dict[str, Any]:
            model, data = files[name]
            return client.offer(model, name, data)

        with ThreadPoolExecutor(SENDERS) as pool:
            answers = list(pool.map(send, files))
        ended = [client.ended(answer["job"]["id"]) for answer in answers]

        assert [job["status"] for job in ended] == ["succeeded"] * SOURCES
        assert {job["attempts"] for job in ended} == {1}
        assert set(Counter(job["source"] for job in ended).values()) == {1}
        for model in models:
            own = [data for name, (owner, data) in files.items() if owner == model]
            client.check_chain(harness.settings, model, own)
