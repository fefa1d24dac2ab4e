"""From a target to merged weights, with the client that openapi-python-client generates.

python walk.py URL FOLDER: reads target.zip and the checkpoint source.safetensors there, writes
merged.safetensors. A test type-checks it beside the client, and runs it.
"""

import sys
from io import BytesIO
from pathlib import Path
from typing import TypeVar

from merge_client import AuthenticatedClient
from merge_client.api.jobs import get_job
from merge_client.api.models import create_model
from merge_client.api.sources import create_source
from merge_client.api.targets import create_target
from merge_client.api.uploads import append_to_upload, create_upload
from merge_client.api.versions import download_model
from merge_client.models import (
    JobRead,
    ModelCreate,
    ModelCreated,
    SourceCreated,
    SourceCreateForm,
    SourceFromUpload,
    TargetCreated,
    TargetCreateForm,
    UploadRead,
)
from merge_client.types import File

Expected = TypeVar("Expected")


def expect(kind: type[Expected], answer: object) -> Expected:
    if not isinstance(answer, kind):
        raise SystemExit(f"not a {kind.__name__}: {answer}")
    return answer


def follow(client: AuthenticatedClient, job: JobRead) -> None:
    ended = expect(JobRead, get_job.sync(job.id, client=client, wait=60))
    if ended.status != "succeeded":
        raise SystemExit(f"{job.id} has ended as {ended.status}")


def walk(client: AuthenticatedClient, folder: Path) -> None:
    weights = (folder / "source.safetensors").read_bytes()
    data = File(BytesIO((folder / "target.zip").read_bytes()), "target.zip")
    form = TargetCreateForm(name="of-python", file=data)
    target = expect(TargetCreated, create_target.sync(client=client, body=form))
    follow(client, target.job)

    described = ModelCreate(name="python", architecture="test_vit", target="of-python")
    model = expect(ModelCreated, create_model.sync(client=client, body=described))
    follow(client, model.job)

    upload = expect(UploadRead, create_upload.sync(client=client, upload_length=len(weights)))
    rest = File(BytesIO(weights))
    append_to_upload.sync(upload.id, client=client, body=rest, upload_offset=upload.received)
    offered = SourceFromUpload(model="python", upload=upload.id)
    source = expect(SourceCreated, create_source.sync(client=client, body=offered))
    follow(client, source.job)

    again = SourceCreateForm(model="python", file=File(BytesIO(weights), "source.safetensors"))
    same = expect(SourceCreated, create_source.sync(client=client, body=again))
    if same.job.id != source.job.id:
        raise SystemExit("the same bytes are another source")

    merged = expect(File, download_model.sync("python", client=client))
    (folder / "merged.safetensors").write_bytes(merged.payload.read())


if __name__ == "__main__":
    walk(
        AuthenticatedClient(base_url=sys.argv[1], token="any: there are no keys"), Path(sys.argv[2])
    )
