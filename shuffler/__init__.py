"""S by permutation: holds reports until everybody answered, and forwards their bodies in random order."""
