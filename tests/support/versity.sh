#!/usr/bin/env bash
# Builds versitygw into the cache, unless it is there; prints its path. It needs Go.
set -euo pipefail
version=v1.8.0
cache=${REPLICATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/replicator}/s3
binary=$cache/versitygw-$version
mkdir -p "$cache"
exec 9>"$cache/.building"
flock 9
if [ ! -x "$binary" ]; then
  PATH=$PATH:/usr/local/go/bin
  command -v go >/dev/null || { echo "no Go to build it with" >&2; exit 1; }
  built=$(mktemp -d -p "$cache")
  trap 'rm -rf "$built"' EXIT
  GOBIN=$built go install "github.com/versity/versitygw/cmd/versitygw@$version" >&2
  mv "$built/versitygw" "$binary"
fi
echo "$binary"
