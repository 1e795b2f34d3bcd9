"""The aggregator's settings: those of every service, on its own port."""

from typing import Annotated, ClassVar

from pydantic import Field

from common.web.settings import IntermediarySettings


class AggregatorSettings(IntermediarySettings):
    """Environment variables DISTRUST_HOST, _PORT, _DATABASE, _OPERATOR_TOKEN_FILE, _INSPECTOR_TOKEN_FILE, …"""

    service: ClassVar[str] = "aggregator"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8703
