"""The wire, one hop a file. Closed, frozen, versioned values; bodies inside are packed by `common.crypto` and `common.modular`."""
