# Sourced by enter.sh behind hosts.sh: Slurm on the hosts, with four cores and two GPUs each, steered from head. The GPUs
# are null devices. There are neither cgroups nor an accounting database.
D=$S/slurm
mkdir -p $D/{spool_a,spool_b,state,log,munge}
chmod 755 $D/munge
head -c 1024 /dev/urandom >$D/munge/key
chmod 600 $D/munge/key
/usr/sbin/munged --force --key-file=$D/munge/key --socket=$D/munge/socket --pid-file=$D/munge/pid \
  --log-file=$D/munge/log --seed-file=$D/munge/seed
mknod $D/gpu0 c 1 3
mknod $D/gpu1 c 1 3
cat >$D/prolog <<'EOF'
#!/bin/sh
echo "export TMPDIR=/run/$(hostname)"
EOF
chmod 755 $D/prolog
cat >$D/slurm.conf <<EOF
ClusterName=fake
SlurmctldHost=head(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=$D/prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/slurmd_%n.pid
SlurmdSpoolDir=$D/spool_%n
StateSaveLocation=$D/state
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd_%n.log
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=5
KillWait=5
InactiveLimit=0
NodeName=a NodeAddr=10.77.0.11 CPUs=4 Gres=gpu:2 State=UNKNOWN
NodeName=b NodeAddr=10.77.0.12 CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=a,b Default=YES MaxTime=60 State=UP OverSubscribe=NO
PartitionName=closed Nodes=a,b State=DOWN
EOF
printf 'NodeName=a,b Name=gpu File=%s/gpu[0-1]\n' $D >$D/gres.conf
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >$D/cgroup.conf
export SLURM_CONF=$D/slurm.conf
/usr/sbin/slurmctld -D -f $SLURM_CONF >$D/log/slurmctld.out 2>&1 &
for name in a b; do
  ip netns exec $name unshare --uts --mount sh -c "
    hostname $name; mount -t tmpfs none /dev/shm; chmod 1777 /dev/shm
    exec /usr/sbin/slurmd -D -N $name -f $SLURM_CONF" >$D/log/slurmd_$name.out 2>&1 &
done
for _ in $(seq 300); do
  [ "$(timeout 2 sinfo --noheader --partition=main --format='%D %T' 2>/dev/null)" = '2 idle' ] && break
  sleep 0.05
done
