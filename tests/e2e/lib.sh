# shellcheck shell=bash
# Common parts of the end-to-end tests: building, development clusters, mounts, bounded waits, cleaning up. Sourced.
#
# A test sources this file, calls `begin NAME`, and from then on has $WORK, a directory of its own. Whatever happens, at
# the end its mounts are unmounted, its clusters are taken down and $WORK is removed; a failed test prints the end of the
# nodes' logs first. Tests end with `finish`, which prints the figures collected by `figure`.
#
# Environment:
#   POLVO        the program to test (default: built from this tree, release profile)
#   MNT          run the workload on this directory instead of a cluster of its own, where the test can
#   MOUNT_OPTIONS  options of all mounts but those that a test gives options of their own (cache=none, cache=pages)
#   REPLICAS     nodes at which clusters of three nodes and more keep each region (default 1: many tests are about what happens
#                while a node is away whose files nobody else has)
#   REACTORS       threads of each node that serve connections (default: as `polvo up` has it)
#   KEEP=1       leave $WORK and the clusters behind for inspection
#   TMPDIR       where $WORK goes

set -Eeuo pipefail
shopt -s inherit_errexit

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
# shellcheck disable=SC2034 # used by the tests
WORKLOAD=$HERE/workload
export PYTHONDONTWRITEBYTECODE=1

NAME=e2e
WORK=
CLUSTERS=()
MOUNTS=()
JOBS=()
# Commands of a test that run at its end, whatever has happened.
BEFORE_UNMOUNT=()
AFTER_UNMOUNT=()
FIGURES=()

say() { printf '%s: %s\n' "$NAME" "$*" >&2; }

fail() {
    trap - ERR
    say "FAILED: $*"
    exit 1
}

# figure NAME VALUE...: a line for the end.
figure() { FIGURES+=("$(printf '%-40s %s' "$1" "${*:2}")"); }

# run_figures NAME COMMAND...: runs a workload whose last line is a figure.
figure_of() {
    local name=$1 output
    shift
    output=$("$@") || fail "$name: $*: $output"
    figure "$name" "$(tail -n 1 <<<"$output")"
}

# begin NAME: prepares $WORK and the cleanup.
begin() {
    NAME=$1
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/polvo-$NAME.XXXXXX")
    chmod 755 "$WORK" # some tests change users
    trap 'end_of_test $?' EXIT
    trap 'say "status $? at ${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND"' ERR
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    say "working in $WORK"
}

show_figures() {
    local line
    for line in "${FIGURES[@]}"; do printf '%s\n' "$line"; done
}

finish() {
    show_figures
    printf '%s: ok in %d s\n' "$NAME" "$SECONDS"
}

end_of_test() {
    local status=$1 cluster mount job command
    trap - EXIT
    set +e
    for job in "${JOBS[@]}"; do kill "$job" 2>/dev/null; done
    if ((status != 0)); then
        for cluster in "${CLUSTERS[@]}"; do show_logs "$cluster"; done
    fi
    if [[ ${KEEP:-} == 1 ]]; then
        say "kept: $WORK"
        exit "$status"
    fi
    for command in "${BEFORE_UNMOUNT[@]}"; do "$command"; done
    for mount in "${MOUNTS[@]}"; do
        mounted "$mount" && timeout 60 "$POLVO" umount --force "$mount" >&2
    done
    for command in "${AFTER_UNMOUNT[@]}"; do "$command"; done
    for cluster in "${CLUSTERS[@]}"; do
        # What a failed or interrupted test has left is killed first, so that this is quick.
        ((status != 0)) && kill_nodes "$cluster"
        if ! timeout 60 "$POLVO" down --wait 15 --dir "$cluster" >"$WORK/down.out" 2>&1 && [[ -e $cluster/dev.toml ]]; then
            cat "$WORK/down.out" >&2
            ((status == 0)) && status=1
        fi
    done
    [[ -n $WORK ]] && rm -rf --one-file-system "$WORK"
    exit "$status"
}

# times_deposed DIR [NODE]: how often others have taken the place of a cluster's nodes, or of one, which have found that out.
times_deposed() {
    local logs=("$1"/node*/polvod.log)
    [[ -z ${2:-} ]] || logs=("$1/node$2/polvod.log")
    cat "${logs[@]}" | grep -c 'is served by another node since this one was away' || true
}

