"""Exactly once, whatever happens: random uploads, replays, departures, restarts and clock jumps at both intermediaries.

Every client holds a value of its own, a power of two, so that the sum tells who is in it, and how often. A lost answer
is an upload that the client sends again; a lost request is one that it never sent.
"""

from tests.support.random_operations import AtTheAggregator, AtTheShuffler, bounds

TestAtTheShuffler = AtTheShuffler.TestCase
TestAtTheShuffler.settings = bounds(15)
TestAtTheAggregator = AtTheAggregator.TestCase
TestAtTheAggregator.settings = bounds(35)  # six of them end in a release
