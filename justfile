# What one does daily. `just` lists them; each is one command that can be typed without it.

default:
    @just --list

# Formatting and warnings.
check:
    cargo fmt --check
    cargo clippy --release --all-targets -- -D warnings

# All tests: the README's command.
test:
    cargo test --release

# Tests beside the code, without the program's.
test-fast *FILTER:
    cargo test --release --lib {{FILTER}}

# Writes the generated pages of docs/reference and the outputs that documents show.
docs:
    MCPRL_UPDATE_DOCS=1 cargo test --release reference_of_stages
    MCPRL_UPDATE_DOCS=1 cargo test --release --test integration house::

# How fast the engine is on this machine.
bench *ARGUMENTS:
    cargo run --release -p mcprl-bench -- {{ARGUMENTS}}

# Product lines by crate, and since a commit.
lines *ARGUMENTS:
    dev/lines.py {{ARGUMENTS}}
