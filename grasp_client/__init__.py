"""The client of the service's HTTP API.

    from grasp_client import Grasp

    with Grasp() as g:
        g.targets.create("faces-1990s", "faces.zip")
        g.models.create("faces", architecture="mobilevit_xxs", target="faces-1990s")
        source = g.sources.push("site-a.safetensors", model="faces")
        source.job.wait(progress=lambda job: print(job.stage, job.progress))
        g.models.pull("faces", "merged.safetensors")

The public names are listed in `__init__.pyi`. They are loaded when first used, so that the command
line starts quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
