"""One run: in this process or over services, its result and its transcripts."""
