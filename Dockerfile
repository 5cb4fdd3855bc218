# Two images; `make images` builds both.
#
#   docker build --target operator -t gpujob-operator:0.1.0 .                        operator and node agent
#   docker build --target worker -t gpujob-worker:0.1.0 .                            worker, torch's CUDA build
#   docker build --target worker -t gpujob-worker:0.1.0 --build-arg TORCH=cpu .      worker, torch's CPU build
#
# Packages come with locked hashes; only torch's CPU build has none. The base below is a tag, which may be another
# image tomorrow: `make release-images` takes none but a digest. With SOURCE_DATE_EPOCH the same sources and the same base give the same
# files, times included, but for the compiler that the worker image takes from its distribution.
# Any base with Python 3.11 or newer and its venv module will do. Classic builder syntax throughout.
ARG BASE=python:3.12-slim

FROM ${BASE} AS wheel
ARG SOURCE_DATE_EPOCH=0
WORKDIR /source
COPY requirements/build.txt requirements/
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY operator operator
COPY worker worker
COPY cli cli
COPY dashboard dashboard
COPY local local
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM ${BASE} AS operator-packages
ARG SOURCE_DATE_EPOCH=0
COPY requirements/operator.txt /requirements/
COPY scripts/finish_environment.sh /scripts/
RUN python3 -m venv /opt/gpujob && \
    /opt/gpujob/bin/pip install --no-cache-dir --no-compile --require-hashes -r /requirements/operator.txt
COPY --from=wheel /wheel /wheel
RUN /opt/gpujob/bin/pip install --no-cache-dir --no-compile --no-deps /wheel/*.whl && \
    /scripts/finish_environment.sh /opt/gpujob

FROM ${BASE} AS operator
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="gpujob-operator" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND 0BSD AND BSD-2-Clause AND BSD-3-Clause AND CC0-1.0 AND ISC AND MIT AND MPL-2.0 AND PSF-2.0 AND Zlib"
COPY LICENSE NOTICE /usr/share/doc/gpujob/
COPY --from=operator-packages /opt/gpujob /opt/gpujob
# Nothing is written but to /tmp, so the root file system may be read-only. The number has no name in
# /etc/passwd, which some libraries ask for.
ENV PATH=/opt/gpujob/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=gpujob LOGNAME=gpujob
# A number, so that the kubelet can see that it is not root.
USER 65532:65532
CMD ["gpujob-operator", "run"]

# From here on worker only: a builder without BuildKit makes every stage above its target.
FROM ${BASE} AS worker-packages
ARG SOURCE_DATE_EPOCH=0
# cuda or cpu.
ARG TORCH=cuda
COPY requirements/worker.txt requirements/worker-cpu.txt requirements/uv.txt /requirements/
COPY scripts/install_worker.sh scripts/finish_environment.sh /scripts/
RUN python3 -m venv /opt/gpujob && /scripts/install_worker.sh /opt/gpujob /requirements "${TORCH}"
COPY --from=wheel /wheel /wheel
# The folder that stands first on PYTHONPATH, under a name that does not depend on Python's version.
RUN /opt/gpujob/bin/pip install --no-cache-dir --no-compile --no-deps /wheel/*.whl && \
    ln -s /opt/gpujob/lib/python3.*/site-packages/gpujob_worker/python_path /opt/gpujob/hook && \
    /scripts/finish_environment.sh /opt/gpujob

FROM ${BASE} AS worker
ARG VERSION=0.1.0
# Of NVIDIA's libraries too, which come with torch's CUDA build alone.
ARG CUDA_LICENSES=" AND LicenseRef-NVIDIA-Proprietary"
LABEL org.opencontainers.image.title="gpujob-worker" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND 0BSD AND BSD-2-Clause AND BSD-3-Clause AND BSL-1.0 AND CC0-1.0 AND ISC AND MIT AND PSF-2.0 AND Zlib${CUDA_LICENSES}"
COPY LICENSE NOTICE /usr/share/doc/gpujob/
# torch.compile builds kernels at run time, for which it needs a compiler and Python's headers; the
# Python images have the headers, Debian's and Ubuntu's Python has them in a package.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && \
    { python3 -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || \
      apt-get install --yes --no-install-recommends python3-dev; } && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log /var/cache/ldconfig/aux-cache && \
    mkdir /workspace && chown 65532:65532 /workspace
COPY --from=worker-packages /opt/gpujob /opt/gpujob
COPY --chown=65532:65532 examples /workspace
# The number has no name in /etc/passwd; torch asks for one when it names its cache.
# Whatever a job's command is, what trains in it is hooked.
ENV PATH=/opt/gpujob/bin:$PATH PYTHONPATH=/opt/gpujob/hook PYTHONUNBUFFERED=1 HOME=/workspace USER=gpujob LOGNAME=gpujob
WORKDIR /workspace
USER 65532:65532
CMD ["gpujob-run", "--help"]
