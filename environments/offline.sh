#!/bin/sh
# Laptops without a network. In the checkout, on a machine with one:
#   sh environments/offline.sh FOLDER            makes a folder of wheels, for a stick or a share (about 300 MB)
# and on each laptop:
#   sh FOLDER/install.sh                         installs from it into ~/nbcomm-class, and tries it
# The wheels are for this kind of machine and this version of Python. For others, run it again there, or with another
# Python (PYTHON=python3.12 sh environments/offline.sh FOLDER): what is in the folder stays.
set -eu
[ $# = 1 ] || { echo "Name the folder for the wheels: sh environments/offline.sh FOLDER" >&2; exit 2; }
checkout=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
mkdir -p "$1"
"$python" -m pip download torch==2.13.0 --dest "$1" --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
"$python" -m pip wheel "$checkout" --no-deps --wheel-dir "$1"
"$python" -m pip download "$1"/nbcomm-*.whl torch==2.13.0 jupyterlab matplotlib --dest "$1" --find-links "$1"
"$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' >> "$1/pythons"

cat > "$1/install.sh" <<'END'
#!/bin/sh
# Install nbcomm from this folder, without a network, into ~/nbcomm-class, or into the folder that is named, and try it.
set -eu
wheels=$(cd "$(dirname "$0")" && pwd)
place=${1:-$HOME/nbcomm-class}
for python in $(sort -u "$wheels/pythons") none; do
    command -v "$python" > /dev/null && break
done
if [ "$python" = none ]; then
    echo "This machine has none of $(sort -u "$wheels/pythons" | paste -sd ' '), for which the wheels are." >&2
    exit 1
fi
"$python" -m venv "$place"
"$place/bin/pip" install --quiet --no-index --find-links "$wheels" nbcomm torch==2.13.0 jupyterlab matplotlib
"$place/bin/nbcomm" doctor
"$place/bin/nbcomm" demo > "$place/demo.txt" || { cat "$place/demo.txt"; exit 1; }
"$place/bin/nbcomm" lessons "$place/lessons" > /dev/null || echo "Lessons that were changed are left as they are."
echo "All works. Begin with: cd $place && bin/jupyter lab lessons"
END
