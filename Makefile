# Every target sets up what it needs; `make` alone lists them. Outside the tree it writes to three cache
# folders: pip's (uv's own package), uv's (all other packages), and that of the Kubernetes tools, which
# are built once (see `make tools`).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Where bytecode may not be kept, each of the many processes that the tests start compiles torch anew:
# an import of torch._dynamo took 16 s of a core instead of 6, with the oldest torch 11 instead of 5.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv/bin
# Folders with Python of ours; shell globs, so that an absent one is no error.
PYTHON_FOLDERS := $(wildcard api operator worker cli dashboard local bench examples tests)

.PHONY: help
help: ## List the targets
	@echo 'GPUJob. Targets:'
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(firstword $(MAKEFILE_LIST)) | \
	  awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

.PHONY: demo
demo: setup ## Run the story on a real Kubernetes on this machine, no GPU, root or Docker (3 min)
	@$(VENV)/python -m gpujob_local.control_plane.tools kubernetes
	@$(VENV)/python -m gpujob_local.demo

.PHONY: test
test: tools ## Run the tests (TESTS="tests/unit -k why" for a part)
	@$(VENV)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
	  $(or $(TESTS),tests)

.PHONY: coverage
coverage: tools ## Run the tests and list the lines that none of them reaches (slower; TESTS=...)
	@$(VENV)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
	  --cov --cov-report=term-missing:skip-covered $(or $(TESTS),tests)

.PHONY: e2e
e2e: e2e-tools ## Play scenes with the chart on real kubelets (Linux, root; 15 min; TESTS=... for a part)
	@$(VENV)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -p no:randomly \
	  -o cache_dir=.pytest_cache/e2e -m e2e $(or $(TESTS),tests/e2e)

.PHONY: e2e-tools
e2e-tools: setup ## Build what `make e2e` needs, where real kubelets can run (minutes the first time)
	@$(VENV)/python -m gpujob_local.kubelets.tools

.PHONY: test-oldest
test-oldest: setup ## Run the worker's tests with the oldest torch that we promise (TESTS=... for a part)
	@scripts/setup_oldest.sh
	@.venv-oldest/bin/python -m pytest -n logical --maxprocesses 4 --dist loadfile \
	  --no-loadscope-reorder -o cache_dir=.pytest_cache/oldest \
	  -m 'not slow and not trainers and not any_torch' \
	  $(or $(TESTS),tests/worker)

.PHONY: test-gpu
test-gpu: setup ## Run the tests that need a CUDA GPU on this machine (TESTS=... for a part)
	@$(VENV)/python -m pytest -p no:randomly -m gpu $(or $(TESTS),tests/gpu)

.PHONY: simulate
simulate: setup ## Run the decision core through seeded faults in virtual time (SEEDS=0-9999)
	@$(VENV)/python -m tests.simulation.run --seeds $(or $(SEEDS),0-9999)

.PHONY: shapes
shapes: setup ## Stop, kill and resume scripts of many shapes; each ends as the plain run (SEEDS=0-1999)
	@$(VENV)/python -m tests.worker.resume.shapes --seeds $(or $(SEEDS),0-1999)

.PHONY: soak
soak: tools ## Play faults on a real API server and check every revision (REVISIONS=100000, an hour)
	@$(VENV)/python -m tests.soak --revisions $(or $(REVISIONS),100000) --seed $(or $(SEED),0)

.PHONY: mutants
mutants: setup ## Break the product one line at a time; a test has to notice each (AREA=decide for a part)
	@$(VENV)/python -m tests.mutants --area '$(AREA)'

.PHONY: bench
bench: setup ## Print the benchmarks (DATA=dir with openb, muri, pollux, gavel for those on traces)
	@$(VENV)/python -m bench.scale
	@$(VENV)/python -m bench.worker --quick
	@$(VENV)/python -m bench.overhead --quick
	@$(VENV)/python -m bench.resume --quick
	@$(VENV)/python -m bench.sweep --gpus 1
	@test -z "$(DATA)" || $(VENV)/python -m bench.placement --data "$(DATA)/openb"
	@test -z "$(DATA)" || $(VENV)/python -m bench.sharing --data "$(DATA)/muri"
	@test -z "$(DATA)" || $(VENV)/python -m bench.gangs --data "$(DATA)/pollux"
	@test -z "$(DATA)" || $(VENV)/python -m bench.interference --data "$(DATA)/gavel"

