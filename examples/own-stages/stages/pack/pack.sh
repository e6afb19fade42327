# The same policy gives the same bytes: names in order, no times, no owners.
cd "$MCPRL_INPUT_POLICY"
find . -type f | LC_ALL=C sort | xargs sha256sum > "$MCPRL_OUTPUT_SUMS"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -n > "$MCPRL_OUTPUT_ARCHIVE"
