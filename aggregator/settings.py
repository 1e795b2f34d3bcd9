"""The aggregator's settings: those of every service, on its own port."""

from typing import Annotated, ClassVar

from pydantic import Field

from distrust.common.web.settings import IntermediarySettings


class AggregatorSettings(IntermediarySettings):
    """Environment variables DISTRUST_INSPECTOR_TOKEN_FILE, and those of every service."""

    service: ClassVar[str] = "aggregator"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8703
