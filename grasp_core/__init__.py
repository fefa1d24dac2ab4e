"""GRASP as a library: fold checkpoints of one architecture into one model, one at a time.

    from grasp_core import ModelSpec, fold, open_task

    spec = ModelSpec(architecture="mobilevit_xxs", classes=("F", "M"))
    task = open_task("faces.zip", spec)
    fold(spec, "site-a.safetensors", task, "v1.safetensors")
    report = fold(spec, "site-b.safetensors", task, "v2.safetensors", merged="v1.safetensors")

The method is Algorithm 1 of https://arxiv.org/abs/2606.14900.

The public names are listed in `__init__.pyi`. They are loaded when first used, so that
`grasp_core.config`, `.errors`, `.manifest`, `.methods`, `.operations` and `.report` can be had
without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
