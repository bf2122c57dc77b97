#!/usr/bin/env python3
"""Writes the machines that topo.sh places ranks on into the named folder, in the format of
hwloc 2 (lstopo machine.xml).

The machines have the shapes of real nodes, with fewer cores: sockets, NUMA nodes, cores, Linux'
numbers of hardware threads, host bridges with the locality that firmware reports, and GPUs at PCI
switches. They also have devices that are not GPUs: a BMC's display, NVSwitches, network cards,
disks.
"""

import os
import sys
from xml.sax.saxutils import quoteattr


def bitmap(bits):
    value = sum(1 << b for b in bits)
    words = []
    while True:
        words.insert(0, "0x%08x" % (value & 0xFFFFFFFF))
        value >>= 32
        if not value:
            return ",".join(words)


class Machine:
    """domains: the socket of each NUMA node with cores; memory_alone: (socket or None, subtype) of
    each node without; bare: domains whose cores have no NUMA node; numbers: of all nodes."""

    def __init__(self, domains, cores, threads=1, offline=(), allowed=None, memory_alone=(), gib=64,
                 bare=(), numbers=None, gib_alone=32):
        self.lines, self.index, self.depth = [], 0, 0
        self.domains, self.cores, self.threads, self.offline = domains, cores, threads, set(offline)
        self.memory_alone, self.gib, self.total = memory_alone, gib, len(domains) * cores
        self.bare = set(bare)
        self.all_cpus = set(range(self.total * threads))
        self.online = self.all_cpus - self.offline
        self.allowed = self.online if allowed is None else set(allowed)
        self.numbers = numbers or list(range(len(domains) + len(memory_alone)))
        self.nodes = set(self.numbers) - self.bare
        self.gib_alone = gib_alone
        self.bridges = (
            {}
        )  # of a domain, ("package", socket) or None for the root: lists of host bridges

    def cpus(self, core):
        return {core + t * self.total for t in range(self.threads)}

    def cpus_of_domain(self, d):
        return set().union(*(self.cpus(c) for c in range(d * self.cores, (d + 1) * self.cores)))

    def open(self, type_, **attributes):
        self.index += 1
        text = " ".join("%s=%s" % (k, quoteattr(str(v))) for k, v in attributes.items())
        self.lines.append(
            '%s<object type="%s" %s gp_index="%d">'
            % ("  " * (self.depth + 1), type_, text, self.index)
        )
        self.depth += 1

    def close(self):
        self.depth -= 1
        self.lines.append("%s</object>" % ("  " * (self.depth + 1)))

    def info(self, name, value):
        self.lines.append(
            '%s<info name="%s" value=%s/>' % ("  " * (self.depth + 1), name, quoteattr(value))
        )

    def sets(self, cpus, nodes):
        return dict(
            cpuset=bitmap(cpus & self.online),
            complete_cpuset=bitmap(cpus),
            nodeset=bitmap(nodes),
            complete_nodeset=bitmap(nodes),
        )

    def node(self, index, cpus, gib, subtype=None):
        extra = {"subtype": subtype} if subtype else {}
        self.open(
            "NUMANode", os_index=index, **self.sets(cpus, {index}), local_memory=gib << 30, **extra
        )
        self.close()

    def alone(self, socket):
        """The numbers and subtypes of the nodes without cores at a socket."""
        numbers = self.numbers[len(self.domains):]
        return {n: m[1] for n, m in zip(numbers, self.memory_alone) if m[0] == socket}

    def nodes_of(self, socket, cpus, own=()):
        """In the order of their numbers, which is that of hwloc."""
        alone = self.alone(socket)
        for n in sorted(set(own) | set(alone)):
            self.node(n, cpus, self.gib if n in own else self.gib_alone, alone.get(n))

    def core(self, core, nodes):
        cpus = self.cpus(core)
        if not cpus & self.online:
            return
        self.open("Core", os_index=core, **self.sets(cpus, nodes))
        for cpu in sorted(cpus & self.online):
            self.open("PU", os_index=cpu, **self.sets({cpu}, nodes))
            self.close()
        self.close()

    def pci(self, where):
        for bridge in self.bridges.get(where, []):
            self.bridge(bridge)

    def bridge(self, bridge):
        """A host bridge: (domain, bus, [devices]), or of the devices a switch, in the same form."""
        domain, bus, devices = bridge
        self.open(
            "Bridge",
            bridge_type="0-1",
            depth=0,
            bridge_pci="%04x:[%02x-%02x]" % (domain, bus, bus + 8),
        )
        for device in devices:
            self.device(domain, bus, device)
        self.close()

    def device(self, domain, above, device):
        kind, bus = device[0], device[1]
        if kind == "switch":
            self.open(
                "Bridge",
                bridge_type="1-1",
                depth=1,
                bridge_pci="%04x:[%02x-%02x]" % (domain, bus, bus + 4),
                pci_busid="%04x:%02x:01.0" % (domain, above),
                pci_type="0604 [1000:c030] [1000:100b] 00",
                pci_link_speed="0.000000",
            )
            for inner in device[2]:
                self.device(domain, bus, inner)
            self.close()
            return
        what = {
            "gpu": "0302 [10de:2330] [10de:16c1] a1",
            "nvswitch": "0680 [10de:22a3] [10de:1796] a1",
            "vga": "0300 [1a03:2000] [1a03:2000] 41",
            "nic": "0207 [15b3:1021] [15b3:0041] 00",
            "disk": "0108 [144d:a80a] [144d:a801] 00",
            "workstation": "0300 [10de:2684] [10de:16f3] a1",
        }[kind]
        self.open(
            "PCIDev",
            pci_busid="%04x:%02x:00.0" % (domain, bus),
            pci_type=what,
            pci_link_speed="0.000000",
        )
        if kind == "nic":
            self.open("OSDev", name="ib%d" % bus, osdev_type=3)
            self.close()
        if kind == "gpu" and device[2:] == ("named",):
            self.open("OSDev", name="cuda0", subtype="CUDA", osdev_type=5)
            self.info("CUDAGlobalMemorySize", "83886080")
            self.close()
        self.close()

    def write(self, folder, name):
        sockets = sorted(set(self.domains))
        root = self.sets(self.all_cpus, self.nodes)
        self.open(
            "Machine",
            os_index=0,
            **root,
            allowed_cpuset=bitmap(self.allowed),
            allowed_nodeset=bitmap(self.nodes)
        )
        self.info("Backend", "Linux")
        self.nodes_of(None, set())
        for socket in sockets:
            mine = [d for d, s in enumerate(self.domains) if s == socket]
            cpus = set().union(*(self.cpus_of_domain(d) for d in mine))
            local = set(self.alone(socket))
            near = {self.numbers[d] for d in mine} - self.bare
            self.open("Package", os_index=socket, **self.sets(cpus, near | local))
            self.nodes_of(socket, cpus, near if len(mine) == 1 else ())
            for d in mine:
                inner = self.cpus_of_domain(d)
                own = {self.numbers[d]} - self.bare
                group = len(mine) > 1 and own
                if group:
                    self.open("Group", **self.sets(inner, own | local), kind=1000, subkind=0)
                    self.node(self.numbers[d], inner, self.gib)
                for core in range(d * self.cores, (d + 1) * self.cores):
                    self.core(core, own | local)
                self.pci(d)
                if group:
                    self.close()
            self.pci(("package", socket))
            self.close()
        self.pci(None)
        self.close()
        with open(os.path.join(folder, name + ".xml"), "w", encoding="ascii") as file:
            file.write(
                '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM'
                ' "hwloc2.dtd">\n<topology version="2.0">\n'
            )
            file.write("\n".join(self.lines) + "\n</topology>\n")


