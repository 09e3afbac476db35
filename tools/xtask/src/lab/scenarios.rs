//! The table of scenarios: what machine is booted, with which kernel, devices and modules, and what runs in
//! it.
//!
//! A new scenario is an entry here and a script in `guest/`.

use std::time::Duration;

use super::images::{Kernel, Qemu, Set};
use super::measure::{Comparison, Goal};

/// Something that is proved in guests.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// What it proves, in one sentence.
    pub(super) about: &'static str,
    pub(super) guests: &'static [Guest],
}

/// One machine, from its start to its end.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) name: &'static str,
    pub(super) qemu: Qemu,
    pub(super) kernel: Kernel,
    /// The programs that it has, beside those that are tested.
    pub(super) set: Set,
    /// Arguments of QEMU.
    pub(super) devices: &'static [&'static str],
    /// Machines that run at the same time, on wires with this one.
    pub(super) others: &'static [Other],
    /// Added to the kernel's command line.
    pub(super) append: &'static str,
    pub(super) modules: &'static [&'static str],
    /// Examples of the workspace that run in it, beside `doorbell`.
    pub(super) programs: &'static [&'static str],
    /// Whether it has the libfabric provider, and a checked program of MPI.
    pub(super) clients: bool,
    pub(super) processors: u32,
    pub(super) memory_mib: u32,
    pub(super) script: &'static str,
    /// What the script finds set.
    pub(super) settings: &'static [(&'static str, &'static str)],
    /// Programs of this machine that run as long as it does: models of devices. `@` means a folder of
    /// their own, here and in `devices`.
    pub(super) beside: &'static [Beside],
    /// Captures that it brings out, which the dissector has to understand.
    pub(super) captures: &'static [&'static str],
    /// What it measures and what that is compared with: it runs with `--measure`, and else not.
    pub(super) compared: &'static [Comparison],
    /// What it finds set otherwise with `--short`.
    pub(super) shortened: &'static [(&'static str, &'static str)],
    /// Whether `--short` has it, too.
    pub(super) short: bool,
    /// The time after which the machine is killed.
    pub(super) limit: Duration,
}

/// A machine that runs at the same time as a guest: all is as there but what is named here. When the guest
/// has ended, it has half a minute to end, too.
///
/// `@` in the devices of all of them is one folder, for the sockets of their wires.
#[derive(Debug)]
pub(super) struct Other {
    /// It stands before the checks of this machine.
    pub(super) name: &'static str,
    pub(super) devices: &'static [&'static str],
    pub(super) script: &'static str,
    pub(super) settings: &'static [(&'static str, &'static str)],
}

/// A program of this machine that runs beside a guest.
#[derive(Debug)]
pub(super) struct Beside {
    /// The program that is tested, with these words between spaces.
    pub(super) words: &'static str,
    /// The file by which it is known to be ready.
    pub(super) ready: &'static str,
}

pub(super) const SCENARIOS: &[Scenario] = &[XDP_ZERO_COPY, VFIO, DOCTOR, IGBVF, VIC, VERBS, CORES];

const XDP_ZERO_COPY: Scenario = Scenario {
    name: "xdp-zero-copy",
    about: "rails past the kernel in every mode of emulated NICs with queues, and the refusal of what they lack",
    guests: &[
        Guest {
            name: "igb, newest kernel",
            kernel: Kernel::Newest,
            short: true,
            settings: &[
                IGB_QUEUES,
                ("HAD", "zero-copy native"),
                ("REFUSED", ""),
                ("BEST", "zero-copy"),
                ("SAID", "zero-copy"),
            ],
            ..XDP
        },
        Guest {
            name: "igb, Linux 6.12",
            kernel: Kernel::Stable,
            settings: &[
                IGB_QUEUES,
                ("HAD", "generic"),
                ("REFUSED", "zero-copy"),
                ("REASON", "its driver does not have it"),
                ("BEST", "native"),
                ("SAID", "native"),
            ],
            ..XDP
        },
        Guest {
            name: "virtio-net, newest kernel",
            kernel: Kernel::Newest,
            devices: VIRTIO_PAIR,
            modules: &["virtio_net", "xsk_diag"],
            settings: &[
                ("QUEUES", ""),
                ("HAD", "native generic"),
                ("REFUSED", "zero-copy"),
                // Its driver has it, and not for every device: which one is found out by trying.
                ("REASON", "bind to queue 0: Invalid argument"),
                ("BEST", "native"),
                ("SAID", "zero-copy"),
            ],
            ..XDP
        },
    ],
};

