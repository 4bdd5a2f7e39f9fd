#!/usr/bin/env bash
# Run an application under COMPSs on this machine.
#
# Usage: laptop.sh [FLAGS] APP [ARGUMENTS OF APP]
#
#   --units=N                 CPU units of a worker: tasks at a time, or threads of one task
#                             (default: the physical cores, shared by the nodes)
#   --nodes=N                 workers, on 127.0.0.1, 127.0.0.2 and so on: a small cluster for tests (1)
#   --gpus=N                  GPUs of the worker (0)
#   --pythonpath=PATH         folders for modules, before the application's own and compss_train's
#   --python_interpreter=PATH (default: $PYTHON, or the active python)
#   --env_script=FILE         a script that the worker sources before it starts
#   --graph                   write the graph of tasks, into monitor/complete_graph.dot of the run's log folder
#   --dry-run                 print the command and the two XML files instead of running it
#   --help
#
# All other flags before APP are passed to runcompss unchanged, so write them in its form: --flag=VALUE, -d, -t.
# Common ones: --log_level=debug (otherwise Python runs with -O, without asserts, and jobs leave no logs), --log_dir=DIR
# (default: home; creates a folder .COMPSs there), --scheduler=CLASS, --streaming=FILES, --summary,
# --keep_workingdir (keeps the files of the workers, by default in a temporary folder).
# With --nodes above 1, or more units than cores, binding of tasks to cores is disabled (--cpu_affinity=disabled): every
# worker would start at the first core of the same machine, and tasks beyond the cores would die.
#
#   laptop.sh --units=2 --graph apps/digits.py --workers 2
#
# Requires COMPSs and an ssh login to this machine without a password; compss-train doctor --engine compss checks both.

set -euo pipefail
script=laptop.sh
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

configure=()
flags=()
nodes=1
units=1
pythonpath=
interpreter=
env_script=
dry_run=
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage "${BASH_SOURCE[0]}"; exit ;;
        --units=*) units=${1#*=}; configure+=("$1") ;;
        --gpus=*) configure+=("$1") ;;
        --nodes=*) nodes=${1#*=} ;;
        --units | --gpus | --nodes | --pythonpath | --python_interpreter)
            fail "write $1=VALUE, in one word as for runcompss" ;;
        --pythonpath=*) pythonpath=${1#*=}: ;;
        --python_interpreter=*) interpreter=${1#*=} ;;
        --env_script=*) env_script=${1#*=} ;;
        --graph) flags+=(--graph=true) ;;
        --dry-run) dry_run=yes ;;
        --project=* | --resources=*) fail "$1: this script writes both files; to use your own, call runcompss directly" ;;
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

# At exit: kill the remaining processes of the run, and remove the files of its workers. A killed coordinator or a
# failed application leaves Python processes behind; the folder of the run's workers on their command line marks them.
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

# Signal the run to end, and wait up to 10 seconds.
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
# COMPSs sources only the script that the project file names.
if [ -n "$env_script" ]; then printf 'source %q\n' "$(realpath "$env_script")" >>"$folder/environment.sh"; fi

# The port after those of the workers; COMPSs's default is in the range of outgoing connections, which may use it.
master_port=$(($(sed -n 's/.*<MaxPort>\(.*\)<.*/\1/p' "$folder/resources.xml" | tail -n 1) + 1))

command=(
    "$runcompss" --lang=python --master_port="$master_port"
    --project="$folder/project.xml" --resources="$folder/resources.xml"
    --pythonpath="$pythonpath$(dirname "$app"):$root" --python_interpreter="$python"
)
if [ "$nodes" -gt 1 ] || [ "$units" -gt "$(nproc)" ]; then command+=(--cpu_affinity=disabled); fi
command+=(${flags[@]+"${flags[@]}"} "$app" "$@")
check_words "${command[@]}"

if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}"
    printf '\n'
    cat "$folder/project.xml" "$folder/resources.xml"
else
    # In its own process group: COMPSs's script does not forward Ctrl-C or SIGTERM to the coordinator and Java.
    set -m
    "${command[@]}" </dev/null &
    run=$!
    trap 'end_run INT' INT
    trap 'end_run TERM' TERM HUP
    wait "$run"
fi