# show_logs DIR: the end of the logs of a cluster's nodes and mounts.
show_logs() {
    local log
    for log in "$1"/node*/polvod.log "$1"/mounts/*.log; do
        [[ -s $log ]] || continue
        printf '== %s\n' "$log" >&2
        tail -n 15 "$log" >&2
    done
}

# need PROGRAM PACKAGE: installs the package when the program is missing.
need() {
    command -v "$1" >/dev/null || install_package "$2"
}

install_package() {
    say "the package $1 is missing: installing it"
    [[ $(id -u) == 0 ]] || fail "only root can install the package $1 (apt-get install $1)"
    apt-get install -y -qq "$1" >"$WORK/apt.out" 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq "$1"; } >"$WORK/apt.out" 2>&1 ||
        fail "apt-get install $1: $(tail -n 3 "$WORK/apt.out")"
}

# build: sets POLVO, building it unless it is given.
build() {
    [[ -n ${POLVO:-} ]] && return
    say "building polvo"
    (cd "$REPO" && cargo build --release --quiet -p polvo-cli) || fail "the build failed"
    POLVO=${CARGO_TARGET_DIR:-$REPO/target}/release/polvo
    [[ -x $POLVO ]] || fail "$POLVO is not there after building"
}

# wait_until SECONDS WHAT COMMAND...: until the command succeeds.
wait_until() {
    local limit=$1 what=$2 deadline=$((SECONDS + $1))
    shift 2
    until "$@"; do
        ((SECONDS < deadline)) || fail "$what: not within $limit s"
        sleep 0.05
    done
}

# within SECONDS COMMAND...: the command ends in time, whatever its status.
within() {
    local limit=$1 status=0
    shift
    timeout -k 5 "$limit" "$@" || status=$?
    ((status != 124 && status != 137)) || fail "did not end within $limit s: $*"
    return "$status"
}

# expect_failure SECONDS PATTERN COMMAND...: the command fails in time and says something that matches. Its output is
# left in $SAID.
SAID=
expect_failure() {
    local limit=$1 pattern=$2 status=0
    shift 2
    SAID=$(timeout -k 5 "$limit" "$@" 2>&1) || status=$?
    ((status != 124 && status != 137)) || fail "did not end within $limit s: $*: $SAID"
    ((status != 0)) || fail "succeeded, but should have failed: $*"
    ((status < 126)) || fail "ended with status $status: $*: $SAID"
    [[ $SAID != *panicked* ]] || fail "panicked: $*: $SAID"
    grep -Eqi -- "$pattern" <<<"$SAID" || fail "$*: said \"$SAID\", expected something like \"$pattern\""
}

mounted() { mountpoint -q "$1" 2>/dev/null || grep -qF " $1 fuse.polvo " /proc/mounts; }

# up DIR [ARGUMENT...]: starts (or starts again) a development cluster.
up() {
    local dir=$1
    shift
    build
    [[ " ${CLUSTERS[*]} " == *" $dir "* ]] || CLUSTERS+=("$dir")
    if [[ -n ${MOUNT_OPTIONS:-} && " $* " == *" --mount "* && " $* " != *" --mount-options "* ]]; then
        set -- "$@" --mount-options "$MOUNT_OPTIONS"
    fi
    if [[ " $* " != *" --replicas "* && " $* " =~ " --nodes "([0-9]+) ]] && ((BASH_REMATCH[1] >= 3)); then
        set -- "$@" --replicas "${REPLICAS:-1}"
    fi
    if [[ -n ${REACTORS:-} && " $* " != *" --reactors "* ]]; then set -- "$@" --reactors "$REACTORS"; fi
    timeout 180 "$POLVO" up --dir "$dir" "$@" >"$WORK/up.out" 2>&1 || fail "polvo up --dir $dir $*: $(cat "$WORK/up.out")"
}

# down DIR [ARGUMENT...]: takes a cluster down.
down() {
    local dir=$1
    shift
    timeout 120 "$POLVO" down --dir "$dir" "$@" >"$WORK/down.out" 2>&1 || fail "polvo down --dir $dir: $(cat "$WORK/down.out")"
}

# mount_at CLUSTER PROVIDER DIR [ARGUMENT...]: an external mount.
mount_at() {
    local cluster=$1 provider=$2 dir=$3
    shift 3
    mkdir -p "$dir" 2>/dev/null || true # a mount that died there is taken away by `polvo mount`
    MOUNTS+=("$dir")
    timeout 60 "$POLVO" mount --cluster-dir "$cluster" --provider "$provider" ${MOUNT_OPTIONS:+-o "$MOUNT_OPTIONS"} "$@" / "$dir" >"$WORK/mount.out" 2>&1 ||
        fail "polvo mount --provider $provider / $dir: $(cat "$WORK/mount.out")"
}

# umount_at DIR: unmounts an external mount and waits for its process to end.
umount_at() {
    local pids pid
    mapfile -t pids < <(mount_pid "$1")
    timeout 60 "$POLVO" umount "$1" || fail "polvo umount $1"
    for pid in "${pids[@]}"; do wait_until 20 "the end of the mount's process" not_running "$pid"; done
}

# not_running PID: it has ended, and all its threads have: until then its files are open.
not_running() { [[ ! -e /proc/$1/stat ]] || grep -qE '\) [ZX] ([^ ]+ ){16}[01] ' "/proc/$1/stat" 2>/dev/null; }

# node_pids DIR: process numbers of a cluster's nodes that run.
node_pids() {
    local file pid _
    for file in "$1"/node*/polvod.pid; do
        [[ -e $file ]] || continue
        read -r pid _ <"$file"
        not_running "$pid" || echo "$pid"
    done
}