const VFIO: Scenario = Scenario {
    name: "vfio",
    about: "real devices from user space: every step to an open one and its refusal, registers, DMA, interrupts, unplugging",
    guests: &[
        Guest {
            name: "igb's VFs, Linux 6.12",
            short: true,
            script: include_str!("guest/vfio.sh"),
            settings: &[("IOMMU", "on")],
            ..IGB_VFS
        },
        Guest {
            name: "igb's VFs, newest kernel",
            kernel: Kernel::Newest,
            script: include_str!("guest/vfio.sh"),
            settings: &[("IOMMU", "on")],
            ..IGB_VFS
        },
        Guest {
            name: "no IOMMU",
            append: "",
            devices: IGB_ALONE,
            script: include_str!("guest/vfio.sh"),
            settings: &[("IOMMU", "off")],
            ..IGB_VFS
        },
    ],
};

const DOCTOR: Scenario = Scenario {
    name: "doctor",
    about: "`doorbell doctor` on virtual functions: each verdict true, and what it prints enough",
    guests: &[
        Guest {
            name: "igb's VFs, Linux 6.12",
            short: true,
            script: include_str!("guest/doctor.sh"),
            settings: &[("IOMMU", "on")],
            ..IGB_VFS
        },
        Guest {
            name: "one group for all",
            devices: IGB_UNISOLATED,
            script: include_str!("guest/doctor.sh"),
            settings: &[("IOMMU", "shared")],
            ..IGB_VFS
        },
        Guest {
            name: "IOMMU off",
            append: "intel_iommu=off",
            script: include_str!("guest/doctor.sh"),
            settings: &[("IOMMU", "off")],
            ..IGB_VFS
        },
        Guest {
            name: "no IOMMU",
            append: "",
            devices: IGB_ALONE,
            script: include_str!("guest/doctor.sh"),
            settings: &[("IOMMU", "none")],
            ..IGB_VFS
        },
    ],
};

const IGBVF: Scenario = Scenario {
    name: "igbvf",
    about: "rails over virtual functions of two 82576s: with each other and with a kernel's socket, failing over, taken away",
    guests: &[Guest {
        name: "two adapters, Linux 6.12",
        devices: IGB_TWICE,
        modules: &["igb", "igbvf", "e1000e", "veth", "vfio_pci", "vfio_iommu_type1"],
        programs: &["igbvf-lab", "rails"],
        script: include_str!("guest/igbvf.sh"),
        settings: &[("MESSAGES", "100000"), ("SAMPLES", "100")],
        shortened: &[("MESSAGES", "20000"), ("SAMPLES", "20")],
        captures: &["ipv4.pcap", "ipv6.pcap"],
        short: true,
        limit: Duration::from_secs(480),
        ..IGB_VFS
    }],
};

