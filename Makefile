# Short names for what people do. `make demo` and `make test` need nothing but Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
RUNS ?= 3

.PHONY: help venv demo test chaos soak bench peers check kafka lock clean

help: ## say what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

.venv/installed: requirements.lock tests/tokenizers.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --require-hashes --no-deps -r requirements.lock -r tests/tokenizers.lock
	$(BIN)/pip install --disable-pip-version-check --no-deps -e .
	touch $@

.venv/frameworks: .venv/installed tests/frameworks.lock
	$(BIN)/pip install --disable-pip-version-check --require-hashes --no-deps -r tests/frameworks.lock
	touch $@

venv: .venv/installed ## make .venv with what the lock pins; the other targets do it themselves

demo: .venv/installed ## raw text through Kafka and two workers into a model that learns; CORPUS=PATH for your own text
	$(BIN)/python -m examples.demo

test: check .venv/frameworks ## all checks and tests; on Apache Kafka too, where Java and Maven are
	$(BIN)/python -m pytest -n 3 --dist loadscope

chaos: .venv/frameworks ## every fault on Apache Kafka, within an hour; writes chaos-report.json
	CI=true CHAOS_REPORT=chaos-report.json $(BIN)/python -m pytest tests/chaos -m ""

soak: .venv/installed ## 20 minutes of two workers and a reader on Apache Kafka: memory, descriptors, lag, audit
	$(BIN)/python -m benchmarks.soak

bench: peers ## all benchmarks on Apache Kafka, against limits and peers, RUNS=3 times, about an hour; ends with one JSON object
	$(BIN)/python -m benchmarks all --runs $(RUNS) --json > .cache/bench.json; code=$$?; \
	  .cache/peers/bin/python -m benchmarks.plots .cache/bench.json docs/plots; cat .cache/bench.json; exit $$code

.cache/peers/installed: .venv/installed benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .cache/peers
	echo "$(CURDIR)/.venv/lib/$$($(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages" \
	  > "$$(.cache/peers/bin/python -c 'import site; print(site.getsitepackages()[0])')/tokenfeed.pth"
	.cache/peers/bin/pip install --disable-pip-version-check -q --prefer-binary -r benchmarks/peers/requirements.txt
	touch $@

peers: .cache/peers/installed ## make .cache/peers with what the benchmarks compare with

check: .venv/installed ## lint, format, types, layering, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

kafka: .venv/installed ## Apache Kafka on this machine until Ctrl-C; needs Java and Maven
	$(BIN)/python scripts/kafka run

COMPILE := $(BIN)/uv pip compile -q --generate-hashes --no-header --universal --python-version 3.11 --no-emit-index-url
lock: .venv/installed ## write the locks anew from requirements.txt and tests/frameworks.txt
	$(BIN)/pip install --disable-pip-version-check -q uv
	$(COMPILE) requirements.txt -o requirements.lock
	$(COMPILE) -c requirements.lock tests/frameworks.txt -o tests/frameworks.lock \
	  $$(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements.lock)

clean: ## remove what the other targets made
	rm -rf .venv .cache .data .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
