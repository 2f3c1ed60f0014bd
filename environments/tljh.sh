#!/bin/bash
# The class on The Littlest JupyterHub: run it as root, from a checkout on the hub's machine, once the hub is installed
# (https://tljh.jupyter.org). It can be run again.
set -euo pipefail
cd "$(dirname "$0")/.."
hub=${TLJH_INSTALL_PREFIX:-/opt/tljh}
PATH=$hub/user/bin:$PATH sh environments/install.sh

# Each person's share: docs/classroom.md has the figures. A server that nobody has used for an hour ends.
"$hub/hub/bin/tljh-config" set limits.memory 2G
"$hub/hub/bin/tljh-config" set limits.cpu 2
"$hub/hub/bin/tljh-config" set services.cull.timeout 3600

cat > "$hub/config/jupyterhub_config.d/nbcomm.py" <<'END'
# The next lesson starts without an import; what lessons need is imported once, for all ranks to share.
c.Spawner.environment.update(NBCOMM_WARM="10m", NBCOMM_PRELOAD="torch._dynamo,matplotlib.pyplot")
END
"$hub/hub/bin/tljh-config" reload

# New people find the lessons in their folder. Those who are there already type: nbcomm lessons lessons
"$hub/user/bin/nbcomm" lessons /etc/skel/lessons --force