const VIC: Scenario = Scenario {
    name: "vic",
    about: "the model of a VIC as a PCI device: judged by the kernel's own driver for the card, and driven by ours",
    guests: &[
        Guest {
            name: "enic, Linux 6.12",
            qemu: Qemu::Q11,
            devices: VIC_FOR_ENIC,
            beside: &[Beside {
                words: "model vic --dir @/vic --vfs 1 --device 0071 --policy permissive --wq 2 --rq 2 --cq 4 --intr 6 --trap all --strict",
                ready: "@/vic/vf0.sock",
            }],
            modules: &["enic"],
            programs: &[],
            script: include_str!("guest/enic.sh"),
            short: true,
            limit: Duration::from_secs(240),
            ..IGB_VFS
        },
        Guest {
            name: "usnic, Linux 6.12",
            qemu: Qemu::Q11,
            devices: VIC_FOR_USNIC,
            beside: &[Beside {
                words: "model vic --dir @/vic --vfs 2 --policy permissive --strict",
                ready: "@/vic/vf1.sock",
            }],
            modules: &["vfio_pci", "vfio_iommu_type1"],
            programs: &[],
            script: include_str!("guest/usnic.sh"),
            short: true,
            limit: Duration::from_secs(240),
            ..IGB_VFS
        },
    ],
};

const VERBS: Scenario = Scenario {
    name: "verbs",
    about: "rails over queue pairs of soft-RoCE devices: beside the library's own tools, failing over, taken away, between two hosts",
    guests: &[
        Guest {
            name: "one host, Linux 6.12",
            script: concat!(
                include_str!("guest/verbs-common.sh"),
                include_str!("guest/verbs-ofi.sh"),
                include_str!("guest/verbs.sh")
            ),
            shortened: &[("KINDS", "rc"), ("PARTS", "listed operations calls failover")],
            short: true,
            ..SOFT_ROCE
        },
        Guest {
            name: "one host, newest kernel",
            kernel: Kernel::Newest,
            modules: ROCE_MODULES,
            script: concat!(
                include_str!("guest/verbs-common.sh"),
                include_str!("guest/verbs-ofi.sh"),
                include_str!("guest/verbs.sh")
            ),
            ..SOFT_ROCE
        },
        Guest {
            name: "two hosts, Linux 6.12",
            devices: THREE_WIRES,
            others: OTHER_HOST,
            script: concat!(
                include_str!("guest/verbs-common.sh"),
                include_str!("guest/verbs-ofi.sh"),
                include_str!("guest/verbs-wire.sh"),
                include_str!("guest/verbs-wires.sh"),
                include_str!("guest/verbs-between.sh")
            ),
            ..SOFT_ROCE
        },
        // On 6.12, soft-RoCE has its sockets in the first namespace only.
        Guest {
            name: "two namespaces, newest kernel",
            kernel: Kernel::Newest,
            modules: ROCE_MODULES,
            devices: THREE_HUBS,
            script: concat!(
                include_str!("guest/verbs-common.sh"),
                include_str!("guest/verbs-ofi.sh"),
                include_str!("guest/verbs-namespaces.sh"),
                include_str!("guest/verbs-wires.sh"),
                include_str!("guest/verbs-between.sh")
            ),
            ..SOFT_ROCE
        },
        Guest {
            name: "measured on one host, Linux 6.12",
            settings: &[KINDS, ("TURNS", "5"), ("MORE", "yes")],
            script: concat!(
                include_str!("guest/verbs-common.sh"),
                include_str!("guest/verbs-alone.sh"),
                include_str!("guest/verbs-measure.sh")
            ),
            compared: BESIDE_OTHERS,
            ..SOFT_ROCE
        },
        Guest {
            name: "measured between two hosts, Linux 6.12",
            devices: THREE_WIRES,
            others: OTHER_HOST,
            settings: &[KINDS, ("TURNS", "5"), ("MORE", "")],
            script: concat!(
                include_str!("guest/verbs-common.sh"),
                include_str!("guest/verbs-wire.sh"),
                include_str!("guest/verbs-wires.sh"),
                include_str!("guest/verbs-measure.sh")
            ),
            compared: BESIDE_OTHERS_BETWEEN,
            ..SOFT_ROCE
        },
    ],
};

const CORES: Scenario = Scenario {
    name: "cores",
    about: "which cores ranks and their progress threads get on a machine with nodes and hardware threads, and what happens when one goes",
    guests: &[
        Guest {
            name: "two nodes, Linux 6.12",
            short: true,
            ..TWO_NODES
        },
        Guest {
            name: "isolated cores",
            append: "isolcpus=6-7",
            settings: &[("ISOLATED", "6-7"), ("OFFLINE", "")],
            ..TWO_NODES
        },
    ],
};

