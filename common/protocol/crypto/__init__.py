"""Masks, shares, boxes, seals, the neighbour graph and its parameters. No I/O."""
