check_PROGRAMS += \
	tests/topo/test_topo