/// Eight cores in two nodes, and a NIC at each.
const TWO_NODES: Guest = Guest {
    devices: NODES_AND_NIC,
    modules: &["virtio_net"],
    programs: &["binding"],
    processors: 8,
    script: include_str!("guest/cores.sh"),
    settings: &[("ISOLATED", ""), ("OFFLINE", "yes")],
    shortened: &[("OFFLINE", "")],
    limit: Duration::from_secs(480),
    ..XDP
};

/// A machine with soft-RoCE devices of Linux 6.12.
const SOFT_ROCE: Guest = Guest {
    set: Set::Rdma,
    devices: VIRTIO_WIRE,
    modules: ROCE_MODULES_6_12,
    programs: &["verbs-lab"],
    clients: true,
    settings: &[KINDS],
    limit: Duration::from_secs(1200),
    ..XDP
};

const OTHER_HOST: &[Other] = &[Other {
    name: "b",
    devices: THREE_WIRES_OTHER,
    script: concat!(
        include_str!("guest/verbs-common.sh"),
        include_str!("guest/verbs-ofi.sh"),
        include_str!("guest/verbs-other.sh")
    ),
    settings: &[],
}];

/// What is compared over a soft-RoCE device.
const BESIDE_OTHERS: &[Comparison] = &[
    time(
        "64 B to and fro, RC, typical",
        "rc.doorbell.typical",
        &["rc.ib_send_lat.typical"],
        1.25,
    ),
    time(
        "64 B to and fro, RC, least",
        "rc.doorbell.min",
        &["rc.ib_send_lat.min"],
        1.25,
    ),
    time(
        "64 B to and fro, RC, beside UCX",
        "rc.doorbell.typical",
        &["rc.ucx.typical"],
        1.0,
    ),
    time(
        "64 B to and fro, UD, typical",
        "ud.doorbell.typical",
        &["ud.ib_send_lat.typical"],
        1.25,
    ),
    time(
        "64 B to and fro, UD, least",
        "ud.doorbell.min",
        &["ud.ib_send_lat.min"],
        1.25,
    ),
    time(
        "64 B to and fro, UD, beside UCX",
        "ud.doorbell.typical",
        &["ud.ucx.typical"],
        1.0,
    ),
    time(
        "8 B put and its completion, RC",
        "rc.doorbell.put",
        &["write"],
        1.25,
    ),
    time(
        "8 B put and its completion, RC, beside a target that polls",
        "rc.doorbell.put",
        &["write_beside_polling"],
        1.25,
    ),
    time(
        "8 B put and its completion, UD",
        "ud.doorbell.put",
        &["write"],
        1.25,
    ),
    time(
        "8 B put and its completion, UD, beside a target that polls",
        "ud.doorbell.put",
        &["write_beside_polling"],
        1.25,
    ),
    bandwidth(
        "1 MiB stream, RC, beside reads",
        "rc.doorbell.stream",
        &["read_bw"],
        0.95,
    ),
    bandwidth(
        "1 MiB stream, RC, beside writes",
        "rc.doorbell.stream",
        &["write_bw"],
        0.97,
    ),
    bandwidth(
        "1 MiB stream, RC, beside UCX",
        "rc.doorbell.stream",
        &["rc.ucx.stream", "ud.ucx.stream"],
        1.0,
    ),
    bandwidth(
        "1 MiB stream, UD, beside reads",
        "ud.doorbell.stream",
        &["read_bw"],
        0.95,
    ),
    bandwidth(
        "1 MiB stream, UD, beside UCX",
        "ud.doorbell.stream",
        &["ud.ucx.stream"],
        1.0,
    ),
    rate(
        "64 B posted, 64 at a time, RC",
        "rc.doorbell.rate",
        &["rc.ucx.rate"],
    ),
    rate(
        "64 B posted, 64 at a time, UD",
        "ud.doorbell.rate",
        &["ud.ucx.rate"],
    ),
];

