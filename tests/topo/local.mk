check_PROGRAMS += \
	tests/topo/test_memory \
	tests/topo/test_topo
# Machines as hwloc writes them: one virtual machine's own, the others by make_machines.py.
EXTRA_DIST += \
	tests/topo/machines/1n8g.xml \
	tests/topo/machines/2s4g.xml \
	tests/topo/machines/2s4g-allowed.xml \
	tests/topo/machines/2s4g-ht.xml \
	tests/topo/machines/2s4g-offline.xml \
	tests/topo/machines/bare.xml \
	tests/topo/machines/blind.xml \
	tests/topo/machines/forbidden.xml \
	tests/topo/machines/gb200.xml \
	tests/topo/machines/gh200.xml \
	tests/topo/machines/gh200-gpu-first.xml \
	tests/topo/machines/half.xml \
	tests/topo/machines/memory-alone.xml \
	tests/topo/machines/no-dimms.xml \
	tests/topo/machines/nps4.xml \
	tests/topo/machines/one-side.xml \
	tests/topo/machines/snc3.xml \
	tests/topo/machines/unequal.xml \
	tests/topo/machines/vm.xml \
	tests/topo/machines/withheld.xml \
	tests/topo/machines.txt \
	tests/topo/make_machines.py \
	tests/topo/golden/1n8g.txt \
	tests/topo/golden/2s4g.txt \
	tests/topo/golden/2s4g-allowed.txt \
	tests/topo/golden/2s4g-ht.txt \
	tests/topo/golden/2s4g-offline.txt \
	tests/topo/golden/assumed.txt \
	tests/topo/golden/bare.txt \
	tests/topo/golden/blind.txt \
	tests/topo/golden/crowded.txt \
	tests/topo/golden/crowded-near.txt \
	tests/topo/golden/few-alternate.txt \
	tests/topo/golden/few-ranks.txt \
	tests/topo/golden/gb200.txt \
	tests/topo/golden/gh200.txt \
	tests/topo/golden/gh200-gpu-first.txt \
	tests/topo/golden/half.txt \
	tests/topo/golden/lists.txt \
	tests/topo/golden/masks-core.txt \
	tests/topo/golden/masks-even.txt \
	tests/topo/golden/masks-few.txt \
	tests/topo/golden/masks-siblings.txt \
	tests/topo/golden/masks-socket.txt \
	tests/topo/golden/masks-threads.txt \
	tests/topo/golden/masks-wrong.txt \
	tests/topo/golden/memory-alone.txt \
	tests/topo/golden/mixed-threads.txt \
	tests/topo/golden/more-ranks.txt \
	tests/topo/golden/more-threads.txt \
	tests/topo/golden/no-dimms.txt \
	tests/topo/golden/nps4.txt \
	tests/topo/golden/one-core.txt \
	tests/topo/golden/one-node.txt \
	tests/topo/golden/one-side.txt \
	tests/topo/golden/snc3.txt \
	tests/topo/golden/unbound.txt \
	tests/topo/golden/unequal.txt \
	tests/topo/golden/vm.txt \
	tests/topo/golden/withheld.txt
check_scripts += tests/topo/topo.sh
