#!/usr/bin/env bash
#SBATCH --requeue --open-mode=append --signal=B:TERM@120
# A job of SLURM that is queued again until the fit of its program is complete:
#
#   sbatch --time=04:00:00 slurm_job.sh python train.py
#   sbatch --time=04:00:00 --nodes=4 --ntasks-per-node=1 --exclusive slurm_job.sh --ray python train.py
#
# With --ray the program runs on a Ray cluster of the job's nodes. It resumes by Checkpoint and resume=True. The job is
# queued again $REQUEUES times at most (10), and not if the program fails.

set -euo pipefail

# Run a command on nodes of the job, once on each, with all of their cores.
on_nodes() {
    srun --overlap --nodes="$1" --ntasks="$1" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none \
        "${@:2}"
}

start_ray() {
    local head=$SLURMD_NODENAME port=$((20000 + SLURM_JOB_ID % 10000)) cpus=$SLURM_CPUS_ON_NODE
    # Ray notices links that break by pings.
    local pings='{"grpc_client_keepalive_time_ms":20000,"grpc_client_keepalive_timeout_ms":20000}'
    export RAY_ADDRESS=$head:$port RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_TOKEN
    RAY_AUTH_TOKEN=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')
    on_nodes 1 --nodelist="$head" ray start --head --port="$port" --num-cpus="$cpus" --include-dashboard=false \
        --system-config="$pings" --block &
    until (: <"/dev/tcp/$head/$port") 2>/dev/null; do
        kill -0 $! || exit 1
        sleep 0.5
    done
    if [ "$SLURM_NNODES" -gt 1 ]; then
        on_nodes $((SLURM_NNODES - 1)) --exclude="$head" ray start --address="$RAY_ADDRESS" --num-cpus="$cpus" --block &
    fi
    # Nodes that take longer than a minute get tasks later.
    python -c "import ray, time; ray.init(logging_level='ERROR'); end = time.time() + 60
while sum(node['Alive'] for node in ray.nodes()) < $SLURM_NNODES and time.time() < end: time.sleep(0.5)"
}

program=
warnings=0
trap 'warnings=$((warnings + 1)); [ -z "$program" ] || kill -TERM "$program"' TERM

if [ "${1:-}" = --ray ]; then
    shift
    start_ray
fi

# This path exists while a fit is unfinished.
COMPSS_TRAIN_UNFINISHED=$(mktemp -d)/fits
export COMPSS_TRAIN_UNFINISHED

code=143
if [ "$warnings" = 0 ]; then
    "$@" &
    program=$!
    heard=-1
    while [ "$heard" != "$warnings" ]; do # a warning ends a wait, too
        heard=$warnings
        code=0
        wait "$program" || code=$?
    done
fi

again=
case $code in
    0 | 75) if [ -e "$COMPSS_TRAIN_UNFINISHED" ]; then again=yes; fi ;; # max_time has stopped the fit
    143) again=yes ;;                                                   # the warning has ended the program
esac
# A job that scancel ends is completing, and stays ended.
case $(scontrol show job "$SLURM_JOB_ID") in *JobState=RUNNING*) ;; *) again= ;; esac
if [ "$again" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${REQUEUES:-10}" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
