"""Caps for data that a stranger may have made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from grasp_core.errors import TargetError

RATIO_GRACE = 16 * 2**20  # small archives of blank images compress well, and harm nobody


@dataclass(frozen=True)
class Limits:
    """What target data may cost. A single image over its cap counts as broken, not as an error."""

    max_images: int = 10_000_000
    max_pixels: int = 89_478_485  # per image; Pillow's own, which refuses twice as many by itself
    max_bytes: int = 2**40  # of all files, unpacked
    max_image_bytes: int = 256 * 2**20  # per encoded image
    max_ratio: float = 200.0  # unpacked to packed; deflate cannot reach 1100
    follow_links: bool = False  # may symbolic links lead out of the target's folder?

    def check_images(self, count: int) -> None:
        """Raise TargetError if there are more than `max_images`."""
        if count > self.max_images:
            self._refuse("max_images", f"{count} images")

    def check_bytes(self, unpacked: int, packed: int | None = None) -> None:
        """Raise TargetError if the data grows beyond `max_bytes`, or suspiciously on unpacking."""
        if unpacked > self.max_bytes:
            self._refuse("max_bytes", f"{unpacked} bytes")
        if packed and unpacked > RATIO_GRACE and unpacked / packed > self.max_ratio:
            self._refuse("max_ratio", f"{packed} bytes that unpack to {unpacked}")

    def _refuse(self, name: str, found: str) -> NoReturn:
        raise TargetError(
            f"the data holds {found}, over the limit {name} = {getattr(self, name)}",
            hint=f"if the data is trusted, raise Limits.{name}",
        )
