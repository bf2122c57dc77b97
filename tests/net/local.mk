check_scripts += tests/net/hosts.sh
