# Two commands for a newcomer: `make audit` and `make test`. Each sets up what it needs in .venv, once.
.POSIX:
PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
JOBS = 3
PIP = $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: audit test quick lint types tests faults full-size format clean parity contracts docs bench calibration

audit: $(VENV)/.audit
	$(BIN)/hrx audit bolt-mini

test: lint types tests

# The same without the slow tests, for work in progress.
quick: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy cannot follow the mapping of folders to hrx.*, so it reads a tree of links that has the installed layout.
types: $(VENV)/.test
	rm -rf build/types
	mkdir -p build/types/hrx
	for file in common/*; do ln -s ../../../$$file build/types/hrx/; done
	for package in api cli adapters audit gift_eval records reports; do ln -s ../../../$$package build/types/hrx/; done
	MYPYPATH=build/types $(BIN)/mypy

# Two families need environments of their own: VisionTS its torchvision, and `generate`, the official call of Timer
# and TimeMoE, an old transformers. -rs lists what was skipped and what it needs, such as a browser for the page.
tests: $(VENV)/.test $(VENV)-visionts/.done $(VENV)-generate/.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -rs
	OMP_NUM_THREADS=1 $(VENV)-visionts/bin/python -m pytest -n $(JOBS) --dist worksteal tests/adapters/test_visionts.py tests/adapters/test_families.py tests/adapters/test_mutations.py
	OMP_NUM_THREADS=1 $(VENV)-generate/bin/python -m pytest -n $(JOBS) --dist worksteal tests/adapters/test_timer_timemoe.py tests/adapters/test_families.py tests/adapters/test_mutations.py

# Every fault of tests/faults, of which `make test` runs a sample; writes the figures into docs/reliability.md,
# also where a test fails, and fails where a suite has none.
faults: $(VENV)/.test
	rm -rf build/faults
	HRX_FAULTS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/faults; \
	code=$$?; $(BIN)/python tests/faults/write_reliability.py && exit $$code

# Checkpoints of the released sizes with random weights, one at a time: minutes and up to 3 GB each.
full-size: $(VENV)/.test
	HRX_FULL_SIZE=1 $(BIN)/python -m pytest tests/adapters/test_full_size.py --durations=0

# The documentation, from docs/ and from the code itself, into build/site.
docs: $(VENV)/.docs
	$(BIN)/python -m properdocs build --strict

# Speed as ratios, measured side by side; wants an idle machine.
bench: $(VENV)/.test
	$(BIN)/python tests/benchmarks/run.py

# Measures the parity of every family with its official call and writes docs/parity.md.
parity: $(VENV)/.test $(VENV)-visionts/.done $(VENV)-generate/.done
	for venv in $(VENV) $(VENV)-visionts $(VENV)-generate; do $$venv/bin/python tests/parity.py || exit 1; done

# Simulates the error rates of intervals, verdicts and gates, in some minutes, and writes docs/error-rates.md.
calibration: $(VENV)/.test
	$(BIN)/python tests/error_rates.py

# Measures what the official call of every family promises and writes the tables of docs/contracts.md.
contracts: $(VENV)/.test $(VENV)-visionts/.done $(VENV)-generate/.done
	for venv in $(VENV) $(VENV)-visionts $(VENV)-generate; do $$venv/bin/python tests/contracts.py || exit 1; done

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-visionts $(VENV)-generate build hrx.egg-info hrx-audit

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("hrx needs Python 3.11 or newer; name one with: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# The dependencies of the embedded checkpoint and series only.
$(VENV)/.audit: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt]'
	touch $@

# Some libraries pin an older torch, numpy or datasets than the others run on; without their pins they run on this one.
# darts needs further packages for its models, which no test runs.
$(VENV)/.test: $(VENV)/.audit
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt,chronos-2,timesfm,moirai-2,tirex-2,toto-2,t0,timestral,neuralforecast,gift-eval,ray,docs,dev]' scikit-learn hydra-core
	$(PIP) --constraint constraints.txt --no-deps granite-tsfm uni2ts sktime scikit-base momentfm u8darts xarray fev
	touch $@

$(VENV)/.docs: $(VENV)/.audit
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt,docs]'
	touch $@

# An overlay environment has its own packages first and those of .venv behind them.
OVERLAY = import sys, sysconfig; open(sysconfig.get_path("purelib") + "/main.pth", "w").write(f"import site; site.addsitedir({sys.argv[1]!r})")
SITE = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
INTO = $(BIN)/pip --disable-pip-version-check --python

$(VENV)-visionts/.done: $(VENV)/.test
	$(PYTHON) -m venv --clear --without-pip $(VENV)-visionts
	$(VENV)-visionts/bin/python -c '$(OVERLAY)' "$(SITE)"
	$(INTO) $(VENV)-visionts/bin/python install --quiet --no-deps torchvision==0.28.0 timm==1.0.30 visionts==1.0.1 \
		requests==2.32.5 urllib3==2.5.0 certifi==2026.10.18 charset-normalizer==3.4.3
	touch $@

$(VENV)-generate/.done: $(VENV)/.test
	$(PYTHON) -m venv --clear --without-pip $(VENV)-generate
	$(VENV)-generate/bin/python -c '$(OVERLAY)' "$(SITE)"
	$(INTO) $(VENV)-generate/bin/python install --quiet --no-deps --ignore-installed transformers==4.40.1 \
		tokenizers==0.19.1 huggingface-hub==0.23.5 requests==2.32.5 urllib3==2.5.0 certifi==2026.10.18 \
		charset-normalizer==3.4.3
	touch $@