/// What is compared between two machines.
const BESIDE_OTHERS_BETWEEN: &[Comparison] = &[
    time(
        "64 B to and fro, RC, typical",
        "rc.doorbell.typical",
        &["rc.ib_send_lat.typical"],
        1.25,
    ),
    time(
        "64 B to and fro, RC, least",
        "rc.doorbell.min",
        &["rc.ib_send_lat.min"],
        1.25,
    ),
    time(
        "64 B to and fro, UD, beside UCX",
        "ud.doorbell.typical",
        &["ud.ucx.typical"],
        1.0,
    ),
    bandwidth(
        "1 MiB stream, RC, beside reads",
        "rc.doorbell.stream",
        &["read_bw"],
        0.95,
    ),
    bandwidth(
        "1 MiB stream, RC, beside writes",
        "rc.doorbell.stream",
        &["write_bw"],
        0.97,
    ),
    bandwidth(
        "1 MiB stream, RC, beside UCX",
        "rc.doorbell.stream",
        &["rc.ucx.stream", "ud.ucx.stream"],
        1.0,
    ),
    bandwidth(
        "1 MiB stream, UD, beside UCX",
        "ud.doorbell.stream",
        &["ud.ucx.stream"],
        1.0,
    ),
];

const fn time(
    what: &'static str,
    ours: &'static str,
    bases: &'static [&'static str],
    most: f64,
) -> Comparison {
    Comparison {
        what,
        ours,
        bases,
        unit: "µs",
        goal: Goal::AtMost(most),
    }
}

const fn bandwidth(
    what: &'static str,
    ours: &'static str,
    bases: &'static [&'static str],
    least: f64,
) -> Comparison {
    Comparison {
        what,
        ours,
        bases,
        unit: "MB/s",
        goal: Goal::AtLeast(least),
    }
}

const fn rate(what: &'static str, ours: &'static str, bases: &'static [&'static str]) -> Comparison {
    Comparison {
        what,
        ours,
        bases,
        unit: "thousand/s",
        goal: Goal::AtLeast(1.0),
    }
}

/// The services of which each has its rails tried.
const KINDS: (&str, &str) = ("KINDS", "rc ud");

const ROCE_MODULES: &[&str] = &[
    "virtio_net",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    "veth",
    "8021q",
    "nf_tables",
];

const ROCE_MODULES_6_12: &[&str] = &[
    "virtio_net",
    // rxe and nf_tables load these by their names where that is possible, which it is not here.
    "crc32_generic",
    "crc32c_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    "veth",
    "8021q",
    "nf_tables",
];

/// Two NICs of the 82576's kind on one wire, and a script that puts each into a namespace.
const XDP: Guest = Guest {
    name: "",
    qemu: Qemu::Q10,
    kernel: Kernel::Stable,
    set: Set::Plain,
    devices: IGB_PAIR,
    others: &[],
    append: "",
    modules: &["igb", "xsk_diag"],
    programs: &[],
    clients: false,
    processors: 2,
    memory_mib: 1024,
    script: include_str!("guest/xdp.sh"),
    settings: &[],
    compared: &[],
    shortened: &[],
    beside: &[],
    captures: &[],
    short: false,
    limit: Duration::from_secs(300),
};

/// An 82576 that can have virtual functions, each in an IOMMU group of its own, on one wire with two NICs
/// behind a bridge to a conventional bus. The scenarios that use it add a script.
const IGB_VFS: Guest = Guest {
    name: "",
    qemu: Qemu::Q10,
    kernel: Kernel::Stable,
    set: Set::Plain,
    devices: IGB_AND_BRIDGE,
    others: &[],
    append: "intel_iommu=on",
    modules: &["igb", "igbvf", "e1000", "vfio_pci", "vfio_iommu_type1"],
    programs: &["vfio-lab"],
    clients: false,
    // With two, QEMU's translator has ended in the middle of it, now and then: one still uses what the other
    // unmaps when a BAR moves or a function is reset ("iotlb_to_section: Assertion").
    processors: 1,
    memory_mib: 1024,
    script: "finish",
    settings: &[],
    compared: &[],
    shortened: &[],
    beside: &[],
    captures: &[],
    short: false,
    limit: Duration::from_secs(300),
};

