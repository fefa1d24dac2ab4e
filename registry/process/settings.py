"""The service's settings, read from the environment (prefix GRASP_) and from a .env file."""

import json
import os
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _split(value: Any) -> Any:
    """A list in a variable: separated by commas, or as JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _split_paths(value: Any) -> Any:
    """As in PATH, too."""
    plain = isinstance(value, str) and not value.lstrip().startswith("[")
    return _split(value.replace(os.pathsep, ",") if plain else value)


Paths = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_split_paths)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


DATABASES = re.compile(r"(sqlite|postgres(ql)?|postgresql\+psycopg)://")
RUNG_LOOK_S = 30.0  # the broker may lose everything at any time


class Settings(BaseSettings):
    """Each field is a GRASP_ variable; the environment wins over .env.

    `make docs` writes docs/reference/settings.md and .env.example from their descriptions.
    """

    model_config = SettingsConfigDict(
        env_prefix="GRASP_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,  # URLs have passwords
    )

    home: Path = Field(
        Path(".grasp"),
        description="Directory of everything the service keeps: database, blobs, work in progress,"
        " caches.",
    )
    host: str = Field(
        "127.0.0.1",
        description="Address the API listens on. Only loopback addresses are accepted until there"
        " are API keys.",
    )
    port: int = Field(
        8000, ge=0, le=65535, description="Port the API listens on; 0 takes a free one."
    )

    open: bool = Field(
        False,
        description="Without API keys, serve every user and every proxy of this machine, not only"
        " the user who started the service. Still on loopback only, and not to pages of other"
        " sites.",
    )
    trusted_proxies: Names = Field(
        (),
        description="Addresses or networks of proxies, such as 127.0.0.1 or 10.0.0.0/8, whose"
        " X-Forwarded-For names the client in the log, and whose X-Forwarded-Proto says whether it"
        " uses TLS. None: nobody's.",
    )
    max_connections: int = Field(
        4096,
        ge=1,
        description="Connections open at once. Beyond that, silent ones are closed to make room;"
        " where there are none, only health checks are answered. Fewer, where the system allows"
        " this process fewer open files (ulimit -n).",
    )
    max_connections_per_address: int = Field(
        1024,
        ge=1,
        description="Those of one address, or one IPv6 network of 64 bits; this machine's own do"
        " not count. A proxy on another machine speaks for everyone: raise it there.",
    )
    head_seconds: float = Field(
        20.0,
        gt=0,
        description="Time, in seconds, that the request line and headers of a request may take, and"
        " a new connection before them.",
    )
    stall_seconds: float = Field(
        120.0,
        gt=0,
        description="Time, in seconds, in which at least 1 KiB of a body must arrive, and a reader"
        " must take something of an answer that waits for it.",
    )

    database_url: str | None = Field(
        None,
        description="SQLAlchemy URL of the database, such as"
        " postgresql+psycopg://user:password@host/grasp. Unset: SQLite in the home.",
    )
    database_pool: int = Field(
        10,
        ge=1,
        description="Connections that the API keeps to a database server; it opens as many again"
        " when busy.",
    )
    database_wait_seconds: float = Field(
        600.0,
        ge=0,
        description="How long, in seconds, `grasp serve` and `grasp admin migrate` wait at their"
        " start for a database server that is away, or whose tables nobody has migrated yet; until"
        " then only health checks are answered. 0: not at all.",
    )
    broker_url: str | None = Field(
        None,
        description="Celery broker, such as redis://host/0, that tells workers of new jobs; it may"
        " lose them all. Unset: idle workers look every GRASP_POLL_SECONDS.",
    )
    blob_url: str | None = Field(
        None,
        description="Where blobs are kept: file:///srv/blobs, or s3://bucket/prefix. Credentials"
        " and region come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, a profile"
        " of ~/.aws (AWS_PROFILE), or the machine's role. Unset: a folder in the home.",
    )
    blob_endpoint: str | None = Field(
        None,
        description="URL of an S3-compatible store, such as http://minio:9000; only here is http://"
        " accepted. Unset: Amazon's.",
    )
    blob_cache_bytes: int = Field(
        50 * 2**30,
        gt=0,
        description="Room on this machine's disk for copies of blobs that are kept on S3, in bytes:"
        " 50 GiB.",
    )
    decoded_target_bytes: int = Field(
        16 * 2**30,
        gt=0,
        description="Largest decoded target, in bytes: 16 GiB. It is the number of examples × what"
        " one takes when it is resized, such as 256 × 256 × 3. A job that would decode more is"
        " refused.",
    )
    decoded_cache_bytes: int = Field(
        64 * 2**30,
        gt=0,
        description="Room on this machine's disk for decoded targets, in bytes: 64 GiB. Beyond that"
        " those that were used longest ago are deleted, and decoded anew when a job needs them.",
    )
    presigned_downloads: bool = Field(
        False,
        description="Send clients to the S3 store for the bytes of a version, with a URL that is"
        " valid for minutes; they must be able to reach it. False: the API sends the bytes.",
    )
    data_roots: Paths = Field(
        (),
        description="Folders that file:// URIs may lie in, such as /data/faces,/data/xrays. None:"
        " file:// is refused.",
    )
    allowed_hosts: Names = Field(
        (),
        description="Hosts that https:// URIs may name, such as models.example.org. None: https://"
        " is refused.",
    )
    allowed_buckets: Names = Field(
        (),
        description="Buckets that s3:// URIs may name, such as checkpoints; at GRASP_BLOB_ENDPOINT,"
        " if that is set, with the same credentials. None: s3:// is refused.",
    )
    max_upload_bytes: int = Field(20 * 2**30, gt=0, description="Largest upload, in bytes: 20 GiB.")
    upload_expiry_seconds: float = Field(
        86_400.0,
        gt=0,
        description="Time, in seconds, after which an upload in parts (tus) that got no more bytes,"
        " or was never made use of, is deleted: a day.",
    )
    accel_redirect: str | None = Field(
        None,
        description="Prefix under which an nginx in front serves the blobs itself"
        " (X-Accel-Redirect). Unset: the API sends them.",
    )

    workers: int = Field(
        1,
        ge=0,
        description="Worker processes that `grasp serve` starts beside the API; 0 if workers run"
        " elsewhere.",
    )
    device: str = Field("auto", description="Where folds run: auto, cpu, cuda, cuda:1, mps.")
    threads: int | None = Field(
        None, ge=1, description="torch threads of one job. Unset: torch's own choice."
    )
    job_memory_bytes: int | None = Field(
        None,
        gt=0,
        description="Memory limit of a job's process, in bytes. Unset: what the machine has.",
    )
    job_seconds: float = Field(
        86_400.0,
        gt=0,
        description="How long one attempt at a job may compute, in seconds: a day. What takes"
        " longer has failed, with `took_too_long`.",
    )
    warm_spare: bool = Field(
        True,
        description="Keep a process with torch loaded for the next job, which then starts seconds"
        " earlier.",
    )

    poll_seconds: float = Field(
        1.0, gt=0, description="How often an idle worker looks for jobs, in seconds."
    )
    lease_seconds: float = Field(
        60.0,
        gt=0,
        description="A worker that is silent so long, in seconds, has lost its job to another.",
    )
    heartbeat_seconds: float = Field(
        15.0,
        gt=0,
        description="How often a worker renews its lease, in seconds; several times per lease.",
    )
    max_attempts: int = Field(
        3, ge=1, description="Attempts that go wrong before a job has failed; without lost ones."
    )
    max_losses: int = Field(
        10, ge=1, description="Attempts lost with their worker before a job has failed."
    )
    collect_age_seconds: float = Field(
        60.0,
        ge=0,
        description="Age, in seconds, at which bytes that nothing refers to are deleted.",
    )

    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: console in a terminal, json elsewhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error."
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in value:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise ValueError(f"{proxy!r} is neither an address nor a network") from error
        return value

    @field_validator("database_url")
    @classmethod
    def _names_a_database(cls, value: str | None) -> str | None:
        if value is not None and not DATABASES.match(value):
            raise ValueError("must be postgresql://user:password@host/name, or sqlite:///path")
        return value

    @field_validator("broker_url")
    @classmethod
    def _names_a_broker(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value:
            raise ValueError("must be a URL, such as redis://host:6379/0")
        return value

    @field_validator("blob_url")
    @classmethod
    def _names_a_folder_or_bucket(cls, value: str | None) -> str | None:
        url = urlsplit(value or "file:///")
        folder = url.scheme == "file" and not url.netloc and url.path.startswith("/")
        bucket = url.scheme == "s3" and url.netloc and not set(url.netloc) & set("@:")
        if not (folder or bucket) or url.query or url.fragment:
            raise ValueError("must be file:///an/absolute/folder or s3://bucket/prefix")
        return value

    @field_validator("blob_endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        url = urlsplit(value or "https://host")
        if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
            raise ValueError("must be https://host or http://host:port, without credentials")
        return value

    @model_validator(mode="after")
    def _leases_outlast_heartbeats(self) -> "Settings":
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ValueError(
                "GRASP_LEASE_SECONDS must be twice GRASP_HEARTBEAT_SECONDS at least, or a late"
                " heartbeat loses the lease"
            )
        return self

    @property
    def database(self) -> str:
        """A plain postgresql:// means psycopg 3, the driver that is installed."""
        url = self.database_url or f"sqlite:///{self.home.absolute() / 'grasp.db'}"
        return re.sub("^postgres(ql)?://", "postgresql+psycopg://", url)

    @property
    def look_seconds(self) -> float:
        """How long an idle worker waits before it looks by itself: longer where a broker rings."""
        return max(self.poll_seconds, RUNG_LOOK_S) if self.broker_url else self.poll_seconds

    @property
    def embedded(self) -> bool:
        """Whether this process alone looks after the database, migrations included."""
        return self.database.startswith("sqlite")

    @property
    def blob_folder(self) -> Path:
        """Where blobs lie that are kept on a disk of this machine."""
        url = urlsplit(self.blob_url or "")
        return Path(url2pathname(url.path)) if url.scheme == "file" else self.home / "blobs"

    @property
    def blob_cache_folder(self) -> Path:
        """Copies of blobs that are kept elsewhere; can be deleted while nothing runs."""
        return self.home / "blob_cache"

    @property
    def token_file(self) -> Path:
        """What opens a service without keys, where its user cannot be recognised."""
        return self.home / "token"

    @property
    def address_file(self) -> Path:
        """Where the service that runs in this home is reached, for clients on this machine."""
        return self.home / "address"

    @property
    def work_folder(self) -> Path:
        """Where jobs keep what they need to go on after an interruption."""
        return self.home / "work"

    @property
    def cache_folder(self) -> Path:
        """Decoded targets; can be deleted at any time."""
        return self.home / "cache"
