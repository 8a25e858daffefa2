# Two images from one file: `--target api` holds no torch and runs analyses too, `--target worker` holds the model.
FROM python:3.13-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY actograph actograph
COPY api api
COPY evals evals
COPY storage storage
COPY worker worker
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.13-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 ACTOGRAPH_HOME=/data
RUN useradd --create-home --uid 1000 actograph && mkdir /data && chown actograph /data
WORKDIR /home/actograph
COPY constraints.txt /
COPY --from=wheel /wheel /wheel
VOLUME /data

FROM base AS api
RUN pip install -c /constraints.txt "$(ls /wheel/*.whl)[server]"
USER 1000
EXPOSE 8420
# bring the schema up to date, then serve
CMD ["sh", "-c", "actograph service migrate && exec actograph service api"]

FROM base AS worker
# Triton needs a C compiler on a GPU
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install -c /constraints.txt "$(ls /wheel/*.whl)[service]"
USER 1000
CMD ["actograph", "worker"]
