#!/usr/bin/env bash
# A SLURM cluster of two nodes on this machine, for tests. Its networks, host names, processes and mounts are its own:
# outside FOLDER only control groups change, and all of it ends with this script. It needs root, slurm-wlm, munge, iproute2:
#
#   unshare --mount --net --uts --pid --fork --kill-child --mount-proc slurm_cluster.sh FOLDER CPUS
#
# CPUS are those of a node. FOLDER/ready is there as soon as both nodes are idle; programs join the cluster by nsenter.

set -euo pipefail
folder=$1 cpus=$2
cd "$folder"
mkdir -p state local spool-node1 spool-node2 upper work

# Folders of SLURM, munge and iproute2, and that of COMPSs, if any, in which its launcher notes each use.
mount -t tmpfs none /run
mkdir /run/munge
if [ -n "${COMPSS_HOME:-}" ]; then
    mount -t overlay overlay -o "lowerdir=$COMPSS_HOME,upperdir=upper,workdir=work" "$COMPSS_HOME"
fi

printf '%s\n' '127.0.0.1 localhost' '198.18.0.100 control' '198.18.0.1 node1' '198.18.0.2 node2' >hosts
mount --bind hosts /etc/hosts
hostname control
ip link set lo up
ip link add bridge type bridge
ip addr add 198.18.0.100/24 dev bridge
ip link set bridge up

cat >slurm.conf <<CONF
ClusterName=test
SlurmctldHost=control
SlurmUser=root
StateSaveLocation=$folder/state
SlurmctldLogFile=$folder/slurmctld.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdLogFile=$folder/%n.log
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdSpoolDir=$folder/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
MpiDefault=none
SchedulerParameters=sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=node[1-2] CPUs=$cpus
Licenses=place:5
PartitionName=train Nodes=node[1-2] Default=YES
CONF
echo IgnoreSystemd=yes >cgroup.conf
export SLURM_CONF=$folder/slurm.conf

dd if=/dev/urandom of=munge.key bs=128 count=1 status=none
chmod 400 munge.key
munged --force --key-file="$folder/munge.key" --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
slurmctld

for number in 1 2; do
    name=node$number
    ip netns add $name
    ip link add $name type veth peer name eth0 netns $name
    ip link set $name master bridge up
    ip -n $name addr add 198.18.0.$number/24 dev eth0
    ip -n $name link set eth0 up
    ip -n $name link set lo up
    # A node's local disk is its own, and so are the files by which Ray finds a cluster.
    nsenter --net=/run/netns/$name unshare --uts --mount bash -c \
        "hostname $name && mount -t tmpfs none $folder/local && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray \
            && exec slurmd -D" &
done

until [ "$(sinfo --noheader --states=idle --format=%D)" = 2 ]; do sleep 0.1; done
touch ready
wait
