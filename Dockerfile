# One image for every party; the command says which one runs.
FROM python:3.11-slim

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /app

COPY requirements-runtime.lock ./
RUN pip install --require-hashes -r requirements-runtime.lock

COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY client client
COPY shuffler shuffler
COPY aggregator aggregator
COPY server server
COPY lab lab
COPY src src
RUN pip install --no-deps --no-build-isolation . \
 && useradd --uid 10001 --no-create-home --home-dir /data distrust \
 && mkdir -p /data /secret/inspector /proxy && chown -R distrust:distrust /data /secret /proxy && chmod 700 /data

USER distrust
WORKDIR /data
ENTRYPOINT ["distrust"]
CMD ["--help"]
