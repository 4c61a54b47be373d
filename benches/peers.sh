#!/usr/bin/env bash
# Others' collectives on the same vectors, beside ours: Open MPI's and Gloo's all-reduce against our whole step and
# against our dense sums, and their barriers against ours. Open MPI comes twice: as it is, and with its collectives
# through shared memory put first, which it does not do by itself. All sides take turns, round by round; a ratio is the median over the rounds.
#
#   benches/peers.sh [--quick] [--json]
#
# Installs nothing. A peer that is missing is reported as NOT RUN, with the reason; what there is, is run.
# Debian and Ubuntu have them: apt-get install openmpi-bin libopenmpi-dev python3-torch
#
# ROUNDS (5), SIZES ("1000000 25557032"), DENSE ("2 256 16384 1048576 8388608"), REPLICAS ("2 4"),
# DENSITIES ("0.001 0.01") and PYTHON may be set; an empty SIZES or DENSE leaves those out.
set -euo pipefail
cd "$(dirname "$0")/.."

quick="" json=""
for argument; do
  case $argument in
    --quick) quick=--quick ;;
    --json) json=1 ;;
    *)
      echo "usage: $0 [--quick] [--json]" >&2
      exit 2
      ;;
  esac
done
rounds=${ROUNDS:-5}
sizes=${SIZES-1000000 25557032}
dense=${DENSE-2 256 16384 1048576 8388608}
worlds=${REPLICAS:-2 4}
densities=${DENSITIES:-0.001 0.01}
repeats=7
if [ -n "$quick" ]; then
  # The bench's own size in a smoke run.
  rounds=1 sizes=100000 dense="2 100000" repeats=2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/times"

# --- who is there -----------------------------------------------------------------------------------------------------

# Part of the table; beside JSON on standard error.
not_run() {
  if [ -n "$json" ]; then
    echo "$1: NOT RUN: $2" >&2
  else
    echo "$1: NOT RUN: $2"
  fi
}

# Open MPI refuses root unless told twice. Ours asks for no such thing, so neither may stand in the way of the other.
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
mpi=""
if ! command -v mpicc >/dev/null; then
  not_run "Open MPI" "there is no mpicc"
elif ! command -v mpirun >/dev/null; then
  not_run "Open MPI" "there is no mpirun"
elif ! mpicc -O3 -o "$work/mpi_collectives" benches/peers/mpi_collectives.c 2>"$work/error"; then
  not_run "Open MPI" "mpicc: $(tail -n 1 "$work/error")"
elif ! mpi=$(mpirun -n 1 "$work/mpi_collectives" version 2>"$work/error"); then
  mpi=""
  not_run "Open MPI" "mpirun: $(grep -v '^-*$' "$work/error" | head -n 1)"
fi

mpi_sm=${mpi:+$mpi with coll_sm_priority 100}

gloo="" python=""
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
  if gloo=$("$candidate" benches/peers/torch_gloo.py version 2>"$work/error"); then
    python=$candidate
    break
  fi
  gloo=""
done
[ -n "$gloo" ] || not_run "Gloo" "$(tail -n 1 "$work/error")"

# --- the rounds -------------------------------------------------------------------------------------------------------

# One line of times: WHO WHAT SECONDS, where WHAT is what a ratio is made within.
keep() {
  printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$work/times"
}

# The value, in seconds, of the one line of ours with this name.
ours() {
  local bench=$1 name=$2
  # shellcheck disable=SC2086
  cargo bench --quiet --bench "$bench" -- --json $quick "$name" >"$work/ours"
  figure "$name"
}

# The same of another line of that run.
figure() {
  local name=$1
  awk -v name="$name" '
    index($0, "\"name\":\"" name "\"") {
      value = $0; sub(/.*"value":/, "", value); sub(/,.*/, "", value)
      unit = $0; sub(/.*"unit":"/, "", unit); sub(/".*/, "", unit)
      scale["s"] = 1; scale["ms"] = 1e-3; scale["us"] = 1e-6; scale["ns"] = 1e-9
      if (value + 0 > 0 && unit in scale) { printf "%.12f\n", value * scale[unit]; found = 1; exit }
    }
    END { if (!found) { print "cargo bench gave no figure \"" name "\"" > "/dev/stderr"; exit 1 } }' "$work/ours"
}

