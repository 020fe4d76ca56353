# Everything a person runs. `make help` lists the targets from the comments behind them.

PYTHON ?= python3
RUNTIME := .venv/bin/python
BIN := .venv/bin
export PYTHONPATH :=
# If the shell sets this variable, each of hundreds of processes compiles our modules again.
export PYTHONDONTWRITEBYTECODE :=
STACK := PYTHONPATH=$(CURDIR)/.stack
PACKAGES := shared_model batch_job realtime_service dags
PROTOS := $(wildcard protos/scoring/v1/*.proto protos/inference/*.proto)
SERVICES := protos/scoring/v1/scoring.proto protos/inference/open_inference.proto
# The protoc of protobuf 4.25: its modules work with protobuf 4 to 7, those of a newer one only with that version or later.
# The package wants protobuf 4 for more than protoc, so it lies apart from the environments.
PROTOC_VERSION := 1.62.3
PROTOC := .tandem/protoc-$(PROTOC_VERSION)
UV = $(STACK) $(PYTHON) -m tandem_stack.uv
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock" \
	$(if $(UPGRADE),--upgrade)
TORCH := $(shell sed -n 's/^ *"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
SEEDED = $(if $(SEED),--hypothesis-seed=$(SEED))

.DEFAULT_GOAL := help
.PHONY: help demo up setup release unit test readme proof attack bench-release bench-recipes bench-switch bench-online bench-peers bench-router bench-interfaces bench-nightly bench-scale bench-devices bench-gpu soak compose check proto wheel docs sbom lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# When make itself began: what is installed first is part of the demo's time.
demo: export DEMO_STARTED := $(shell date +%s)
demo: setup ## the whole system once, end to end: a summary, then everything is stopped; STORE=s3: on a local S3 server
	@$(STACK) exec $(RUNTIME) -m tandem_stack demo

# exec: Ctrl-C reaches a shell as well, and make would report that as an error after everything is stopped.
up: setup ## the same parts, kept running until Ctrl-C: Airflow on 8080, gRPC on 50051, metrics on 9464
	@$(STACK) exec $(RUNTIME) -m tandem_stack up

setup: ## make the two environments what their lock files say; find or install a Java
	@$(STACK) $(PYTHON) -m tandem_stack.environments

release: setup ## build the default release, if none is active
	@$(RUNTIME) -m shared_model build --if-missing

unit: setup ## tests without Spark, Airflow, services, Redis and built releases; SEED=7
	@$(RUNTIME) -m pytest -n 2 --dist worksteal -m unit $(SEEDED)

# Three workers on two cores: a third of a worker's time is waits for Airflow and Spark.
test: release ## the whole test suite; SEED=7: property tests with another seed than 0
	@$(RUNTIME) -m pytest -p tests.spark_classes -n 3 --dist loadfile --no-loadscope-reorder \
		-m "not proof and not timed and not readme" $(SEEDED)
	@$(RUNTIME) -m pytest -m "timed and not proof" $(SEEDED) $$(grep -rlF pytest.mark.timed tests --include 'test_*.py')

readme: release ## each block of README in a clean shell, from a fresh clone; CLONE=DIR uses one that is there
	@$(RUNTIME) -m pytest -m readme tests/docs/test_readme.py

proof: SEED := $(or $(SEED),$(shell date +%s))
proof: release ## the heavier proofs, and property tests with more examples and a fresh seed; SEED=7: with this one
	@$(RUNTIME) -m pytest -m proof $(SEEDED)
	@echo "property tests with seed $(SEED); the same again: make proof SEED=$(SEED)"
	@$(RUNTIME) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "hypothesis and not proof" --hypothesis-profile=proof $(SEEDED)

attack: release ## attacks on a service, a minute each, and what a good caller sees; OUT=attack.json ONLY=malformed,resets SECONDS=60 INPUTS=1000000; KEEP=yes: in pieces
	@$(RUNTIME) -m tests.attack $(if $(OUT),--out "$(OUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(SECONDS),--seconds "$(SECONDS)") $(if $(INPUTS),--inputs "$(INPUTS)") $(if $(KEEP),--keep)

bench-release: setup ## the default release built three times and judged on BANKING77, three heads against one; EVAL=test.csv OUT=release.json
	@$(RUNTIME) -m tests.benchmarks.bench_release $(if $(EVAL),--eval "$(EVAL)") $(if $(OUT),--out "$(OUT)")

bench-recipes: setup ## recipes of INT8 compared on three tasks; DATA=DIR with banking77/ and irc/ OUT=recipes.json
	@$(RUNTIME) -m tests.benchmarks.bench_recipes $(if $(DATA),--data "$(DATA)") $(if $(OUT),--out "$(OUT)")

bench-switch: release ## what callers feel when a release is promoted or rolled back; OUT=switch.json
	@$(RUNTIME) -m tests.benchmarks.bench_switch $(if $(OUT),--out "$(OUT)")

bench-online: release ## one replica against its own engines and under overload; OUT=online.json ONLY=overhead,mixed ROUNDS=1 DATA=DIR; burst: SEED=1 ROWS=cv13-35-80 ROW_SECONDS=5
	@$(RUNTIME) -m tests.benchmarks.bench_online $(if $(OUT),--out "$(OUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(ROUNDS),--rounds "$(ROUNDS)") $(if $(DATA),--data "$(DATA)") $(if $(SEED),--seed "$(SEED)") \
		$(if $(ROWS),--rows "$(ROWS)") $(if $(ROW_SECONDS),--row-seconds "$(ROW_SECONDS)")

bench-peers: release ## Tandem beside other servers of the same graph, by h2load; OUT=peers.json ROUNDS=1 SECONDS=5 (of a row) CLOSED=1; KEEP=yes: in pieces
	@$(RUNTIME) -m tests.benchmarks.bench_peers $(if $(OUT),--out "$(OUT)") $(if $(ROUNDS),--rounds "$(ROUNDS)") \
		$(if $(SECONDS),--seconds "$(SECONDS)") $(if $(CLOSED),--closed) $(if $(KEEP),--keep)

bench-router: release ## a decision, a hop, a heartbeat among 64, a submission; OUT=router.json ONLY=decide,forward ROUNDS=1
	@$(RUNTIME) -m tests.benchmarks.bench_router $(if $(OUT),--out "$(OUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(ROUNDS),--rounds "$(ROUNDS)")

bench-interfaces: release ## HTTP beside gRPC, a look-up by id beside an echo, tracing; OUT=interfaces.json ONLY=http,lookup,tracing ROUNDS=1
	@$(RUNTIME) -m tests.benchmarks.bench_interfaces $(if $(OUT),--out "$(OUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(ROUNDS),--rounds "$(ROUNDS)")

bench-nightly: release ## Spark against the bare engine and against stock Spark; OUT=nightly.json ONLY=half,int8 ROUNDS=1 ROWS=8000 PRICE=0.10 DATA=DIR
	@$(RUNTIME) -m tests.benchmarks.bench_nightly $(if $(OUT),--out "$(OUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(ROUNDS),--rounds "$(ROUNDS)") $(if $(ROWS),--rows "$(ROWS)") $(if $(PRICE),--price "$(PRICE)") \
		$(if $(DATA),--data "$(DATA)")

bench-scale: release ## a large day on a cluster and S3, around an engine that sleeps; OUT=scale.json ROWS=10000000 ONLY=night,resume,frame DATA=DIR
	@$(RUNTIME) -m tests.benchmarks.bench_scale $(if $(OUT),--out "$(OUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(ROWS),--rows "$(ROWS)") $(if $(DATA),--data "$(DATA)")

bench-devices: release ## batches and busy share as on a GPU, and split models, without one; OUT=devices.json ONLY=fill,busy DATA=DIR MODELS=MiniLM
	@$(RUNTIME) -m tests.benchmarks.bench_devices $(if $(OUT),--out "$(OUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(DATA),--data "$(DATA)") $(if $(MODELS),--models "$(MODELS)")

bench-gpu: release ## FP16 on a GPU against its matmul rate and other libraries; exit 3 without one; OUT=gpu.json MODELS=bert-large ROWS=200000 DATA=DIR
	@$(RUNTIME) -m tests.benchmarks.bench_gpu $(if $(OUT),--out "$(OUT)") $(if $(MODELS),--models "$(MODELS)") \
		$(if $(ROWS),--rows "$(ROWS)") $(if $(DATA),--data "$(DATA)")

soak: release ## two hours of calls, cancels, reloads, rotations and nights: memory of each process, lost calls; MINUTES=15 OUT=soak.json
	@$(RUNTIME) -m tests.benchmarks.bench_soak $(if $(OUT),--out "$(OUT)") $(if $(MINUTES),--minutes "$(MINUTES)")

compose: setup ## docker-compose.yml in an engine of its own, on stand-ins of its base images: a night, calls, an alert, recovery; as root; OUT=compose.txt
	@$(STACK) $(RUNTIME) -m tests.compose $(if $(OUT),--out "$(OUT)")

check: setup $(PROTOC) ## lint, format, types, import law, known vulnerabilities, Helm chart, generated code up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@MYPYPATH=.stack $(BIN)/mypy $(addprefix -p ,$(PACKAGES) tandem_stack)
	@$(BIN)/lint-imports
	@$(STACK) $(RUNTIME) -m tandem_stack.audit
	@$(STACK) $(RUNTIME) -m tandem_stack.chart
	@$(call generate,.tandem/proto-check) && for file in $$(cd .tandem/proto-check && find protos -type f); do \
		diff -q ".tandem/proto-check/$$file" "$$file" || { echo "run make proto" >&2; exit 2; }; done

proto: setup $(PROTOC) ## generate the Python modules beside the .proto files
	@$(call generate,.)

# The CPU build of torch is what is resolved, so that no CUDA library is locked; it comes from PyTorch's index or from WHEELS.
# The hashes of both builds are allowed, because the host decides which one is installed.
lock: ## write the lock files again; UPGRADE=1: with the newest versions; WHEELS=DIR has a CPU build of torch
	@echo "$(TORCH)+cpu" | $(LOCK) $(if $(WHEELS),--find-links "$(WHEELS)",--torch-backend cpu) --no-emit-package torch --all-extras \
		--output-file requirements-runtime.lock - requirements-runtime.in pyproject.toml >/dev/null
	@cpu=$$($(if $(WHEELS),sha256sum "$(WHEELS)"/torch-*+cpu-*.whl | sed 's/^/sha256:/',$(call hashes_of_torch,$(TORCH)+cpu,--torch-backend cpu))) \
		&& pypi=$$($(call hashes_of_torch,$(subst ==,===,$(TORCH)))) && { echo "$(TORCH) \\"; \
		echo "$$cpu $$pypi" | grep -o 'sha256:[0-9a-f]*' | sort -u | sed 's/.*/    --hash=& \\/; $$s/ .$$//'; } >>requirements-runtime.lock
	@$(LOCK) --constraint requirements-runtime.lock --output-file requirements-development.lock requirements-development.in >/dev/null
	@$(LOCK) --output-file requirements-airflow.lock requirements-airflow.in >/dev/null

sbom: setup ## a CycloneDX SBOM and a list of licences for each environment, in OUT (.tandem/sbom)
	@$(STACK) $(RUNTIME) -m tandem_stack.sbom "$(or $(OUT),.tandem/sbom)"

wheel: setup ## the distribution, a wheel with one package of its own, in OUT (.tandem/dist)
	@$(STACK) $(RUNTIME) -m tandem_stack.wheel "$(or $(OUT),.tandem/dist)"

docs: setup ## write the tables of settings and metrics in the READMEs of packages
	@$(RUNTIME) -m tests.docs.tables

clean: ## remove environments, state and caches; the next run starts cold
	rm -rf .venv .venv-airflow .tandem .pytest_cache .mypy_cache .ruff_cache .import_linter_cache spark-warehouse

$(PROTOC): | setup
	@rm -rf $@.part && $(RUNTIME) -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: \
		--target $@.part grpcio-tools==$(PROTOC_VERSION) && mv $@.part $@

# $(1): a build of torch, with === for PyPI's and none other; $(2): options that name its index.
hashes_of_torch = echo "$(1)" | $(LOCK) --no-deps --no-header $(2) -

# $(1): folder to write to. Only services have stubs.
define generate
mkdir -p $(1) && PYTHONPATH=$(PROTOC) $(RUNTIME) -m grpc_tools.protoc -I. --python_out=$(1) --pyi_out=$(1) $(PROTOS) \
	&& PYTHONPATH=$(PROTOC) $(RUNTIME) -m grpc_tools.protoc -I. --grpc_python_out=$(1) $(SERVICES)
endef