# node_pid DIR NODE
node_pid() {
    local pid _
    read -r pid _ <"$1/node$2/polvod.pid"
    echo "$pid"
}

# mount_pid DIR: process number of an external mount, from the files of all clusters of this test. That of a mount that was
# there before, too, as long as it has not ended.
mount_pid() {
    local cluster file pid at _ _mounted_at
    at=$(realpath -s "$1")
    for cluster in "${CLUSTERS[@]}"; do
        for file in "$cluster"/mounts/*.pid; do
            { read -r pid _ && read -r _mounted_at; } 2>/dev/null <"$file" || continue
            [[ $_mounted_at == "$at" || $(realpath "$at" 2>/dev/null) == "$_mounted_at" ]] && echo "$pid"
        done
    done
    return 0
}

# kill_nodes DIR: kill -9 of every node of a cluster, and waits until they are gone.
kill_nodes() {
    local pids pid
    mapfile -t pids < <(node_pids "$1")
    ((${#pids[@]})) || return 0
    kill -9 "${pids[@]}" 2>/dev/null || true
    for pid in "${pids[@]}"; do wait_until 20 "the end of process $pid" not_running "$pid"; done
}

# check_online DIR: the running cluster is consistent.
check_online() {
    timeout 300 "$POLVO" fsck --online --quiet --cluster-dir "$1" >"$WORK/fsck.out" 2>&1 ||
        fail "fsck --online: $(cat "$WORK/fsck.out")"
}

# check_offline DIR: the pools of the stopped cluster are consistent.
check_offline() {
    timeout 300 "$POLVO" fsck --quiet --dir "$1" >"$WORK/fsck.out" 2>&1 || fail "fsck --dir $1: $(cat "$WORK/fsck.out")"
}

# cpu_ns PID...: processor time used so far by all threads of the processes that live now, in nanoseconds.
cpu_ns() {
    local pid total=0 task used _
    for pid; do
        for task in "/proc/$pid/task/"*/schedstat; do
            read -r used _ <"$task" 2>/dev/null && total=$((total + used))
        done
    done
    echo "$total"
}

# wakeups PID...: how often a thread of the processes that live now has gone to sleep so far, and so woken up again.
wakeups() {
    local pid total=0 task times
    for pid; do
        for task in "/proc/$pid/task/"*/status; do
            times=$(sed -n 's/^voluntary_ctxt_switches:[[:space:]]*//p' "$task" 2>/dev/null) && total=$((total + times))
        done
    done
    echo "$total"
}

# counter MOUNT NAME: a counter of the mount's client (rpcs, renewals, one_sided_batches, one_sided_bytes, eager_bytes).
counter() {
    python3 -c 'import json, os, sys; print(json.loads(os.getxattr(sys.argv[1], "user.polvo.counters"))[sys.argv[2]])' "$1" "$2"
}
