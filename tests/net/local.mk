check_scripts += tests/net/hosts.sh
EXTRA_DIST += tests/net/rig.sh
