# make demo   the main job, on real data      make test    what CI runs
# make check  formatter, linter, types        make soak    long campaigns
# make test-spark SPARK=4.2.0   the tests of Spark, with another version of it
# make test-fast   most units, the coordinator, some properties: minutes, no Spark
# make bench  every benchmark, in short       make demo-rescale   state moves, under load
# make demo-dashboard   a pipeline in trouble, to be looked at in a browser
# make demo-kafka   from Kafka to Kafka, with a driver that is killed
# make evaluation  the papers' tables and figures, made again
# make docs   the documentation site, in `site`    make docs-serve   shows it at localhost:8000
# make dist   wheel and sdist, with their contents checked    make release-check   the same, and README run on the wheel
# make vendor   fetches the scripts of the dashboard again from npm, and compares them
# make upgrade   newer versions of what it needs, into constraints.txt: run the tests after it
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With compiled modules kept, each of the many processes of a test starts half a second sooner.
unexport PYTHONDONTWRITEBYTECODE
export PYSPARK_PYTHON := $(abspath $(BIN)/python)

.PHONY: help chromium vendor demo demo-rescale demo-kafka demo-dashboard test test-fast test-spark check format soak bench evaluation docs docs-serve dist release-check upgrade java clean

help:
	@sed -n 's/^# //p' Makefile

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo]' --group dev
	touch $@

upgrade:
	rm -rf $(VENV)
	grep '^#' constraints.txt > constraints.new
	mv constraints.new constraints.txt
	$(MAKE) $(VENV)/.bench $(VENV)/.docs $(VENV)/.release
	$(BIN)/pip freeze --exclude-editable >> constraints.txt
	touch $(VENV)/.installed $(VENV)/.bench $(VENV)/.docs $(VENV)/.release

vendor:
	sh scripts/compare_vendored.sh

java:
	@sh scripts/find-java.sh

# Virtual machines start in half the time with an archive of the classes that Spark loads.
$(VENV)/spark-classes.jsa: $(VENV)/.installed scripts/share_java_classes.py | java
	. scripts/java-home.sh && $(BIN)/python scripts/share_java_classes.py $@

chromium: $(VENV)/.installed
	@sh scripts/find-chromium.sh $(BIN)/python

demo: $(VENV)/.installed java
	. scripts/java-home.sh && $(BIN)/python examples/flights/demo.py

demo-rescale: $(VENV)/.installed java
	. scripts/java-home.sh && $(BIN)/python examples/rescale/demo.py

demo-kafka: $(VENV)/.installed java
	. scripts/java-home.sh && $(BIN)/python examples/kafka/demo.py

demo-dashboard: $(VENV)/.installed java
	. scripts/java-home.sh && $(BIN)/python examples/dashboard/demo.py

test-fast: $(VENV)/.installed
	$(BIN)/python scripts/test.py --fast

test: $(VENV)/.installed java $(VENV)/spark-classes.jsa chromium check
	. scripts/java-home.sh && $(BIN)/python scripts/test.py

SPARK ?= 4.2.0
OTHER := .venv-spark-$(SPARK)
test-spark: $(OTHER)/.installed java
	. scripts/java-home.sh && PYSPARK_PYTHON=$(abspath $(OTHER)/bin/python) $(OTHER)/bin/pytest -q -m "not soak" tests/spark

$(OTHER)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install --quiet --upgrade "pip>=25.1"
	grep -v '^pyspark==' constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/pip install --quiet --constraint $(OTHER)/constraints.txt --editable '.[demo]' --group dev "pyspark==$(SPARK)"
	touch $@

check: $(VENV)/.installed
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff format src tests examples benchmarks
	$(BIN)/ruff check --fix src tests examples benchmarks

soak: $(VENV)/.installed java
	mkdir -p benchmarks/results
	. scripts/java-home.sh && HEADRACE_SOAK_JSON=benchmarks/results/soak.json $(BIN)/pytest -q -s -m soak tests
	. scripts/java-home.sh && $(BIN)/pytest -q --hypothesis-profile=thorough -m "not soak and not spark" tests
	. scripts/java-home.sh && HEADRACE_DRAW=all $(BIN)/pytest -q -m "spark and not soak" tests
	. scripts/java-home.sh && $(BIN)/python -m benchmarks.recover --keys 10000000 --history 100 10000 --json benchmarks/results/recover.json
	$(BIN)/python -m tests.faults.simulation.campaign --seeds 100000 --json benchmarks/results/simulation.json

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --group docs
	touch $@

docs: $(VENV)/.docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q -c docs -b html . site

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

$(VENV)/.release: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --group release
	touch $@

dist: $(VENV)/.release
	$(BIN)/python scripts/release_check.py --only-build

release-check: $(VENV)/.release java
	. scripts/java-home.sh && $(BIN)/python scripts/release_check.py $(if $(RELEASE_TAG),--tag "$$RELEASE_TAG")

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --group bench
	touch $@

evaluation: $(VENV)/.bench java
	. scripts/java-home.sh && $(BIN)/python -m benchmarks.evaluation

bench: $(VENV)/.bench java
	mkdir -p benchmarks/results
	. scripts/java-home.sh && for program in floor latency count user bins migrate rescale recover scale; do $(BIN)/python -m benchmarks.$$program --quick --json benchmarks/results/quick_$$program.json || exit 1; done

clean:
	rm -rf $(VENV) .venv-spark-* .tools demo-data dist site
