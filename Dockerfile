# Two images: `api`, without torch, and `worker`. BuildKit builds them (Docker 23 or newer):
#   docker build --target api --tag grasp-api:0.1.0 .
#   docker build --target worker --tag grasp-worker:0.1.0 .
# Packages come from where pip and uv look by default, or from a mirror: --build-arg
# PIP_INDEX_URL=… --build-arg UV_DEFAULT_INDEX=…. Whatever it serves must have the locks' hashes.
ARG PYTHON_IMAGE=python:3.11-slim

# The locked uv, as one file: what follows is built anew when its bytes change, not the lock's.
FROM ${PYTHON_IMAGE} AS uv
ARG PIP_INDEX_URL
WORKDIR /build
COPY requirements.lock ./
RUN sed -n '/^uv==/,/^    # via/p' requirements.lock > uv.txt \
    && pip install --no-cache-dir --no-deps --require-hashes --target /uv --requirement uv.txt

FROM ${PYTHON_IMAGE} AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
COPY --from=uv /uv/bin/uv /usr/local/bin/uv
WORKDIR /build

FROM build AS api-packages
ARG UV_DEFAULT_INDEX
COPY requirements-api.lock ./
RUN --mount=type=cache,target=/root/.cache/uv \
    uv venv /opt/venv \
    && uv pip sync --python /opt/venv --require-hashes requirements-api.lock

# torch's wheels bring CUDA's libraries with them: a CUDA base image would bring them twice.
FROM build AS worker-packages
ARG UV_DEFAULT_INDEX
COPY deploy/requirements-worker.lock ./
RUN --mount=type=cache,target=/root/.cache/uv \
    uv venv /opt/venv \
    && uv pip sync --python /opt/venv --require-hashes requirements-worker.lock

# The client, the command line and the core.
FROM build AS wheel
ARG UV_DEFAULT_INDEX
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY grasp_core ./grasp_core
COPY grasp_client ./grasp_client
COPY grasp_cli ./grasp_cli
RUN --mount=type=cache,target=/root/.cache/uv \
    uv build --wheel --out-dir /dist --build-constraints requirements.lock --require-hashes

# The service is not in the wheel: its rooms are copied to where PYTHONPATH points. Nothing but /data
# and /tmp is written to, so the rest may be read-only; what Python would write there is made here.
FROM ${PYTHON_IMAGE} AS runtime
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/grasp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    GRASP_HOME=/data \
    GRASP_LOG_FORMAT=json
RUN groupadd --gid 10001 grasp \
    && useradd --uid 10001 --gid grasp --no-create-home --home-dir /tmp --shell /usr/sbin/nologin grasp \
    && install --directory --owner grasp --group grasp --mode 0750 /data
VOLUME /data
WORKDIR /
STOPSIGNAL SIGTERM

FROM runtime AS worker
COPY --from=worker-packages /opt/venv /opt/venv
COPY registry /opt/grasp/registry
COPY migrations /opt/grasp/migrations
COPY worker /opt/grasp/worker
COPY deploy/worker_alive.py /opt/grasp/worker_alive.py
RUN --mount=type=bind,from=uv,source=/uv,target=/mnt/uv \
    --mount=type=bind,from=wheel,source=/dist,target=/mnt/dist \
    /mnt/uv/bin/uv pip install --python /opt/venv --no-deps --no-index --no-cache \
        --compile-bytecode /mnt/dist/*.whl \
    && python -m compileall -q /opt/grasp
# For NVIDIA's container runtime, which adds the driver: `compute` is CUDA, `utility` nvidia-smi,
# by which a worker counts its GPUs. Without that runtime they mean nothing.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
HEALTHCHECK --interval=60s --timeout=20s --start-period=120s --retries=5 \
    CMD ["python", "/opt/grasp/worker_alive.py"]
CMD ["grasp", "worker", "--devices", "auto"]

FROM runtime AS api
COPY --from=api-packages /opt/venv /opt/venv
COPY registry /opt/grasp/registry
COPY migrations /opt/grasp/migrations
COPY app /opt/grasp/app
RUN --mount=type=bind,from=uv,source=/uv,target=/mnt/uv \
    --mount=type=bind,from=wheel,source=/dist,target=/mnt/dist \
    /mnt/uv/bin/uv pip install --python /opt/venv --no-deps --no-index --no-cache \
        --compile-bytecode /mnt/dist/*.whl \
    && python -m compileall -q /opt/grasp
# An address other than loopback is refused until there is an API key.
ENV GRASP_HOST=0.0.0.0 \
    GRASP_PORT=8000 \
    GRASP_WORKERS=0
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ['GRASP_PORT'] + '/healthz', timeout=4)"]
CMD ["grasp", "serve"]
