check_scripts += tests/slurm/script.sh tests/slurm/two_nodes.sh
EXTRA_DIST += tests/slurm/cluster.sh
