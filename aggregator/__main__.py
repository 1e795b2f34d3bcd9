"""Starts the aggregator for `distrust serve aggregator`: `python -P -m distrust.aggregator`. SIGTERM ends it.

DISTRUST_… variables configure it. `-P` keeps the working folder off the path: no file in it runs in place of ours.
"""

from distrust.aggregator.app import AggregatorSettings, aggregator_app
from distrust.common.protocol.web.serve import run_service

if __name__ == "__main__":
    raise SystemExit(run_service(AggregatorSettings, aggregator_app))
