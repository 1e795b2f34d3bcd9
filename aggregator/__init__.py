"""S by secure sum: adds masked vectors modulo m and never sees one in clear."""
