"""Privacy amplification by shuffling, computed: for any pure local randomizer, and for given ones."""