def two_sockets(**options):
    """An HGX board: four PCI switches with two GPUs and a network card each; NVSwitches; a BMC's
    display."""
    m = Machine([0, 1], **{"cores": 16, "threads": 2, **options})
    m.bridges = {
        0: [
            (0, 0x00, [("vga", 0x03), ("disk", 0x04)]),
            (0, 0x15, [("switch", 0x16, [("gpu", 0x18), ("nic", 0x1A)])]),
            (0, 0x26, [("switch", 0x27, [("gpu", 0x2A), ("disk", 0x29)])]),
            (0, 0x37, [("switch", 0x38, [("gpu", 0x3A)])]),
            (0, 0x5B, [("switch", 0x5C, [("gpu", 0x5D)])]),
            (0, 0x05, [("nvswitch", 0x07)]),
        ],
        1: [
            (0, 0x98, [("gpu", 0x9A)]),
            (0, 0xAA, [("gpu", 0xAB)]),
            (0, 0xBA, [("gpu", 0xBA + 1)]),
            (0, 0xD9, [("gpu", 0xDB)]),
        ],
    }
    return m


def main(folder):
    two_sockets().write(folder, "2s4g-ht")
    two_sockets(threads=1).write(folder, "2s4g")
    # CPUs 5 and 37 are one core, 20 the first thread of another, 62 and 63 the second threads of
    # two
    two_sockets(offline=[5, 37, 20, 62, 63]).write(folder, "2s4g-offline")
    two_sockets(allowed=list(range(4, 12)) + list(range(20, 28))).write(folder, "2s4g-allowed")

    nps4 = Machine([0, 0, 0, 0, 1, 1, 1, 1], cores=8, gib=96)
    # AMD's order of host bridges: bus numbers do not follow the numbers of NUMA nodes
    nps4.bridges = {
        3: [(0, 0x00, [("gpu", 0x01), ("disk", 0x02)])],
        1: [(0, 0x40, [("gpu", 0x41)])],
        7: [(0, 0x80, [("gpu", 0x81)])],
        5: [(0, 0xC0, [("gpu", 0xC1)])],
    }
    nps4.write(folder, "nps4")

    one = Machine([0], cores=24, threads=2, gib=512)
    one.bridges = {
        0: [
            (0, 0x10 * i + 1, [("switch", 0x10 * i + 2, [("gpu", 0x10 * i + 4)])]) for i in range(8)
        ]
    }
    one.write(folder, "1n8g")

    side = Machine([0, 1], cores=12, threads=2)
    side.bridges = {
        1: [
            (
                0,
                0x80,
                [
                    ("switch", 0x81, [("gpu", 0x82), ("gpu", 0x83)]),
                    ("switch", 0x86, [("gpu", 0x87), ("gpu", 0x88)]),
                ],
            )
        ],
        0: [(0, 0x00, [("vga", 0x03)])],
    }
    side.write(folder, "one-side")

    # HBM of each socket, CXL memory that the firmware says nothing of, memory of a GPU
    alone = Machine(
        [0, 1],
        cores=8,
        threads=2,
        memory_alone=[(0, "HBM"), (1, "HBM"), (None, None), (1, "GPUMemory")],
    )
    alone.bridges = {0: [(0, 0x10, [("gpu", 0x11, "named")])], 1: [(0, 0x90, [("gpu", 0x91)])]}
    alone.write(folder, "memory-alone")

    # Grace: Linux numbers the memory of GPUs after that of processors, and leaves room for MIG
    def grace(domains, gpus, **options):
        alone = [(s, "GPUMemory") for s in domains for _ in range(gpus)]
        m = Machine(domains, cores=8, memory_alone=alone, **options)
        m.bridges = {
            s: [(16 * s + 9 + g - gpus // 2, 0x00, [("gpu", 0x01)]) for g in range(gpus)]
            for s in domains
        }
        return m

    four = [0, 1, 2, 3]
    gh200 = {"domains": four, "gpus": 1, "gib": 120, "gib_alone": 96}
    grace(**gh200, numbers=four + [4, 12, 20, 28]).write(folder, "gh200")
    grace(**gh200, numbers=[1, 3, 5, 7, 0, 2, 4, 6]).write(folder, "gh200-gpu-first")
    grace([0, 1], 2, gib=480, gib_alone=186, numbers=[0, 1, 2, 10, 18, 26]).write(folder, "gb200")

    # firmware that does not tell where the devices are, in a second PCI domain
    blind = Machine([0, 1], cores=8)
    blind.bridges = {
        None: [(1, 0x01, [("gpu", 0x02), ("gpu", 0x03)]), (0, 0x20, [("workstation", 0x21)])]
    }
    blind.write(folder, "blind")

    # sockets without DIMMs: their own nodes have no memory, two more have
    Machine([0, 1], cores=4, gib=0, memory_alone=[(0, None), (1, None)]).write(folder, "no-dimms")
    # dies without a memory controller, the first of the machine and the last
    Machine([0, 0, 1, 1], cores=4, bare=[0, 3]).write(folder, "bare")

    # domains of 6, 6, 5 and 5 cores, a GPU at each
    unequal = Machine([0, 0, 1, 1], cores=6, threads=2, offline=[17, 41, 23, 47])
    unequal.bridges = {d: [(0, 0x20 * d, [("gpu", 0x20 * d + 1)])] for d in range(4)}
    unequal.write(folder, "unequal")
    # domains of 5, 5 and 4 cores per socket, and four GPUs at each socket, whose buses alternate
    snc3 = Machine([0, 0, 0, 1, 1, 1], cores=5, offline=[14, 29])
    for s in (0, 1):
        snc3.bridges["package", s] = [
            (0, 0x40 * g + 0x20 * s, [("gpu", 0x40 * g + 0x20 * s + 1)]) for g in range(4)
        ]
    snc3.write(folder, "snc3")

    # a control group that leaves no core near the GPU
    withheld = Machine([0, 1], cores=4, allowed=range(4, 8))
    withheld.bridges = {0: [(0, 0x10, [("gpu", 0x11)])]}
    withheld.write(folder, "withheld")
    # and two machines without GPUs: one of them may be used by half, the other not at all
    Machine([0, 1], cores=2, allowed=[2, 3]).write(folder, "half")
    Machine([0], cores=1, allowed=[]).write(folder, "forbidden")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_machines.py FOLDER")
    main(sys.argv[1])
