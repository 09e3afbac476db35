//! The steps of a port over a machine and a library that are made up: each is broken in turn.

use std::path::PathBuf;

use doorbell_fabric::error::RailError;
use doorbell_fabric::gid::{Kind, Link as LinkLayer, Published};
use doorbell_fabric::name::RailName;
use doorbell_inet::FlowControl;
use doorbell_verbs::gid::{Entry, Gid, rank};
use doorbell_verbs::inspect::{DeviceFacts, Fault, LibraryFacts, PortFacts};
use doorbell_verbs::{VerbsConfig, WindowFacts};

use super::connections::{self, Failed};
use super::{At, Facts, PortName, Service, Stack, before_queues, flow, live, refused, tree, windows};
use crate::doctor::chain::{Chain, Is, Step, Verdict, Walk};
use crate::doctor::firewall::{Fate, Way};
use crate::doctor::system::fake::Fake;

/// A library that is made up: a device rxe0 with a port, all well.
#[derive(Clone)]
struct Made {
    said: &'static str,
    copies_at_fork: bool,
    devices: Result<Vec<String>, Fault>,
    device: Result<DeviceFacts, Fault>,
    port: Result<PortFacts, Fault>,
}

fn entry(address: [u8; 4], index: u8) -> Entry {
    Entry {
        published: Published {
            gid: Gid(std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()),
            kind: Kind::RoceV2,
            prefix: 24,
        },
        index,
        interface: "eth0".to_owned(),
        is_own: true,
        is_up: true,
    }
}

