"""The only FastAPI, httpx and uvicorn in common: problems, settings, bodies, long polls, a retrying client."""
