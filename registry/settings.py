"""The service's settings, read from the environment (prefix GRASP_) and from a .env file."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Each field is a GRASP_ variable; .env.example lists them. The environment wins over .env."""

    model_config = SettingsConfigDict(
        env_prefix="GRASP_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    home: Path = Field(Path(".grasp"), description="Directory of everything the service keeps.")
    host: str = Field("127.0.0.1", description="Address the API listens on.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the API; 0 takes a free one.")
