"""Merge checkpoints with the Python client.

    python examples/merge.py scans demo/target.npz demo/1970s.safetensors demo/1980s.safetensors

registers the target, creates a model, offers the sources one after the other, says what became of
each, and downloads the result. `grasp demo --files demo` makes such files. GRASP_URL says where the
service is, GRASP_KEY who asks.
"""

from __future__ import annotations

import sys

from grasp_client import Grasp, JobRejected


def main(name: str, target: str, *sources: str) -> None:
    with Grasp() as g:
        g.targets.create(name, target)
        g.models.create(name, architecture="test_efficientnet", target=name, image_size=32)
        for path in sources:
            source = g.sources.push(path, model=name)
            try:
                job = source.wait(
                    lambda job: print(f"  {job.stage or job.status} {job.progress:.0%}")
                )
            except JobRejected as rejection:
                print(f"{source.name}: rejected, {rejection.message}")
            else:
                accuracy = job.metrics["after"]["val"]["accuracy"]
                print(f"{source.name}: version {job.version}, validation accuracy {accuracy:.3f}")
        print(g.models.pull(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
