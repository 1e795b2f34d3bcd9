"""A run in public: its configuration, the open round, and how it stands."""