.PHONY: bench-gpu
bench-gpu: setup ## Measure the worker on this machine's GPU, 8 minutes (writes bench/results/)
	@$(VENV)/python -m bench.gpu

.PHONY: lint
lint: setup ## Check format, style, types, layers and the project's own rules; says all at once
	@status=0; check() { echo "==> $$1"; shift; "$$@" || status=1; }; \
	check 'ruff format' $(VENV)/ruff format --check --output-format=concise $(PYTHON_FOLDERS); \
	check 'ruff' $(VENV)/ruff check --output-format=concise $(PYTHON_FOLDERS); \
	check 'pyright, strict' $(VENV)/pyright; \
	check 'import-linter' $(VENV)/lint-imports --no-logo; \
	check "the project's rules" $(VENV)/python -m pytest -q --no-header tests/unit/project; \
	exit $$status

.PHONY: format
format: setup ## Format the code and apply safe fixes
	@$(VENV)/ruff format $(PYTHON_FOLDERS)
	@$(VENV)/ruff check --fix $(PYTHON_FOLDERS)

.PHONY: tools
tools: setup ## Build or find etcd, Kubernetes' control plane, kubectl, helm, promtool (first time 7 min)
	@$(VENV)/python -m gpujob_local.control_plane.tools

.PHONY: setup
setup: ## Make .venv with the locked packages (TORCH_BACKEND=cpu for the small torch)
	@scripts/setup.sh

.PHONY: lock
lock: setup ## Rewrite requirements/*.txt from pyproject.toml, with hashes
	@requirements/lock.sh

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
ENGINE ?= docker
BASE ?= python:3.12-slim
TORCH ?= cuda
# The time of the newest commit, so that two builds of it are equal.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
BUILD = $(ENGINE) build --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) \
  --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH)
# NVIDIA's libraries come with torch's CUDA build alone.
BUILD_TORCH = --build-arg TORCH=$(TORCH) $(if $(filter cpu,$(TORCH)),--build-arg CUDA_LICENSES=)

.PHONY: images
images: ## Build the images with Docker (TORCH=cpu, REGISTRY=host/, BASE=image@digest, ENGINE=podman)
	@$(BUILD) --target operator --tag $(REGISTRY)gpujob-operator:$(VERSION) .
	@$(BUILD) --target worker $(BUILD_TORCH) --tag $(REGISTRY)gpujob-worker:$(VERSION) .

.PHONY: release-images
release-images: ## Build the images of a release: the base by its digest (BASE=python:3.12-slim@sha256:..., REGISTRY=host/)
	@case "$(BASE)" in *@sha256:*) ;; \
	  *) echo "BASE=$(BASE) is a tag, which may be another image tomorrow; name its digest, as" \
	    "'docker buildx imagetools inspect $(BASE)' shows it: BASE=$(BASE)@sha256:..." >&2; exit 2;; esac
	@$(MAKE) images

.PHONY: generate
generate: ## Copy the CRDs into the chart, and write the pages of reasons and promises
	@cp crds/*.yaml charts/gpujob/files/crds/
	@$(VENV)/python -m gpujob_operator.reasons_page > docs/reference/reasons.md
	@$(VENV)/python -m tests.harness.promises > docs/promises.md

.PHONY: plugin
plugin: setup ## Build kubectl-gpujob as one file that needs Python and kubectl alone (build/kubectl-gpujob)
	@$(VENV)/python scripts/plugin.py build/kubectl-gpujob

.PHONY: pictures
pictures: setup ## Record the pictures in docs/images from real runs (3 min)
	@$(VENV)/python -m gpujob_local.control_plane.tools kubernetes
	@$(VENV)/python -m bench.pictures

.PHONY: clean
clean: ## Remove .venv and everything generated in the tree
	@rm -rf .venv .venv-oldest .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* coverage.xml htmlcov \
	  build dist .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
