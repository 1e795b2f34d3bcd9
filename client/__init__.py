"""R: where true rewards exist, are randomized, and leave as messages that tell nobody what they were."""
