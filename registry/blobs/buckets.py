"""Buckets on S3 and stores like it, with the credentials that are usual there."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import S3Store

from registry.blobs.base import StorageError

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Config

# What Amazon's own tools read, and where it lies unless the environment says otherwise.
PROFILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


def open_bucket(bucket: str, prefix: str, endpoint: str | None) -> S3Store:
    """Credentials and region come from the environment (AWS_…), a profile, or the machine's role.

    Raises StorageError if the profile asked for cannot be had.
    """
    config: S3Config = {}
    if endpoint:
        config["endpoint"] = endpoint
    if region := os.environ.get("AWS_REGION"):  # before that of the profile
        config["region"] = region
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        client_options={
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "timeout": timedelta(seconds=60),  # of one part
        },
        retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=60)},
        credential_provider=_profile_credentials(),
    )


def _profile_credentials() -> Boto3CredentialProvider | None:
    """None where no profile is needed: environment and role are known to the client itself."""
    if "AWS_ACCESS_KEY_ID" in os.environ or not _has_profile():
        return None
    # Here, because it takes 20 MB, and few servers have a profile.
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except BotoCoreError as error:
        raise StorageError(
            f"the credentials for S3 cannot be read: {error}",
            hint="AWS_PROFILE must name a profile of ~/.aws; AWS_ACCESS_KEY_ID would go before it",
        ) from error
    except ValueError:  # the profile holds none, but a region perhaps
        return None


def _has_profile() -> bool:
    places = (os.environ.get(name, usual) for name, usual in PROFILES.items())
    return "AWS_PROFILE" in os.environ or any(Path(p).expanduser().is_file() for p in places)
