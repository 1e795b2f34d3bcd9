"""One JSON object a line on stderr. What is logged is chosen where it is logged: never bodies, tickets or tokens."""

import logging
import sys

import structlog


def configure(level: str) -> None:
    """Send structlog's and the standard library's records (uvicorn's, asyncio's) to stderr as JSON."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    renderers: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.JSONRenderer(),
    ]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=renderers, foreign_pre_chain=shared))
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