/// With fewer than five, igb has an interrupt of its own for each direction of a queue, and loses it for good
/// when the queue is restarted for a socket: then the kernel resets the whole NIC after five seconds, or
/// nothing does.
const IGB_QUEUES: (&str, &str) = ("QUEUES", "5");

const IGB_PAIR: &[&str] = &[
    "-netdev hubport,id=n0,hubid=0 -device pcie-root-port,id=rp0,slot=1,chassis=1",
    "-device igb,netdev=n0,bus=rp0,mac=52:54:00:00:00:01",
    "-netdev hubport,id=n1,hubid=0 -device pcie-root-port,id=rp1,slot=2,chassis=2",
    "-device igb,netdev=n1,bus=rp1,mac=52:54:00:00:00:02",
];

const IGB_AND_BRIDGE: &[&str] = &[
    // First, as all others are put behind it.
    "-device intel-iommu,intremap=on,device-iotlb=on",
    "-netdev hubport,id=n0,hubid=0 -device pcie-root-port,id=rp0,slot=1,chassis=1",
    "-device igb,netdev=n0,bus=rp0,mac=52:54:00:00:01:00",
    "-device pcie-root-port,id=rp1,slot=2,chassis=2 -device pcie-pci-bridge,id=old,bus=rp1",
    "-netdev hubport,id=n1,hubid=0 -device e1000,netdev=n1,bus=old,addr=1,mac=52:54:00:00:02:00",
    "-netdev hubport,id=n2,hubid=0 -device e1000,netdev=n2,bus=old,addr=2,mac=52:54:00:00:03:00",
];

/// Two adapters on wires of their own, and a NIC of the kernel's at the other end of the first.
const IGB_TWICE: &[&str] = &[
    "-device intel-iommu,intremap=on,device-iotlb=on",
    "-netdev hubport,id=n0,hubid=0 -device pcie-root-port,id=rp0,slot=1,chassis=1",
    "-device igb,netdev=n0,bus=rp0,mac=52:54:00:00:0a:00",
    "-netdev hubport,id=n1,hubid=1 -device pcie-root-port,id=rp1,slot=2,chassis=2",
    "-device igb,netdev=n1,bus=rp1,mac=52:54:00:00:0b:00",
    "-netdev hubport,id=n2,hubid=0 -device pcie-root-port,id=rp2,slot=3,chassis=3",
    "-device e1000e,netdev=n2,bus=rp2,mac=52:54:00:00:0c:00",
];

/// An 82576 behind a port that does not keep its functions apart, so that the IOMMU has one group for all of
/// them.
const IGB_UNISOLATED: &[&str] = &[
    "-device intel-iommu,intremap=on,device-iotlb=on",
    "-netdev hubport,id=n0,hubid=0 -device pcie-root-port,id=rp0,slot=1,chassis=1,disable-acs=on",
    "-device igb,netdev=n0,bus=rp0,mac=52:54:00:00:01:00",
];

/// Two functions of the model, each behind a port of its own, which reach the machine's memory by its
/// descriptor.
const VIC_FOR_ENIC: &[&str] = &[
    "-object memory-backend-memfd,id=m0,size=1024M,share=on -machine memory-backend=m0",
    "-device intel-iommu,intremap=on,caching-mode=on",
    "-device pcie-root-port,id=rp0,slot=1,chassis=1 -device pcie-root-port,id=rp1,slot=2,chassis=2",
    "-device {\"driver\":\"vfio-user-pci\",\"bus\":\"rp0\",\"socket\":{\"type\":\"unix\",\"path\":\"@/vic/pf.sock\"}}",
    "-device {\"driver\":\"vfio-user-pci\",\"bus\":\"rp1\",\"socket\":{\"type\":\"unix\",\"path\":\"@/vic/vf0.sock\"}}",
];