# A peer's figure; a peer that fails once is reported and left out from then on.
mpi_seconds() {
  mpirun -n "$1" --oversubscribe "$work/mpi_collectives" "$2" "$3" "$repeats" 2>"$work/error"
}
mpi_sm_seconds() {
  mpirun -n "$1" --oversubscribe --mca coll_sm_priority 100 "$work/mpi_collectives" "$2" "$3" "$repeats" \
    2>"$work/error"
}
gloo_seconds() {
  "$python" benches/peers/torch_gloo.py "$1" "$2" "$3" "$repeats" 2>"$work/error"
}
peers() {
  local world=$1 what=$2 mpi_count=$3 gloo_count=$4 group=$5 peer count seconds
  for peer in mpi mpi_sm gloo; do
    [ -n "${!peer}" ] || continue
    count=$mpi_count
    [ $peer != gloo ] || count=$gloo_count
    if seconds=$("${peer}_seconds" "$world" "$what" "$count"); then
      keep "${!peer}" "$group" "$seconds"
    else
      not_run "${!peer}" "$group: $(grep -v '^-*$' "$work/error" | tail -n 1)"
      printf -v "$peer" ''
    fi
  done
}

# Built before the first round, so that it is not a peer's neighbour.
cargo bench --quiet --no-run --bench step --bench shm --bench all_reduce
for ((round = 1; round <= rounds; round++)); do
  echo "round $round of $rounds" >&2
  for world in $worlds; do
    group="barrier, $world replicas"
    seconds=$(ours shm "$group")
    keep "$group" "$group" "$seconds"
    peers "$world" barrier 2000 100 "$group"
    for size in $sizes; do
      group="all-reduce, $world replicas, $size elements"
      for density in $densities; do
        name="step, $world replicas, $size elements, density $density"
        seconds=$(ours step "$name")
        keep "$name" "$group" "$seconds"
        in_place="step in place${name#step}"
        seconds=$(figure "$in_place")
        keep "$in_place" "$group" "$seconds"
      done
      peers "$world" all-reduce "$size" "$size" "$group"
    done
    for size in $dense; do
      group="dense sum, $world replicas, $size elements"
      for sum in "dense all-reduce" "uncompressed step"; do
        name="$sum, $world replicas, $size elements"
        seconds=$(ours all_reduce "$name")
        keep "$name" "$group" "$seconds"
      done
      peers "$world" all-reduce "$size" "$size" "$group"
    done
  done
done

# --- the ratios -------------------------------------------------------------------------------------------------------

awk -F '\t' -v json="$json" '
  function median(list,    count, values, i, j, value) {
    count = split(list, values, " ")
    for (i = 2; i <= count; i++) {
      value = values[i] + 0
      for (j = i - 1; j >= 1 && values[j] + 0 > value; j--) values[j + 1] = values[j]
      values[j + 1] = value
    }
    return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
  }
  function row(name, seconds, ratio, reference,    value, unit) {
    value = seconds * 1e3; unit = "ms"
    if (seconds < 1e-3) { value = seconds * 1e6; unit = "us" }
    if (json) {
      printf "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"ratio\":%s,\"reference\":%s}\n", name, value, unit, \
        ratio == "" ? "null" : ratio, reference == "" ? "null" : "\"" reference "\""
    } else {
      printf "%-64s %10.3f %-4s %8s  %s\n", name, value, unit, ratio, reference
    }
  }
  {
    key = $1 "\t" $2
    if (!(key in times)) keys[++pairs] = key
    times[key] = times[key] " " $3
  }
  END {
    if (!json) printf "%-64s %10s %-4s %8s  %s\n", "figure", "value", "unit", "ratio", "of"
    for (p = 1; p <= pairs; p++) {
      split(keys[p], part, "\t")
      # Ours are named by what they do; the peers by what they are.
      if (part[1] !~ /^(step|step in place|barrier|dense all-reduce|uncompressed step),/) {
        row(part[1] ": " part[2], median(times[keys[p]]), "", "")
        continue
      }
      compared = 0
      for (q = 1; q <= pairs; q++) {
        split(keys[q], other, "\t")
        if (other[2] != part[2] || other[1] ~ /^(step|step in place|barrier|dense all-reduce|uncompressed step),/) continue
        mine = split(times[keys[p]], a, " "); split(times[keys[q]], b, " ")
        ratios = ""
        for (r = 1; r <= mine; r++) if (b[r] > 0) ratios = ratios " " a[r] / b[r]
        row(part[1], median(times[keys[p]]), sprintf("%.3f", median(ratios)), other[1])
        compared = 1
      }
      if (!compared) row(part[1], median(times[keys[p]]), "", "")
    }
  }' "$work/times"
