"""Pictures with one label each, and the classifiers of timm. Importing this loads no torch."""

from grasp_core.kinds.declaration import Implementation, Kind
from grasp_core.kinds.image.config import Augmentation, Preprocessing, PreprocessingOverrides
from grasp_core.kinds.image.names import read_names


def _load() -> Implementation:
    from grasp_core.kinds.image import implementation

    return implementation


IMAGE = Kind(
    name="image",
    summary="Images with one label each, and the classifiers of timm.",
    examples="images",
    formats="a zip or tar of one folder of images per class, WebDataset shards, Parquet or npz",
    architectures="any timm classifier, such as mobilevit_xxs",
    load=_load,
    overrides=PreprocessingOverrides,
    preprocessing=Preprocessing,
    augmentation=Augmentation,
    asked=("image_size",),
    names=read_names,
    libraries=("timm",),
    wrappers=("timm_model",),
)
