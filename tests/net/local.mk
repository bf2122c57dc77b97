check_scripts += tests/net/hosts.sh
EXTRA_DIST += tests/net/gpus.sh tests/net/rig.sh
