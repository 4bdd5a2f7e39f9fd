#!/usr/bin/env bash
# Submit an application to a cluster with COMPSs's enqueue_compss.
#
# Usage: slurm.sh [--dry-run] [FLAGS] APP [ARGUMENTS OF APP]
#
# Flags are those of enqueue_compss, in its form (--flag=VALUE). These have a default or an environment variable:
#
#   --sc_cfg=NAME|FILE            SC_CFG         the cluster's configuration in COMPSs: its queue system (COMPSs's
#                                                default: LSF) and the resources of a node
#   --num_nodes=N                 NODES          nodes, of which the first runs the coordinator (2)
#   --cpus_per_node=N             CPUS           CPU units of a node (the configuration's)
#   --gpus_per_node=N             GPUS           GPUs of a node (the configuration's, most often none)
#   --worker_in_master_cpus=N     MASTER_CPUS    units of the coordinator's node that train too (the configuration's)
#   --worker_in_master_memory=MB  MASTER_MEMORY  required with these, unless the configuration has it
#   --exec_time=MINUTES           MINUTES        the queue's limit (60)
#   --wall_clock_limit=SECONDS    LIMIT          COMPSs's limit, at which it ends the run properly: by default a tenth
#                                                earlier, at least 1 minute and at most 5
#   --queue=NAME                  QUEUE          partition (the cluster's)
#   --qos=NAME                    QOS            (the cluster's)
#   --project_name=NAME           PROJECT        account to charge, on clusters whose configuration requires it;
#                                                elsewhere --extra_submit_flag=-A#NAME
#   --job_name=NAME               JOB            (the application's file name)
#   --scheduler=CLASS             SCHEDULER      (COMPSs's choice)
#   --worker_working_dir=DIR      WORKING_DIR    where workers keep objects: local_disk, shared_disk or a path
#                                                (the configuration's, most often local_disk)
#   --log_dir=DIR                 LOG_DIR        on a disk that all nodes share (home)
#   --pythonpath=PATH             MODULES        before the application's folder and compss_train's
#   --python_interpreter=PATH     PYTHON         on a disk that all nodes share (the active python)
#   --requeue=TIMES               REQUEUE        queue the job again, so many times at most, when the time is nearly up and
#                                                whenever SLURM ends it; the program resumes (resume=True, Checkpoint)
#   --graph                       GRAPH=true     write the graph of tasks
#
# All other flags before APP are passed to enqueue_compss unchanged: --pre_env_script=FILE (modules to load),
# --job_dependency=JOB, --reservation=NAME, --log_level=debug, --jvm_workers_opts="..." and so on.
# --dry-run prints the command instead of running it; it does not require COMPSs.
#
#   slurm.sh --sc_cfg=mycluster --num_nodes=4 --gpus_per_node=4 --exec_time=120 apps/fashion_mnist.py --workers 16

set -euo pipefail
script=slurm.sh
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec_time=${MINUTES:-60}
limit=${LIMIT:-}
pythonpath=${MODULES:+$MODULES:}
interpreter=${PYTHON:-}
graph=${GRAPH:-false}
requeue=${REQUEUE:-}
prepare=
job=${JOB:-}
dry_run=
flags=()
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage "${BASH_SOURCE[0]}"; exit ;;
        --dry-run) dry_run=yes ;;
        --exec_time=*) exec_time=${1#*=} ;;
        --wall_clock_limit=*) limit=${1#*=} ;;
        --pythonpath=*) pythonpath=${1#*=}: ;;
        --python_interpreter=*) interpreter=${1#*=} ;;
        --graph | -g) graph=true ;;
        --graph=*) graph=${1#*=} ;;
        --job_name=*) job=${1#*=} ;;
        --requeue=*) requeue=${1#*=} ;;
        --pre_env_script=*) prepare=${1#*=} ;;
        -*) flags+=("$1") ;;
        *) break ;;
    esac
    shift
done

# Add a flag with a value, unless the value is empty or the flag was given.
default() {
    local flag
    [ -n "$2" ] || return 0
    for flag in ${flags[@]+"${flags[@]}"}; do
        case $flag in "$1"=*) return 0 ;; esac
    done
    command+=("$1=$2")
}

# Seconds before the queue's limit at which a run has to end, so that it can fetch and save the results.
margin() {
    local seconds=$(($1 * 6))
    if [ "$seconds" -lt 60 ]; then seconds=60; fi
    if [ "$seconds" -gt 300 ]; then seconds=300; fi
    printf '%s\n' "$seconds"
}

# Let SLURM warn the job in time and requeue it; requeue.sh does the rest inside the job.
add_requeue() {
    command+=(--extra_submit_flag=--requeue --extra_submit_flag=--open-mode=append)
    command+=(--extra_submit_flag=--signal=B:TERM@"$margin")
    command+=(--extra_submit_flag=--export=ALL,COMPSS_TRAIN_REQUEUES="$requeue")
    prepare=$root/runcompss/requeue.sh${prepare:+:$prepare}
    limit=${limit:-0} # none of COMPSs, at which a program would end as if it were done
}

app=$(find_app "$@")
shift
case $exec_time in
    '' | *[!0-9]* | 0* | 1) fail "--exec_time=$exec_time: give whole minutes, 2 or more" ;;
esac
case $requeue in
    *[!0-9]*) fail "--requeue=$requeue: give the number of times at most" ;;
esac
python=$(find_python "$interpreter")
enqueue=$(if [ -n "$dry_run" ]; then echo enqueue_compss; else find_compss enqueue_compss; fi)

command=("$enqueue")
default --sc_cfg "${SC_CFG:-}"
command+=(--job_name="${job:-$(basename "$app" .py)}" --lang=python)
margin=$(margin "$exec_time")
if [ -n "$requeue" ]; then add_requeue; fi
command+=(--exec_time="$exec_time" --wall_clock_limit="${limit:-$((exec_time * 60 - margin))}")
default --pre_env_script "$prepare"
default --num_nodes "${NODES:-2}"
default --cpus_per_node "${CPUS:-}"
default --gpus_per_node "${GPUS:-}"
default --worker_in_master_cpus "${MASTER_CPUS:-}"
default --worker_in_master_memory "${MASTER_MEMORY:-}"
default --queue "${QUEUE:-}"
default --qos "${QOS:-}"
default --project_name "${PROJECT:-}"
default --scheduler "${SCHEDULER:-}"
default --worker_working_dir "${WORKING_DIR:-}"
default --log_dir "${LOG_DIR:-}"
command+=(--graph="$graph" --pythonpath="$pythonpath$(dirname "$app"):$root" --python_interpreter="$python")
command+=(${flags[@]+"${flags[@]}"} "$app" "$@")
check_words "${command[@]}"

if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}"
    printf '\n'
else
    "${command[@]}"
fi
