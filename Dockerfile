# One image for workers, topic creation and ingest. Trainers install the library alone: pip install "tokenfeed[torch]".
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md requirements.lock ./
COPY tokenfeed tokenfeed
# The versions of the lock, without its hashes: pip takes those only where every requirement, this folder too, has one.
RUN sed -n 's/^\([a-z0-9._-]*==[^\\]*\) \\$/\1/p' requirements.lock > constraints.txt \
 && python -m venv /opt/tokenfeed \
 && /opt/tokenfeed/bin/pip install --no-cache-dir -c constraints.txt ".[worker,ingest]"

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin tokenfeed \
 && install -d -o tokenfeed /data
COPY --from=build /opt/tokenfeed /opt/tokenfeed
WORKDIR /srv
COPY app app
COPY agents agents
ENV PATH=/opt/tokenfeed/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TOKENFEED_DATA_DIR=/data
USER 10001
VOLUME /data
# Exec form: the worker is PID 1 and gets SIGTERM itself.
CMD ["faust", "-A", "app.main", "worker", "-l", "info", "--without-web"]
