# The entry points. `make` alone lists them. Anything longer than a line is in scripts/.

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-long chaos soak lint check bench setup site release

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Install what a build needs, build, and start the demo on 127.0.0.1:8080
	@scripts/run.sh

test: ## Formatting and the tests that need Rust and Redis alone
	@scripts/test.sh

test-all: ## What CI runs: lint, all tests, other people's programs, faults, instructions per request
	@scripts/test-all.sh

test-long: ## The random tests of the algorithms with two million decisions on a real Redis
	@scripts/test-long.sh

chaos: ## Break Redis under load in every way that Weir must survive, and write docs/chaos.md (twelve minutes plus the build)
	@scripts/chaos.sh

soak: ## HOURS=8 of mixed load with a fault every ten minutes, in as many runs as you like; writes docs/soak.md
	@scripts/soak.sh

lint: ## Formatting, clippy, luacheck, cargo-deny, and whether the fuzz targets compile
	@scripts/lint.sh

check: ## Check proxy.toml
	@scripts/check.sh

bench: ## Compare Weir with nginx, HAProxy and nginx + Lua + Redis: CPU microseconds per request (nine minutes plus the build)
	@benches/compare.sh

site: ## The documentation as a site in target/book/site, with every link followed
	@scripts/site.sh

release: ## Build what is released for each platform into target/dist, and install each package once (Debian; an hour)
	@scripts/release.sh

setup: ## Install everything that run and test-all need, and do nothing else
	@scripts/setup.sh build test lint interop
