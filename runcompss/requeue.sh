# shellcheck shell=bash
# Sourced by the job scripts of slurm.sh --requeue, before all else: ends the run in time, and queues the job again.
#
# COMPSs's job script waits for its launcher and would handle a signal only afterwards, and what SLURM sends to a whole
# job also kills COMPSs's workers, with the parameters that they hold. So the job script runs again as a child of
# itself, and the first one, which alone gets SLURM's warning (--signal=B:TERM), passes it on to the coordinator: its fit
# ends the round, writes a checkpoint and exits with 143. The next run of the job resumes from there.

if [ -z "${COMPSS_TRAIN_SUPERVISED:-}" ]; then
    export COMPSS_TRAIN_SUPERVISED=yes
    # This path exists while a fit is unfinished.
    COMPSS_TRAIN_UNFINISHED=$(mktemp -d)/fits
    export COMPSS_TRAIN_UNFINISHED

    # COMPSs fails if the folder of a job's logs exists.
    logs=$(sed -n 's/.* --log_dir=\([^ ]*\).*/\1/p' "$0" | tail -n 1)
    logs=${logs:-$HOME}/.COMPSs/$SLURM_JOB_ID
    if [ -d "$logs" ]; then mv "$logs" "$logs.$((SLURM_RESTART_COUNT - 1))"; fi

    # A warning may come before COMPSs has started the program.
    warn() {
        until pkill -TERM --oldest --session 0 --full pycompss/runtime/launch.py; do
            kill -0 "$job_script" 2>/dev/null || break
            sleep 0.5
        done
    }
    trap warn TERM
    "$BASH" -e "$0" &
    job_script=$!
    code=0
    wait "$job_script" || code=$?
    while kill -0 "$job_script" 2>/dev/null; do # a signal has ended the wait
        code=0
        wait "$job_script" || code=$?
    done
    again=
    case $code in
        0) if [ -e "$COMPSS_TRAIN_UNFINISHED" ]; then again=yes; fi ;; # stopped by max_time
        75 | 143) again=yes ;;                                        # by max_time or SIGTERM
    esac
    # A job that scancel ends is completing, and stays ended.
    case $(scontrol show job "$SLURM_JOB_ID") in *JobState=RUNNING*) ;; *) again= ;; esac
    if [ "$again" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$COMPSS_TRAIN_REQUEUES" ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$code"
fi
