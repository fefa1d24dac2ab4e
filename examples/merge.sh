#!/bin/sh
# Merge checkpoints with nothing but curl: register the target, create a model, offer the sources one
# after the other, say what became of each, and download the result.
#
#   examples/merge.sh scans demo/target.npz demo/1970s.safetensors demo/1980s.safetensors
#
# `grasp demo --files demo` makes such files. GRASP_URL says where the service is, GRASP_KEY who asks.
set -eu

url=${GRASP_URL:-http://127.0.0.1:8000}
name=$1 target=$2
shift 2

answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

call() {
    curl --silent --show-error --fail-with-body ${GRASP_KEY:+--oauth2-bearer "$GRASP_KEY"} "$@"
}

# The answer goes into a file; what the service refuses ends the script, with its reasons.
ask() {
    call --output "$answer" "$@" || { cat "$answer" >&2 && exit 1; }
}

# Polls the job in the answer to its end.
outcome() {
    job=$(grep -o 'job_[0-9a-z]*' "$answer" | head -n 1)
    while ask "$url/jobs/$job?wait=30" && grep -q '"finished_at":null' "$answer"; do :; done
    sed 's/.*"status":"\([a-z]*\)".*/\1/' "$answer"
}

ask -F name="$name" -F file=@"$target" "$url/targets"
ask --json '{"name": "'"$name"'", "architecture": "test_efficientnet", "target": "'"$name"'",
             "image_size": 32}' \
    "$url/models"

for source; do
    ask -F model="$name" -F file=@"$source" "$url/sources"
    echo "$source: $(outcome)"
done

call --remote-name --remote-header-name --write-out '%{filename_effective}\n' "$url/models/$name"
