"""The names of the image architectures, from timm: what knows them need not have it."""

import timm


def names() -> str:
    return "".join(f"{name}\n" for name in timm.list_models())
