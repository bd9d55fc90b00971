# Two commands for a newcomer: `make audit` and `make test`. Each sets up what it needs in .venv, once.
.POSIX:
PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
JOBS = 3
PIP = $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: audit test lint types tests format clean parity docs bench chromium

audit: $(VENV)/.audit
	$(BIN)/hrx audit bolt-mini

test: lint types tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Type checkers cannot follow the mapping of folders to hrx.*, so they are shown a tree of links that spells it out.
types: $(VENV)/.test
	rm -rf build/types
	mkdir -p build/types/hrx
	for file in common/*; do ln -s ../../../$$file build/types/hrx/; done
	for room in cli adapters audit gift_eval reports; do ln -s ../../../$$room build/types/hrx/; done
	MYPYPATH=build/types $(BIN)/mypy

# Two families need another environment than the rest: VisionTS its torchvision, and `generate`, the official call
# of Timer and TimeMoE, an old transformers. Their tests run there too.
tests: $(VENV)/.test $(VENV)-visionts/.done $(VENV)-generate/.done chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
	OMP_NUM_THREADS=1 $(VENV)-visionts/bin/python -m pytest -n $(JOBS) --dist worksteal tests/adapters/test_visionts.py
	OMP_NUM_THREADS=1 $(VENV)-generate/bin/python -m pytest -n $(JOBS) --dist worksteal tests/adapters/test_timer.py tests/adapters/test_timemoe.py

# The page is tested in a real browser where there is one, or where root can install it.
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
			&& { apt-get install -y -qq chromium >/dev/null 2>&1 \
				|| { apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq chromium >/dev/null 2>&1; }; }; } \
		|| echo "No Chromium: the tests of the page in a browser are skipped."

# The documentation, from docs/ and from the code itself, into build/site.
docs: $(VENV)/.docs
	$(BIN)/python -m mkdocs build --strict

# Ratios that speed is judged by, measured side by side: about seven minutes on an idle machine.
bench: $(VENV)/.test
	$(BIN)/python tests/benchmarks/run.py

# Measures every family's parity with its official call again and writes docs/parity.md.
parity: $(VENV)/.test $(VENV)-visionts/.done $(VENV)-generate/.done
	for venv in $(VENV) $(VENV)-visionts $(VENV)-generate; do $$venv/bin/python tests/parity.py || exit 1; done

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-visionts $(VENV)-generate build hrx.egg-info hrx-audit

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("hrx needs Python 3.11 or newer; name one with: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# What the embedded checkpoint and the embedded series need, and nothing else.
$(VENV)/.audit: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt]'
	touch $@

# Some libraries pin an older torch or numpy than the others run on; without their pins they run on this one.
$(VENV)/.test: $(VENV)/.audit
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt,chronos-2,timesfm,moirai-2,gift-eval,ray,docs,dev]' datasets scikit-learn hydra-core
	$(PIP) --constraint constraints.txt --no-deps granite-tsfm uni2ts sktime scikit-base momentfm
	touch $@

$(VENV)/.docs: $(VENV)/.audit
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt,docs]'
	touch $@

# An overlay is an environment of its own that sees everything of .venv behind its own packages.
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
