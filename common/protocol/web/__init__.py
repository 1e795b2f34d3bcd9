"""HTTP for all parties: problems, settings, bodies, long polls, a retrying client. Only here common imports FastAPI."""
