"""Blobs: where bytes are kept, who needs them, and whether they are still sound."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from registry.blobs.base import BlobStore
    from registry.process.settings import Settings


def open_store(settings: "Settings") -> "BlobStore":
    """The blob store that the settings ask for. Raises StorageError if it cannot be had."""
    url = urlsplit(settings.blob_url or "")
    if url.scheme != "s3":
        from registry.blobs.local import LocalBlobStore

        return LocalBlobStore(settings.blob_folder)
    # Here, because most services keep their blobs on a disk and need no client of S3.
    from registry.blobs.buckets import open_bucket
    from registry.blobs.cache import BlobCache
    from registry.blobs.s3 import ObjectBlobStore

    bucket = open_bucket(url.netloc, url.path.strip("/"), settings.blob_endpoint)
    cache = BlobCache(settings.blob_cache_folder.absolute(), settings.blob_cache_bytes)
    return ObjectBlobStore(bucket, cache)