const VIC_FOR_USNIC: &[&str] = &[
    "-object memory-backend-memfd,id=m0,size=1024M,share=on -machine memory-backend=m0",
    "-device intel-iommu,intremap=on,caching-mode=on",
    "-device pcie-root-port,id=rp0,slot=1,chassis=1 -device pcie-root-port,id=rp1,slot=2,chassis=2",
    "-device pcie-root-port,id=rp2,slot=3,chassis=3",
    "-device {\"driver\":\"vfio-user-pci\",\"bus\":\"rp0\",\"socket\":{\"type\":\"unix\",\"path\":\"@/vic/pf.sock\"}}",
    "-device {\"driver\":\"vfio-user-pci\",\"bus\":\"rp1\",\"socket\":{\"type\":\"unix\",\"path\":\"@/vic/vf0.sock\"}}",
    "-device {\"driver\":\"vfio-user-pci\",\"bus\":\"rp2\",\"socket\":{\"type\":\"unix\",\"path\":\"@/vic/vf1.sock\"}}",
];

const IGB_ALONE: &[&str] = &[
    "-netdev hubport,id=n0,hubid=0 -device pcie-root-port,id=rp0,slot=1,chassis=1",
    "-device igb,netdev=n0,bus=rp0,mac=52:54:00:00:01:00",
];

/// Two nodes with half of the memory each, two whole cores of two hardware threads each, and a NIC behind a
/// bridge of the second node.
const NODES_AND_NIC: &[&str] = &[
    "-smp sockets=2,cores=2,threads=2",
    "-object memory-backend-ram,size=512M,id=near -object memory-backend-ram,size=512M,id=far",
    "-numa node,nodeid=0,cpus=0-3,memdev=near -numa node,nodeid=1,cpus=4-7,memdev=far",
    "-numa dist,src=0,dst=1,val=21",
    "-device pxb-pcie,id=there,bus=pcie.0,bus_nr=128,numa_node=1",
    "-device pcie-root-port,id=rp0,bus=there,slot=1,chassis=1",
    "-netdev hubport,id=n0,hubid=0 -device virtio-net-pci,netdev=n0,bus=rp0,mac=52:54:00:00:00:01",
    "-device pxb-pcie,id=here,bus=pcie.0,bus_nr=192,numa_node=0",
    "-device pcie-root-port,id=rp1,bus=here,slot=2,chassis=2",
    "-netdev hubport,id=n1,hubid=0 -device virtio-net-pci,netdev=n1,bus=rp1,mac=52:54:00:00:00:02",
];

/// A NIC that a soft-RoCE device stands on, and the other end of its wire. A hub without another end that is
/// up holds back what is sent, and the kernel complains.
const VIRTIO_WIRE: &[&str] = &[
    "-netdev hubport,id=n0,hubid=0 -netdev hubport,id=n1,hubid=0",
    "-device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01",
    "-device virtio-net-pci,netdev=n1,mac=52:54:00:00:00:02",
];

/// One of two machines: three NICs on wires with the other one, and the line between both.
const THREE_WIRES: &[&str] = &[
    "-chardev socket,id=line,path=@/line,server=on,wait=off -serial chardev:line",
    "-netdev stream,id=n0,server=on,addr.type=unix,addr.path=@/wire0",
    "-netdev stream,id=n1,server=on,addr.type=unix,addr.path=@/wire1",
    "-netdev stream,id=n2,server=on,addr.type=unix,addr.path=@/wire2",
    "-device virtio-net-pci,netdev=n0,mac=52:54:00:00:0a:00",
    "-device virtio-net-pci,netdev=n1,mac=52:54:00:00:0a:01",
    "-device virtio-net-pci,netdev=n2,mac=52:54:00:00:0a:02",
];

