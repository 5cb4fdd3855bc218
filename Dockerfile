# Two images:  docker build --target operator -t gpujob-operator:0.1.0 .
#              docker build --target worker   -t gpujob-worker:0.1.0 .
#
# The operator image (operator and node agent) has no torch; the worker image has torch's CUDA build.
# Packages come with locked hashes. For a release name the base by its digest as well:
#   --build-arg BASE=python:3.12-slim@sha256:...
# Any base with Python 3.11 or newer and its venv module will do. Classic builder syntax throughout.
ARG BASE=python:3.12-slim

FROM ${BASE} AS wheel
WORKDIR /source
COPY requirements/build.txt requirements/
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY operator operator
COPY worker worker
COPY cli cli
COPY local local
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM ${BASE} AS operator-packages
COPY requirements/operator.txt /requirements.txt
RUN python3 -m venv /opt/gpujob && /opt/gpujob/bin/pip install --no-cache-dir --require-hashes -r /requirements.txt
COPY --from=wheel /wheel /wheel
RUN /opt/gpujob/bin/pip install --no-cache-dir --no-deps /wheel/*.whl && \
    /opt/gpujob/bin/pip uninstall --yes pip

FROM ${BASE} AS operator
COPY --from=operator-packages /opt/gpujob /opt/gpujob
ENV PATH=/opt/gpujob/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that the kubelet can see that it is not root.
USER 65532:65532
CMD ["gpujob-operator", "run"]

# From here on worker only: a builder without BuildKit makes every stage above its target.
FROM ${BASE} AS worker-packages
COPY requirements/worker.txt /requirements.txt
RUN python3 -m venv /opt/gpujob && /opt/gpujob/bin/pip install --no-cache-dir --require-hashes -r /requirements.txt
COPY --from=wheel /wheel /wheel
# The folder that stands first on PYTHONPATH, under a name that does not depend on Python's version.
RUN /opt/gpujob/bin/pip install --no-cache-dir --no-deps /wheel/*.whl && \
    ln -s "$(/opt/gpujob/bin/python3 -c 'from gpujob_worker.launch.command import HOOK_FOLDER as h; print(h)')" /opt/gpujob/hook

FROM ${BASE} AS worker
# torch.compile builds kernels at run time, for which it needs a compiler and Python's headers; the
# Python images have the headers, Debian's and Ubuntu's Python has them in a package.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && \
    { python3 -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || \
      apt-get install --yes --no-install-recommends python3-dev; } && rm -rf /var/lib/apt/lists/* && \
    mkdir /workspace && chown 65532:65532 /workspace
COPY --from=worker-packages /opt/gpujob /opt/gpujob
COPY --chown=65532:65532 examples /workspace
# The number has no name in /etc/passwd; torch asks for one when it names its cache.
# Whatever a job's command is, what trains in it is hooked.
ENV PATH=/opt/gpujob/bin:$PATH PYTHONPATH=/opt/gpujob/hook PYTHONUNBUFFERED=1 HOME=/workspace USER=gpujob LOGNAME=gpujob
WORKDIR /workspace
USER 65532:65532
CMD ["gpujob-run", "--help"]
