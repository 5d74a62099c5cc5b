# Everything that CI checks, without installing anything; steps whose tool is missing are skipped.
check:
    .ci/run --no-install

# Rewrites what can be rewritten by rule.
fix:
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all
