"""The shuffler's settings: those of every service, on its own port."""

from typing import Annotated, ClassVar

from pydantic import Field

from distrust.common.web.settings import IntermediarySettings


class ShufflerSettings(IntermediarySettings):
    """Environment variables DISTRUST_INSPECTOR_TOKEN_FILE, and those of every service."""

    service: ClassVar[str] = "shuffler"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8702
