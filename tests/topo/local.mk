check_PROGRAMS += \
	tests/topo/test_memory \
	tests/topo/test_topo
# Machines as hwloc writes them: one virtual machine's own, the others by make_machines.py.
EXTRA_DIST += \
	tests/topo/golden \
	tests/topo/machines \
	tests/topo/machines.txt \
	tests/topo/make_machines.py
check_scripts += tests/topo/topo.sh
