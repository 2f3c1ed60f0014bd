# Sourced by enter.sh: a bridge, a network namespace for each host, and an sshd in each. A host has shared memory and
# temporary files of its own; the rest of the file system is everybody's.
S=/run/fake-hosts
mkdir -p $S /run/netns /run/sshd
mount -t tmpfs none /run/netns
hostname head
# Not below the folder for temporary files outside: what is removed there vanishes from the overlay's lists, and with it
# all that is beside it.
mkdir -pm 1777 /run/head
export TMPDIR=/run/head
ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.1/24 dev br0
ip link set br0 up
# Without this a reverse look-up costs seconds.
printf '127.0.0.1 localhost\n10.77.0.1 head\n' >/etc/hosts
ssh-keygen -q -t ed25519 -N '' -f $S/key
cp $S/key.pub $S/authorized
addresses=()
for name in ${FAKE_HOSTS:-a b}; do
  address=10.77.0.$((11 + ${#addresses[@]}))
  addresses+=($address)
  echo "$address $name" >>/etc/hosts
  ip netns add $name
  ip link add v$name type veth peer name eth0 netns $name
  ip link set v$name master br0 up
  ip -n $name link set lo up
  ip -n $name addr add $address/24 dev eth0
  ip -n $name link set eth0 up
  ssh-keygen -q -t ed25519 -N '' -f $S/host_$name
  echo "$name,$address $(cut -d' ' -f1,2 $S/host_$name.pub)" >>$S/known
  printf '%s\n' "ListenAddress $address" "HostKey $S/host_$name" "AuthorizedKeysFile $S/authorized" \
    "PidFile $S/sshd_$name.pid" 'StrictModes no' 'PermitRootLogin prohibit-password' 'UsePAM no' \
    "SetEnv TMPDIR=/run/$name" >$S/sshd_$name.conf
  mkdir -m 1777 /run/$name
  ip netns exec $name unshare --uts --mount sh -c "
    hostname $name; mount -t tmpfs none /dev/shm; chmod 1777 /dev/shm
    exec /usr/sbin/sshd -D -e -f $S/sshd_$name.conf" 2>$S/sshd_$name.log &
done
# ssh looks in the home of the user's entry, whatever HOME says; sshd lets nobody in whose account is locked.
home=$(getent passwd root | cut -d: -f6)
# Each program begins in a shell, and what a user's files run there may take locks (pyenv does), which a shell that is
# killed leaves behind for the next one.
for file in .bashrc .bash_profile .bash_login .profile; do
  if [ -e $home/$file ]; then : >$home/$file; fi
done
mkdir -p $home/.ssh
printf 'Host *\n  IdentityFile %s\n  UserKnownHostsFile %s\n  StrictHostKeyChecking yes\n' $S/key $S/known >$home/.ssh/config
chmod 700 $home/.ssh
chmod 600 $home/.ssh/config
sed -i 's/^root:[^:]*:/root:*:/' /etc/shadow
for address in "${addresses[@]}"; do
  for _ in $(seq 200); do (exec 3<>/dev/tcp/$address/22) 2>/dev/null && break; sleep 0.05; done
done
