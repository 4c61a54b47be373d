#!/usr/bin/env bash
# Trains an example with each policy and option for what is sent, with several numbers of replicas and seeds, and prints a
# Markdown table against the dense run of the same total batch: first rate, accuracy in % as the mean (the worst) of the
# seeds, points from dense's mean, compression, and the mean density. The last rows are Deeplearning4j's defaults, the
# control: those of one machine must do worse than ours.
#
#   examples/policies.sh                                  # mnist, 2 and 4 replicas, seeds 0 1 2: minutes
#   REPLICAS="2 4 8" SEEDS="0" examples/policies.sh digits
#
# Ends with 0 if every run ended well and the control did worse, by more than a point at each number of replicas.
set -euo pipefail
cd "$(dirname "$0")/.."

example=${1:-mnist}
read -ra replicas <<<"${REPLICAS:-2 4}"
seeds=${SEEDS:-0 1 2}
# The training samples that come along, those of a replica's step, and a limit that cuts a default step in half,
# to hold against the density that sends as much.
case $#:$example in
  [01]:mnist) samples=8000 batch=32 limit=1000 ;;
  [01]:digits) samples=1440 batch=16 limit=24 ;;
  *)
    echo "usage: $0 [digits | mnist]" >&2
    exit 2
    ;;
esac
cargo build --quiet --release --examples
programs=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/examples

# The default stands first, and the control last but two. EPOCH: the steps of one.
default="--policy quantile:0.01"
control="--policy dl4j"
configurations=(
  "$default"
  "--magnitude threshold"
  "--limit $limit"
  "--policy quantile:0.005"
  "--momentum masked"
  "--momentum memory"
  "--policy quantile:0.001"
  "--policy quantile:0.001:EPOCH"
  "--policy adaptive"
  "--policy target:0.001"
  "--policy fixed:0.01"
  "--policy fixed:0.001"
  "--policy fixed:0.001 --clip 5"
  "$control"
  "--policy dl4j --rate 0.02"
  "--policy dl4j-spark"
)

# The value of a key of one line of JSON without nesting.
field() {
  sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" <<<"$1"
}

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
failed=0
row() {
  printf '| %s |' "$1"
  shift
  printf ' %s |' "$@"
  echo
}

head=() rule=()
for n in "${replicas[@]}"; do
  head+=(rate "$n replicas" "to dense" x density)
  rule+=(--: --: --: --: --:)
done
row "what is sent" "${head[@]}"
row --- "${rule[@]}"
dense=()
for configuration in "${configurations[@]}"; do
  cells=()
  for n in "${replicas[@]}"; do
    read -ra options <<<"${configuration//EPOCH/$(((samples + batch * n - 1) / (batch * n)))}"
    : >"$results/rows"
    for seed in $seeds; do
      if ! output=$("$programs/$example" -n "$n" --seed "$seed" --json "${options[@]}" 2>&1); then
        printf '%s\n%s -n %s --seed %s %s failed\n' "$output" "$example" "$n" "$seed" "${options[*]}" >&2
        failed=1
        continue
      fi
      line=$(tail -n 1 <<<"$output")
      echo "$(field "$line" accuracy) $(field "$line" dense_accuracy) $(field "$line" compression)" \
        "$(field "$line" density) $(field "$line" rate)" >>"$results/rows"
    done
    # Accuracy, distance, compression, density, rate; and the dense run's.
    summary=$(awk '
      { runs++; ours += 100 * $1; dense += 100 * $2; x += $3; density += $4; rate = $5
        if (runs == 1 || $1 < worst) worst = $1
        if (runs == 1 || $2 < dense_worst) dense_worst = $2 }
      END {
        if (!runs) { print "-;-;-;-;-;-;-"; exit }
        printf "%s;%.2f (%.2f);%+.2f;%.0f;%.4f;%.2f (%.2f);%.4f", rate, ours / runs, 100 * worst, (ours - dense) / runs,
          x / runs, density / runs, dense / runs, 100 * dense_worst, ours / runs
      }' "$results/rows")
    IFS=';' read -r rate accuracy gap compression density dense_accuracy mean <<<"$summary"
    cells+=("$rate" "$accuracy" "$gap" "$compression" "$density")
    if [ "$configuration" = "$default" ]; then
      dense+=("" "$dense_accuracy" "" 1 "")
      echo "$mean" >"$results/ours-$n"
    elif [ "$configuration" = "$control" ] &&
      ! awk -v control="$mean" '{ exit !($1 - control > 1) }' "$results/ours-$n"; then
      echo "the control, $control, reaches $mean % with $n replicas: it should be worse than ours" >&2
      failed=1
    fi
  done
  [ "$configuration" = "$default" ] && row "dense, in one process" "${dense[@]}"
  row "\`$configuration\`" "${cells[@]}"
done
exit $failed
