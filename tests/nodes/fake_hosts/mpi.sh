# Sourced by enter.sh behind hosts.sh: Open MPI reaches the hosts by their sshds, and needs no service of its own.