const THREE_WIRES_OTHER: &[&str] = &[
    "-chardev socket,id=line,path=@/line,reconnect-ms=100 -serial chardev:line",
    "-netdev stream,id=n0,server=off,addr.type=unix,addr.path=@/wire0,reconnect-ms=100",
    "-netdev stream,id=n1,server=off,addr.type=unix,addr.path=@/wire1,reconnect-ms=100",
    "-netdev stream,id=n2,server=off,addr.type=unix,addr.path=@/wire2,reconnect-ms=100",
    "-device virtio-net-pci,netdev=n0,mac=52:54:00:00:0b:00",
    "-device virtio-net-pci,netdev=n1,mac=52:54:00:00:0b:01",
    "-device virtio-net-pci,netdev=n2,mac=52:54:00:00:0b:02",
];

/// The same three wires inside one machine.
const THREE_HUBS: &[&str] = &[
    "-netdev hubport,id=a0,hubid=0 -netdev hubport,id=a1,hubid=1 -netdev hubport,id=a2,hubid=2",
    "-netdev hubport,id=b0,hubid=0 -netdev hubport,id=b1,hubid=1 -netdev hubport,id=b2,hubid=2",
    "-device virtio-net-pci,netdev=a0,mac=52:54:00:00:0a:00",
    "-device virtio-net-pci,netdev=a1,mac=52:54:00:00:0a:01",
    "-device virtio-net-pci,netdev=a2,mac=52:54:00:00:0a:02",
    "-device virtio-net-pci,netdev=b0,mac=52:54:00:00:0b:00",
    "-device virtio-net-pci,netdev=b1,mac=52:54:00:00:0b:01",
    "-device virtio-net-pci,netdev=b2,mac=52:54:00:00:0b:02",
];

/// Without what a device may merge and leave unfinished: the kernel has no XDP beside it. A hub has one
/// queue.
const VIRTIO_PAIR: &[&str] = &[
    "-netdev hubport,id=n0,hubid=0 -netdev hubport,id=n1,hubid=0",
    "-device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,\
     guest_ufo=off,guest_uso4=off,guest_uso6=off,host_uso=off",
    "-device virtio-net-pci,netdev=n1,mac=52:54:00:00:00:02,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,\
     guest_ufo=off,guest_uso4=off,guest_uso6=off,host_uso=off",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_guest_has_what_it_needs() {
        let names: BTreeSet<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
        for scenario in SCENARIOS {
            let guests: BTreeSet<_> = scenario.guests.iter().map(|guest| guest.name).collect();
            assert_eq!(
                (guests.len(), guests.contains("")),
                (scenario.guests.len(), false)
            );
            for guest in scenario.guests {
                assert!(
                    guest.script.trim_end().ends_with("finish"),
                    "{} reports its status",
                    guest.name
                );
                let others: BTreeSet<_> = guest.others.iter().map(|other| other.name).collect();
                assert_eq!((others.len(), others.contains("")), (guest.others.len(), false));
                for other in guest.others {
                    assert!(other.script.trim_end().ends_with("finish"), "{}", other.name);
                }
                assert!(
                    guest.processors > 0 && guest.memory_mib >= 512 && guest.limit >= Duration::from_secs(30)
                );
            }
        }
    }

    #[test]
    fn no_guest_has_a_network_of_the_host() {
        let devices = SCENARIOS
            .iter()
            .flat_map(|scenario| scenario.guests)
            .flat_map(|guest| {
                let others = guest.others.iter().flat_map(|other| other.devices);
                guest.devices.iter().chain(others)
            });
        for words in devices {
            let mut words = words.split_whitespace();
            while let Some(word) = words.next() {
                let backend = words.next().filter(|_| word == "-netdev").unwrap_or("hubport");
                assert!(
                    ["hubport", "stream", "dgram"]
                        .iter()
                        .any(|kind| backend.starts_with(kind)),
                    "{backend}"
                );
            }
        }
    }
}
