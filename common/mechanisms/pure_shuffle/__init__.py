"""Pure privacy by shuffling bits: MAB Theorem 3's relaxed secure aggregation, built so that it can be certified."""
