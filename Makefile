# The front door. `make` alone says what there is; anything longer than a line stands in scripts/.

.DEFAULT_GOAL := help
.PHONY: help run test test-long lint check bench setup

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Set up what a build needs, build, and start the demo on 127.0.0.1:8080
	@scripts/run.sh

test: ## Set up what the tests need, then run every check and every test
	@scripts/test.sh

test-long: ## The random tests of the algorithms, at length: two million decisions on a real Redis
	@scripts/test-long.sh

lint: ## Formatting, clippy and luacheck only
	@scripts/lint.sh

check: ## Check proxy.toml
	@scripts/check.sh

bench: ## Weir beside nginx, HAProxy and nginx + Lua + Redis: CPU microseconds per request (nine minutes once it is built)
	@benches/compare.sh

setup: ## Set up everything that run and test need, and do nothing else
	@scripts/setup.sh build test
