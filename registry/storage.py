"""The blob store that the settings ask for."""

from urllib.parse import urlsplit

from registry.blobs import BlobStore
from registry.local_blobs import LocalBlobStore
from registry.settings import Settings


def open_store(settings: Settings) -> BlobStore:
    """Raises StorageError if it cannot be had."""
    url = urlsplit(settings.blob_url or "")
    if url.scheme != "s3":
        return LocalBlobStore(settings.blob_folder)
    # Here, because most services keep their blobs on a disk and need no client of S3.
    from registry.blob_cache import BlobCache
    from registry.buckets import open_bucket
    from registry.object_blobs import ObjectBlobStore

    bucket = open_bucket(url.netloc, url.path.strip("/"), settings.blob_endpoint)
    cache = BlobCache(settings.blob_cache_folder.absolute(), settings.blob_cache_bytes)
    return ObjectBlobStore(bucket, cache)
