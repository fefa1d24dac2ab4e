"""Where the files of a job lie while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.service.fake_folds import checkpoint
from tests.service.place import Place
from worker.jobs import leased_folder, read_job


def test_no_candidate_has_its_files_where_the_output_lies(home: Path) -> None:
    """Whatever it is called."""
    place = Place(home)
    model = place.ready_model()
    place.offer(model, checkpoint("a"))
    lease = place._lease(model.id)

    with place.database.read() as session:
        operation: Any = read_job(session, lease, place.settings).operation

    work, output = operation.keywords["work_dir"], operation.keywords["output"]
    assert work.parent == output.parent == leased_folder(place.settings, lease)
    assert work != output
    place.database.close()
