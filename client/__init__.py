"""The client: simulated users draw true rewards, randomize them (R), and send only the randomized messages."""
