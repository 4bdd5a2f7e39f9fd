#!/usr/bin/env bash
# Run an application under COMPSs on this machine.
#
# Usage: laptop.sh [FLAGS] APP [ARGUMENTS OF APP]
#
#   --units=N                 CPU units of a worker: tasks at a time, or threads of one task
#                             (default: the physical cores, shared by the nodes)
#   --nodes=N                 workers, on 127.0.0.1, 127.0.0.2 and so on: a small cluster to try things on (1)
#   --gpus=N                  GPUs of the worker (0)
#   --pythonpath=PATH         folders for modules, before the application's own and compss_train's
#   --python_interpreter=PATH (default: $PYTHON, or the active python)
#   --graph                   write the graph of tasks, into monitor/complete_graph.dot of the run's log folder
#   --dry-run                 print the command and the two XML files instead of running it
#   --help
#
# Every other flag before APP goes to runcompss as it is, so write it in runcompss's way: --flag=VALUE, -d, -t.
# Much used: --log_level=debug (below it Python runs with -O, without asserts, and no job leaves a log), --log_dir=DIR
# (default: home; a folder .COMPSs is made there), --scheduler=CLASS, --streaming=FILES, --summary,
# --keep_workingdir (keeps the files that workers write, a temporary folder otherwise).
# With --nodes above 1, COMPSs is told not to bind tasks to cores (--cpu_affinity=disabled): every worker would
# begin with the first core of the same machine.
#
#   laptop.sh --units=2 --graph apps/digits.py --workers 2
#
# It needs COMPSs and an ssh login to this machine without a password; compss-train doctor looks for both.

set -euo pipefail
script=laptop.sh
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

configure=()
flags=()
nodes=1
pythonpath=
interpreter=
dry_run=
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage "${BASH_SOURCE[0]}"; exit ;;
        --units=* | --gpus=*) configure+=("$1") ;;
        --nodes=*) nodes=${1#*=} ;;
        --units | --gpus | --nodes | --pythonpath | --python_interpreter)
            fail "write $1=VALUE, in one word as runcompss wants it" ;;
        --pythonpath=*) pythonpath=${1#*=}: ;;
        --python_interpreter=*) interpreter=${1#*=} ;;
        --graph) flags+=(--graph=true) ;;
        --dry-run) dry_run=yes ;;
        --project=* | --resources=*) fail "$1: this script writes both files; with your own, call runcompss itself" ;;
        -*) flags+=("$1") ;;
        *) break ;;
    esac
    shift
done

app=$(find_app "$@")
shift
check_words "$app" ${flags[@]+"${flags[@]}"} "$@"
python=$(find_python "$interpreter")
runcompss=$(if [ -n "$dry_run" ]; then echo runcompss; else find_compss runcompss; fi)

folder=$(mktemp -d "${TMPDIR:-/tmp}/compss_train-XXXXXX")
run=

# Whatever ended the run: end what is left of it, and remove what its workers wrote. A coordinator that is killed, or
# an application that fails, leaves Python processes behind; they are known by the folder of this run's workers.
clean() {
    if [ -n "$run" ]; then
        kill -KILL -- "-$run" 2>/dev/null || true
        pkill -KILL -u "$(id -u)" -f -- "$(sed 's/[][\.*^$+?(){}|]/\\&/g' <<<"$folder/workers")" || true
    fi
    case " ${flags[*]-} " in
        *" --keep_workingdir "*) printf '%s: the files of the workers are in %s\n' "$script" "$folder" >&2 ;;
        *) rm -rf "$folder" ;;
    esac
}
trap clean EXIT

# Ask the run to end, and give it a while.
end_run() {
    trap '' INT TERM HUP
    kill "-$1" -- "-$run" 2>/dev/null || true
    for _ in $(seq 20); do
        kill -0 -- "-$run" 2>/dev/null || break
        sleep 0.5
    done
    exit 130
}

PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$root "$python" -m compss_train configure \
    --folder "$folder" --working-dir "$folder/workers" --nodes "$nodes" ${configure[@]+"${configure[@]}"} >&2

# The coordinator listens next to the workers; by itself it would try ports that outgoing connections may have.
master_port=$(($(sed -n 's/.*<MaxPort>\(.*\)<.*/\1/p' "$folder/resources.xml" | tail -n 1) + 1))

command=(
    "$runcompss" --lang=python --master_port="$master_port"
    --project="$folder/project.xml" --resources="$folder/resources.xml"
    --pythonpath="$pythonpath$(dirname "$app"):$root" --python_interpreter="$python"
)
[ "$nodes" = 1 ] || command+=(--cpu_affinity=disabled)
command+=(${flags[@]+"${flags[@]}"} "$app" "$@")
check_words "${command[@]}"

if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}"
    printf '\n'
    cat "$folder/project.xml" "$folder/resources.xml"
else
    # In a process group of its own: COMPSs's script does not hand Ctrl-C or an end on to the coordinator and Java.
    set -m
    "${command[@]}" </dev/null &
    run=$!
    trap 'end_run INT' INT
    trap 'end_run TERM' TERM HUP
    wait "$run"
fi
