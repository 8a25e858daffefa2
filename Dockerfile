# Two images from one file: `--target api` holds no torch and runs analyses too, `--target worker` holds the model.
FROM python:3.13-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 ACTOGRAPH_HOME=/data
RUN useradd --create-home --uid 1000 actograph && mkdir /data && chown actograph /data
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY actograph actograph
COPY api api
COPY evals evals
COPY storage storage
COPY worker worker
VOLUME /data

FROM base AS api
RUN pip install -c constraints.txt -e '.[analysis,report,server]' && python -m compileall -q actograph api evals storage worker
USER 1000
EXPOSE 8420
# bring the schema up to date, then serve
CMD ["sh", "-c", "python -m storage.migrate && exec python -m api"]

FROM base AS worker
# Triton needs a C compiler on a GPU
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install -c constraints.txt -e '.[worker]' && python -m compileall -q actograph api evals storage worker
USER 1000
CMD ["python", "-m", "worker"]
