"""Tests that each message counts exactly once under random uploads, replays, departures, restarts and clock jumps.

Every client holds a power of two of its own, so that a sum shows how often it has each client. A lost answer is an
upload that the client sends again. A lost request is an upload that it never sends.
"""

from tests.support.random_operations import AtTheAggregator, AtTheShuffler, bounds

TestAtTheShuffler = AtTheShuffler.TestCase
TestAtTheShuffler.settings = bounds(15)
TestAtTheAggregator = AtTheAggregator.TestCase
TestAtTheAggregator.settings = bounds(35)  # six of them end in a release