fn bad(reason: &str, remedy: &str) -> Fault {
    Fault {
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

impl Made {
    fn new() -> Self {
        Self {
            said: "",
            copies_at_fork: false,
            devices: Ok(vec!["rxe0".to_owned()]),
            device: Ok(DeviceFacts {
                provider: Some(PathBuf::from("/usr/lib/libibverbs/librxe-rdmav34.so")),
                firmware: "1.0".to_owned(),
                ports: 1,
                requests: 1024,
                ..DeviceFacts::default()
            }),
            port: Ok(PortFacts {
                state: "ACTIVE",
                link: LinkLayer::Ethernet,
                interface: Some("eth0".to_owned()),
                mtu: Some(1024),
                partition: Some((0, 0xffff)),
                gids: rank(vec![entry([10, 0, 0, 1], 1), entry([10, 0, 0, 2], 2)]),
                locked: 2 << 20,
                locked_by_connections: 6 << 20,
                down: None,
                no_partition: None,
                no_gid: None,
                no_mtu: None,
            }),
        }
    }

    fn port(change: impl FnOnce(&mut PortFacts)) -> Self {
        let mut made = Self::new();
        change(made.port.as_mut().unwrap());
        made
    }
}

impl Stack for Made {
    fn library(&self) -> LibraryFacts {
        LibraryFacts {
            file: PathBuf::from("/usr/lib/libibverbs.so.1.14.44.0"),
            version: "1.14".to_owned(),
            said: self.said.to_owned(),
            copies_at_fork: self.copies_at_fork,
        }
    }

    fn devices(&self) -> Result<(Vec<String>, String), Fault> {
        let devices = self.devices.clone()?;
        Ok((devices, "libibverbs: Warning: couldn't load driver".to_owned()))
    }

    fn device(&self, _: &str) -> Result<DeviceFacts, Fault> {
        self.device.clone()
    }

    fn port(&self, _: &str, _: u8) -> Result<PortFacts, Fault> {
        self.port.clone()
    }

    fn flow(&self, _: &str) -> Result<Option<FlowControl>, String> {
        Ok(None)
    }
}

/// A machine with soft-RoCE on eth0.
fn machine() -> Fake {
    let fake = Fake::new();
    fake.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n")
        .file("/sys/class/infiniband/rxe0/parent", "eth0\n")
        .file("/sys/class/infiniband/rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n")
        .file("/sys/module/ib_core/parameters/netns_mode", "Y\n")
        .file("/sys/class/net/eth0/mtu", "1500\n")
        .file("/dev/infiniband/uverbs0", "");
    fake
}

fn walked(fake: &Fake, made: Result<Made, Fault>, name: &str) -> Chain {
    let (system, name): (_, RailName) = (fake.system(), name.parse().unwrap());
    Walk::along(name.as_str(), |walk| {
        let named = PortName::of(&name).map_err(|error| refused(walk, "name", &error))?;
        let at = At {
            system: &system,
            tree: tree(&system),
            name: &name,
            device: &named.device,
            port: named.port,
            service: named.service,
        };
        before_queues(walk, &at, || made).map(|_| ())
    })
}

/// The chain over the machine with this library.
fn with(fake: &Fake, made: Made) -> Chain {
    walked(fake, Ok(made), "verbs:rxe0:1:ud")
}

/// The step that breaks the chain; it has a cause and a fix.
fn broken(chain: Chain, step: &str) -> Step {
    assert_eq!(chain.verdict, Verdict::Broken, "{chain:#?}");
    let last = chain.steps.into_iter().next_back().unwrap();
    assert_eq!((last.step, last.is), (step, Is::Broken), "{last:?}");
    assert!(last.cause.is_some() && !last.fixes.is_empty(), "{last:?}");
    last
}

fn step(chain: &Chain, name: &str) -> Step {
    let found = chain.steps.iter().find(|step| step.step == name);
    found.unwrap_or_else(|| panic!("{name}: {chain:#?}")).clone()
}

#[test]
fn a_port_that_is_well_goes_through_all_steps_in_their_order() {
    let chain = with(&machine(), Made::new());
    let steps: Vec<&str> = chain.steps.iter().map(|step| step.step).collect();
    assert_eq!(
        steps,
        [
            "library",
            "module",
            "device",
            "provider",
            "namespace",
            "device-file",
            "cgroup",
            "open",
            "port",
            "partition",
            "gid",
            "mtu",
            "memlock",
            "fork"
        ]
    );
    assert!(
        chain
            .steps
            .iter()
            .all(|step| matches!(step.is, Is::Ok | Is::Note)),
        "{chain:#?}"
    );
    assert_eq!(step(&chain, "device").saw, "the kernel has rxe0, on eth0");
    assert!(
        step(&chain, "open")
            .saw
            .contains("librxe-rdmav34.so, firmware 1.0")
    );
    assert_eq!(
        step(&chain, "port").saw,
        "ACTIVE (Ethernet on eth0, 2.5 Gb/sec (1X SDR))"
    );
    let gid = step(&chain, "gid").saw;
    assert!(
        gid.starts_with("1 ::ffff:10.0.0.1 (RoCE v2); 2 ") && gid.ends_with("the lower index comes first"),
        "{gid}"
    );
}

#[test]
fn a_library_that_is_not_there_is_installed_and_what_it_prints_is_shown() {
    let missing = Err(bad("libibverbs.so.1 cannot be used: no such file", "install it"));
    let step_of = broken(walked(&machine(), missing, "verbs:rxe0:1:ud"), "library");
    let command = step_of.fixes[0].command.as_deref().unwrap();
    assert_eq!(command, "apt-get install libibverbs1 ibverbs-providers");
    let made = Made {
        said: "libibverbs: Warning: RLIMIT_MEMLOCK is 32768 bytes.",
        ..Made::new()
    };
    assert!(
        step(&with(&machine(), made), "library-prints")
            .saw
            .contains("RLIMIT_MEMLOCK")
    );
}

#[test]
fn a_kernel_without_the_module_gets_it_and_soft_roce_is_named() {
    let fake = Fake::new();
    let module = broken(with(&fake, Made::new()), "module");
    assert_eq!(module.fixes[0].command.as_deref(), Some("modprobe ib_uverbs"));
    let soft = |release: &str| {
        fake.file("/proc/sys/kernel/osrelease", release);
        broken(with(&fake, Made::new()), "module").fixes[1].what.clone()
    };
    assert!(soft("6.12.95+deb13-amd64").contains("`modprobe crc32_generic; modprobe rdma_rxe;"));
    assert!(soft("7.3.4").contains("`modprobe rdma_rxe;"));
    fake.file("/.dockerenv", "");
    assert!(
        broken(with(&fake, Made::new()), "module").fixes[0]
            .what
            .contains("on the host")
    );
}

#[test]
fn a_device_that_is_not_there_is_named_with_the_nearest_and_an_interface_with_its_port() {
    let at = |fake: &Fake, name: &str| broken(walked(fake, Ok(Made::new()), name), "device");
    let fake = machine();
    let near = at(&fake, "verbs:rex0:1:ud");
    assert!(near.saw.contains("no RDMA device rex0"), "{near:?}");
    assert_eq!(near.fixes[0].what, "the nearest name is verbs:rxe0:1:ud");
    let interface = at(&fake, "verbs:eth0:1:ud");
    assert!(
        interface.saw.contains("eth0 is a network interface"),
        "{interface:?}"
    );
    assert_eq!(interface.fixes[0].what, "the port on eth0 is verbs:rxe0:1");
    fake.file("/sys/module/ib_core/parameters/netns_mode", "N\n");
    let elsewhere = at(&fake, "verbs:mlx5_0:1:ud");
    assert!(elsewhere.cause.unwrap().contains("another network namespace"));
    let none = Fake::new();
    none.folder("/sys/class/infiniband_verbs");
    let none = at(&none, "verbs:rxe0:1:ud");
    assert!(none.fixes[1].what.contains("rdma link add rxe0"), "{none:?}");
}

#[test]
fn a_device_without_a_provider_is_told_from_one_whose_file_does_not_load() {
    let made = || Made {
        devices: Ok(Vec::new()),
        ..Made::new()
    };
    let fake = machine();
    let without = broken(with(&fake, made()), "provider").cause.unwrap();
    assert!(
        without.contains("has no file rxe.driver") && without.contains("couldn't load driver"),
        "{without}"
    );
    fake.file("/etc/libibverbs.d/rxe.driver", "driver rxe\n");
    let damaged = broken(with(&fake, made()), "provider").cause.unwrap();
    assert!(
        damaged.contains("/etc/libibverbs.d/rxe.driver names its provider"),
        "{damaged}"
    );
    let refused = Made {
        devices: Err(bad(
            "ibv_get_device_list of this system failed",
            "look at the kernel's log",
        )),
        ..Made::new()
    };
    broken(with(&fake, refused), "provider");
}

#[test]
fn namespaces_are_told_apart() {
    let fake = machine();
    let saw = |fake: &Fake| step(&with(fake, Made::new()), "namespace");
    assert!(saw(&fake).saw.starts_with("shared: devices"));
    fake.link("/proc/self/ns/net", "net:[2]")
        .link("/proc/1/ns/net", "net:[1]");
    assert!(saw(&fake).saw.contains("a network namespace of its own"));
    fake.file("/sys/module/ib_core/parameters/netns_mode", "N\n");
    assert!(saw(&fake).saw.starts_with("exclusive"));
    fake.without("/sys/module/ib_core/parameters/netns_mode");
    assert_eq!(saw(&fake).is, Is::Unknown);
}

#[test]
fn a_device_file_that_is_missing_is_made_or_given_to_the_container() {
    let fake = machine();
    fake.without("/dev/infiniband/uverbs0");
    let missing = broken(with(&fake, Made::new()), "device-file");
    assert!(
        missing.fixes[0]
            .command
            .as_deref()
            .unwrap()
            .starts_with("udevadm trigger")
    );
    fake.file("/.dockerenv", "");
    let container = broken(with(&fake, Made::new()), "device-file");
    assert!(
        container.fixes[0]
            .what
            .contains("--device=/dev/infiniband/uverbs0"),
        "{container:?}"
    );
    // A folder in its place is no device.
    fake.folder("/dev/infiniband/uverbs0");
    assert!(
        broken(with(&fake, Made::new()), "device-file")
            .saw
            .contains("cannot be opened")
    );
}

#[test]
fn a_control_group_that_leaves_too_little_is_named_with_its_file() {
    let fake = machine();
    let folder = "/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope";
    fake.file(
        &format!("{folder}/rdma.max"),
        "mlx5_0 hca_handle=0 hca_object=0\nrxe0 hca_handle=2 hca_object=20\n",
    );
    assert!(
        step(&with(&fake, Made::new()), "cgroup")
            .saw
            .contains("leaves enough")
    );
    fake.file(
        &format!("{folder}/rdma.current"),
        "rxe0 hca_handle=1 hca_object=10\n",
    );
    let few = broken(with(&fake, Made::new()), "cgroup");
    assert!(
        few.saw
            .contains("hca_object of rxe0 is limited to 20, of which 10 are used"),
        "{few:?}"
    );
    let command = few.fixes[0].command.as_deref().unwrap();
    assert_eq!(command, format!("echo 'rxe0 hca_object=max' > {folder}/rdma.max"));
    fake.file(
        &format!("{folder}/rdma.max"),
        "rxe0 hca_handle=max hca_object=max\n",
    );
    assert_eq!(step(&with(&fake, Made::new()), "cgroup").is, Is::Ok);
    // A group above limits what is below it.
    let above = "/sys/fs/cgroup/user.slice";
    fake.file(&format!("{above}/rdma.max"), "rxe0 hca_handle=0 hca_object=max\n");
    let above_all = broken(with(&fake, Made::new()), "cgroup");
    assert_eq!(
        above_all.cause.as_deref(),
        Some("/sys/fs/cgroup/user.slice/rdma.max limits it")
    );
    // A hierarchy of its own, as version 1 has it.
    fake.file("/proc/self/cgroup", "7:rdma,misc:/jobs/one\n0::/user.slice\n")
        .file(
            "/sys/fs/cgroup/rdma/jobs/rdma.max",
            "rxe0 hca_handle=1 hca_object=3\n",
        );
    let first = broken(with(&fake, Made::new()), "cgroup");
    assert_eq!(
        first.cause.as_deref(),
        Some("/sys/fs/cgroup/rdma/jobs/rdma.max limits it")
    );
}

#[test]
fn what_the_device_and_the_port_refuse_is_shown_with_the_remedy() {
    let fake = machine();
    let made = Made {
        device: Err(bad("it is an iWARP device", "use udp over its interface")),
        ..Made::new()
    };
    assert!(broken(with(&fake, made), "open").saw.contains("iWARP"));
    fake.file("/sys/class/infiniband/rxe0/ports/2/rate", "x");
    let second = walked(&fake, Ok(Made::new()), "verbs:rxe0:2:ud");
    assert!(
        broken(second, "port")
            .saw
            .contains("rxe0 has no port 2: it has 1")
    );
    let made = Made {
        port: Err(bad(
            "its table has no GID of index 7",
            "set verbs.gid_index to auto",
        )),
        ..Made::new()
    };
    assert!(broken(with(&fake, made), "port").saw.contains("index 7"));
    let down = Made::port(|port| {
        port.down = Some(bad(
            "the port is down, as eth0 is down",
            "set it up: `ip link set eth0 up`",
        ));
    });
    assert_eq!(
        broken(with(&fake, down), "port").fixes[0].command.as_deref(),
        Some("ip link set eth0 up")
    );
    let armed = Made::port(|port| {
        port.link = LinkLayer::InfiniBand;
        port.down = Some(bad(
            "the port is in state ARMED",
            "look at the subnet manager's log",
        ));
    });
    assert!(
        broken(with(&fake, armed), "port")
            .cause
            .unwrap()
            .contains("subnet manager")
    );
}

#[test]
fn partitions_gids_and_lengths_are_judged_each_by_itself() {
    let fake = machine();
    let none = Made::port(|port| port.no_partition = Some(bad("its table of partitions is empty", "ask")));
    broken(with(&fake, none), "partition");
    let limited = Made::port(|port| port.partition = Some((1, 0x7fff)));
    let limited = step(&with(&fake, limited), "partition");
    assert!(
        limited.is == Is::Note && limited.saw.contains("limited member"),
        "{limited:?}"
    );
    let down = Made::port(|port| {
        let mut other = entry([10, 0, 0, 1], 1);
        other.is_up = false;
        port.gids = rank(vec![other]);
        port.no_gid = Some(bad(
            "no GID can be used",
            "give eth0 an address: `ip address add 192.0.2.1/24 dev eth0`",
        ));
    });
    let gid = broken(with(&fake, down), "gid");
    assert_eq!(
        gid.saw,
        "not 1 ::ffff:10.0.0.1 (RoCE v2): it belongs to an interface that is down"
    );
    assert_eq!(
        gid.fixes[0].command.as_deref(),
        Some("ip address add 192.0.2.1/24 dev eth0")
    );
    let short = step(&with(&fake, Made::new()), "mtu");
    assert!(
        short.is == Is::Note && short.saw.contains("up to 1024 bytes, as eth0 has an MTU of 1500"),
        "{short:?}"
    );
    assert_eq!(
        short.fixes[0].command.as_deref(),
        Some("ip link set eth0 mtu 4200")
    );
    let full = Made::port(|port| port.mtu = Some(4096));
    assert_eq!(step(&with(&fake, full), "mtu").is, Is::Ok);
    let nonsense = Made::port(|port| port.no_mtu = Some(bad("it reports the MTU number 9", "update it")));
    broken(with(&fake, nonsense), "mtu");
}

#[test]
fn locked_memory_and_fork_are_judged_by_the_machine() {
    let fake = machine();
    fake.file(
        "/proc/self/status",
        "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-1\n",
    )
    .limits("65536", "65536");
    let locked = broken(with(&fake, Made::new()), "memlock");
    assert!(locked.saw.contains("2.0 MiB needed"), "{locked:?}");
    let connections = broken(walked(&fake, Ok(Made::new()), "verbs:rxe0:1"), "memlock");
    assert!(connections.saw.contains("6.0 MiB needed"), "{connections:?}");
    let fake = machine();
    assert_eq!(step(&with(&fake, Made::new()), "fork").is, Is::Ok);
    fake.file("/proc/sys/kernel/osrelease", "5.10.0-30-amd64");
    let old = step(&with(&fake, Made::new()), "fork");
    assert!(
        old.is == Is::Note
            && old.saw.contains("`ibv_fork_init`")
            && old.fixes[0].what.contains("RDMAV_FORK_SAFE=1"),
        "{old:?}"
    );
    // The library's own word comes before the kernel's version.
    let made = Made {
        copies_at_fork: true,
        ..Made::new()
    };
    let copied = step(&with(&fake, made), "fork");
    assert!(
        copied.is == Is::Ok && copied.saw.contains("the library reports"),
        "{copied:?}"
    );
}

/// Walks steps that need no queues of their own.
fn tried(fake: &Fake, steps: impl FnOnce(&mut Walk, &At<'_>)) -> Step {
    let (system, name): (_, RailName) = (fake.system(), "verbs:rxe0:1:ud".parse().unwrap());
    let chain = Walk::along("x", |walk| {
        let at = At {
            system: &system,
            tree: tree(&system),
            name: &name,
            device: "rxe0",
            port: 1,
            service: Service::Datagrams,
        };
        steps(walk, &at);
        Ok(())
    });
    chain.steps.into_iter().next_back().unwrap()
}

#[test]
fn a_second_rail_that_does_not_open_leaves_connections_unknown() {
    let of = |failed: fn(RailError) -> Failed| {
        let refused = RailError::Unusable {
            rail: "verbs:rxe0:1".to_owned(),
            reason: "ibv_reg_mr of rxe0 failed".to_owned(),
            remedy: "raise the limit".to_owned(),
        };
        tried(&machine(), |walk, _| {
            drop(connections::judged(walk, Err(failed(refused))))
        })
    };
    let second = of(Failed::Second);
    assert!(
        second.is == Is::Unknown && second.saw.contains("ibv_reg_mr"),
        "{second:?}"
    );
    assert_eq!(of(Failed::Refused).is, Is::Broken);
}

#[test]
fn counters_of_loss_that_have_risen_are_a_note() {
    let fake = machine();
    assert_eq!(tried(&fake, flow::loss).is, Is::NotApplicable);
    let folder = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
    fake.file(&format!("{folder}/out_of_sequence"), "0\n")
        .file(&format!("{folder}/rcvd_pkts"), "1000\n");
    assert_eq!(tried(&fake, flow::loss).is, Is::Ok);
    fake.file(&format!("{folder}/out_of_sequence"), "3\n");
    let risen = tried(&fake, flow::loss);
    assert!(
        risen.is == Is::Note && risen.saw.contains("out_of_sequence 3"),
        "{risen:?}"
    );
}

#[test]
fn counters_of_soft_roce_speak_of_loss_too() {
    let fake = machine();
    let folder = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
    for (name, count) in [
        ("completer_retry_err", "7\n"),
        ("rcvd_seq_err", "2\n"),
        ("sent_pkts", "9\n"),
    ] {
        fake.file(&format!("{folder}/{name}"), count);
    }
    let risen = tried(&fake, flow::loss);
    assert!(
        risen.saw.ends_with("rcvd_seq_err 2, completer_retry_err 7"),
        "{risen:?}"
    );
}

/// The step of flow control for a card whose driver reports this.
fn flow_of(reports: Result<Option<FlowControl>, String>, config: &VerbsConfig) -> Step {
    let made = Made::new();
    let mut facts = Facts {
        device: made.device.unwrap(),
        port: made.port.unwrap(),
        flow: reports,
    };
    facts.device.provider = Some("libmlx5-rdmav34.so".into());
    tried(&machine(), |walk, _| flow::flow_control(walk, &facts, config))
}

#[test]
fn flow_control_is_a_matter_of_the_link() {
    let of = |change: &dyn Fn(&mut Facts)| {
        let made = Made::new();
        let mut facts = Facts {
            device: made.device.unwrap(),
            port: made.port.unwrap(),
            flow: Ok(None),
        };
        change(&mut facts);
        tried(&machine(), |walk, _| {
            flow::flow_control(walk, &facts, &VerbsConfig::default())
        })
    };
    assert_eq!(of(&|_| ()).is, Is::NotApplicable);
    assert_eq!(of(&|facts| facts.port.link = LinkLayer::InfiniBand).is, Is::Ok);
    let silent = flow_of(Ok(None), &VerbsConfig::default());
    assert!(
        silent.is == Is::Unknown
            && silent.saw.contains("the driver of eth0 does not answer")
            && silent.fixes[0].what.contains("dcb pfc show dev eth0"),
        "{silent:?}"
    );
    let refused = flow_of(
        Err("Permission denied (os error 13)".to_owned()),
        &VerbsConfig::default(),
    );
    assert!(
        refused.is == Is::Unknown && refused.saw.contains("Permission denied"),
        "{refused:?}"
    );
}

#[test]
fn pauses_are_judged_by_the_priority_of_the_rails_packets_and_never_fail() {
    let reports = FlowControl {
        paused: 1 << 3,
        sent: Some(4),
        received: Some(9),
        by_dscp: vec![(26, 3), (48, 6)],
        trusts_dscp: Some(true),
    };
    let default = VerbsConfig::default();
    let apart = flow_of(Ok(Some(reports.clone())), &default);
    assert_eq!(apart.is, Is::Note);
    assert_eq!(
        apart.saw,
        "eth0 pauses priority 3 (PFC); the rail's packets have priority 0 by their DSCP 0 (verbs.traffic_class 0); 4 \
         pauses sent, 9 received"
    );
    assert_eq!(
        apart.fixes[0].command.as_deref(),
        Some("export DOORBELL_VERBS_TRAFFIC_CLASS=104")
    );
    let marked = VerbsConfig {
        traffic_class: 104,
        ..default.clone()
    };
    let paused = flow_of(Ok(Some(reports.clone())), &marked);
    assert!(
        paused.is == Is::Ok && paused.saw.contains("have priority 3 by their DSCP 26"),
        "{paused:?}"
    );
    // Without trust in DSCP the service level decides.
    let untrusting = FlowControl {
        trusts_dscp: Some(false),
        ..reports
    };
    let level = VerbsConfig {
        service_level: 3,
        ..default.clone()
    };
    assert_eq!(flow_of(Ok(Some(untrusting.clone())), &level).is, Is::Ok);
    let note = flow_of(Ok(Some(untrusting)), &default);
    assert!(
        note.is == Is::Note && note.fixes.iter().all(|fix| fix.command.is_none()),
        "{note:?}"
    );
    let none = flow_of(Ok(Some(FlowControl::default())), &default);
    assert!(
        none.is == Is::Note && none.saw.starts_with("eth0 pauses no priority"),
        "{none:?}"
    );
}

#[test]
fn privileged_keys_are_a_note() {
    let fake = machine();
    assert_eq!(tried(&fake, flow::privileged_keys).is, Is::Ok);
    fake.file("/proc/self/uid_map", "0 1000 1");
    let inside = tried(&fake, flow::privileged_keys);
    assert!(
        inside.is == Is::Note && inside.saw.contains("user namespace"),
        "{inside:?}"
    );
    fake.file("/proc/self/status", "CapEff:\t0000000000000000\n");
    let without = tried(&fake, flow::privileged_keys);
    assert!(
        without.is == Is::Note && without.saw.contains("no CAP_NET_RAW"),
        "{without:?}"
    );
    fake.file("/proc/self/status", "Name:\tdoorbell\n");
    assert_eq!(tried(&fake, flow::privileged_keys).is, Is::Unknown);
}

#[test]
fn windows_are_notes_where_they_are_worth_less() {
    let of = |examined: Result<Option<WindowFacts>, RailError>| {
        tried(&machine(), |walk, _| windows::judged(walk, examined))
    };
    let whole = WindowFacts {
        checks_range: true,
        refuses_others: true,
        refuses_ended: true,
    };
    let good = of(Ok(Some(whole)));
    assert!(
        good.is == Is::Ok && good.saw.contains("the range of a window is checked"),
        "{good:?}"
    );
    let soft = of(Ok(Some(WindowFacts {
        checks_range: false,
        ..whole
    })));
    assert!(
        soft.is == Is::Note
            && soft.fixes.len() == 1
            && soft.fixes[0].what.contains("exactly the exposed bytes"),
        "{soft:?}"
    );
    let worthless = of(Ok(Some(WindowFacts {
        checks_range: false,
        refuses_others: false,
        refuses_ended: false,
    })));
    assert_eq!((worthless.is, worthless.fixes.len()), (Is::Note, 3));
    let none = of(Ok(None));
    assert!(
        none.is == Is::Note && none.saw.contains("protection domain"),
        "{none:?}"
    );
    let refused = of(Err(RailError::Unusable {
        rail: "verbs:rxe0:1".to_owned(),
        reason: "ibv_create_qp of rxe0 failed".to_owned(),
        remedy: "look at dmesg".to_owned(),
    }));
    assert!(
        refused.is == Is::Unknown && refused.saw.contains("ibv_create_qp"),
        "{refused:?}"
    );
}

#[test]
fn a_rule_that_drops_soft_roces_port_is_named() {
    let judged = |fate: Fate| tried(&machine(), |walk, _| drop(live::judged(walk, fate)));
    let dropped = judged(Fate::Drops {
        rule: "rule 4 of chain inet filter input".to_owned(),
        way: Way::In,
        fix: "nft insert rule inet filter input udp dport 4791 accept".to_owned(),
    });
    assert!(dropped.is == Is::Broken && dropped.cause.unwrap().contains("4791"));
    assert_eq!(judged(Fate::Passes("no rule".to_owned())).is, Is::Ok);
}

#[test]
fn names_are_ports_or_all_ports_of_a_device_or_refused_with_the_nearest() {
    let fake = machine();
    fake.file("/sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_0")
        .file("/sys/class/infiniband/mlx5_0/ports/1/rate", "")
        .file("/sys/class/infiniband/mlx5_0/ports/2/rate", "");
    let system = fake.system();
    let named = |text: &str| {
        let names = super::named(&system, text.parse().unwrap());
        let names = names.map_err(|error| error.to_string())?;
        Ok::<_, String>(names.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(
        named("verbs:mlx5_0").unwrap(),
        ["verbs:mlx5_0:1", "verbs:mlx5_0:2"]
    );
    assert_eq!(named("verbs:rxe0:1:ud").unwrap(), ["verbs:rxe0:1:ud"]);
    // What is not there is looked at step by step.
    assert_eq!(named("verbs:nosuch").unwrap(), ["verbs:nosuch:1"]);
    assert_eq!(named("verbs:rxe0:2").unwrap(), ["verbs:rxe0:2"]);
    for (text, word) in [
        ("verbs", "names no device"),
        ("verbs:", "names no device"),
        ("verbs:rxe0:0", "counted from 1"),
        ("verbs:rxe0:1:rc2", "is not `ud`"),
    ] {
        let said = named(text).unwrap_err();
        assert!(
            said.contains(word) && said.contains("verbs:rxe0:1"),
            "{text}: {said}"
        );
    }
    let all: Vec<String> = super::all(&system).iter().map(ToString::to_string).collect();
    assert_eq!(all, ["verbs:mlx5_0:1", "verbs:mlx5_0:2", "verbs:rxe0:1"]);
    let on: Vec<String> = super::on(&system, "eth0")
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(on, ["verbs:rxe0:1"]);
}
