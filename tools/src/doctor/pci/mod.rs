//! The chain of a PCI function that a rail drives from user space: from the slot to the rings.
//!
//! ```text
//!   device ─ virtual function? ─ its physical one up? ─ VFIO, step by step ─ memory near? ─ the rail's steps
//!                                                       (drivers/vfio)
//! ```

mod igbvf;
mod known;
mod live;
mod usnic;

use doorbell_vfio::{Bdf, Error, Host, PciDevice, Role, Verdict};

use super::chain::{Chain, Ended, Fix, Link, Walk};
use super::memlock;
use super::system::{System, list, listed};
pub(super) use igbvf::IgbvfSteps;
pub(super) use live::Live;
pub(super) use usnic::{UsnicSteps, model};

/// The folder of PCI functions.
const DEVICES: &str = "/sys/bus/pci/devices";
/// Memory to be locked before the device may reach it, for a driver that does not report how much the rings
/// and frames of its rail take.
const LOCKED: u64 = 16 << 20;

/// The functions of this machine that a rail could drive: virtual ones, and physical ones that have none yet.
pub(super) fn all(system: &System) -> Vec<Bdf> {
    let found = host(system).devices().unwrap_or_default();
    let is_ours = |one: &PciDevice| known::find(one.vendor, one.device).is_some();
    let has_virtual =
        |one: &PciDevice| matches!(&one.role, Role::Physical { virtuals, .. } if !virtuals.is_empty());
    found
        .iter()
        .filter(|one| is_ours(one) && !has_virtual(one))
        .map(|one| one.bdf)
        .collect()
}

fn host(system: &System) -> Host {
    Host::at(system.path("/"))
}

/// Returns what a rail over this function is called.
fn rail(system: &System, bdf: Bdf) -> String {
    let known = host(system)
        .device(bdf)
        .ok()
        .and_then(|one| known::find(one.vendor, one.device));
    known.map_or_else(|| format!("pci:{bdf}"), |known| format!("{}:{bdf}", known.rail))
}

/// The chain of the function `bdf`; `kind`: the kind of rail that was named, if one was; `named`: whether
/// anything was.
pub(super) fn chain(
    system: &System,
    bdf: Bdf,
    (kind, named): (Option<&str>, bool),
    live: &[&dyn Live],
) -> Chain {
    let name = kind.map_or_else(|| rail(system, bdf), |kind| format!("{kind}:{bdf}"));
    Walk::along(&name, |walk| {
        let (device, known) = found(walk, system, bdf, kind)?;
        match &device.role {
            Role::Physical { most, virtuals } => {
                return physical(walk, &device, known, (*most, virtuals), named);
            }
            Role::Plain if !known.is_virtual => return physical(walk, &device, known, (0, &[]), named),
            _ => {}
        }
        if known.rail == "usnic" {
            // Its physical function may be the kernel's, or an agent's.
            usnic::parent(walk, &device);
        } else {
            parent(walk, system, &device)?;
        }
        let driver = live.iter().find(|one| one.kind() == known.rail);
        vfio(walk, system, bdf, driver.map_or(LOCKED, |driver| driver.memory()))?;
        near(walk, system, &device);
        match driver {
            Some(driver) => driver.steps(walk, bdf),
            None => {
                walk.unknown(
                    "rail",
                    format!(
                        "this build has no driver {}: link, frames, DMA and interrupts were not tried",
                        known.rail
                    ),
                    Vec::new(),
                );
                Ok(())
            }
        }
    })
}

fn found(
    walk: &mut Walk,
    system: &System,
    bdf: Bdf,
    kind: Option<&str>,
) -> Result<(PciDevice, &'static known::Known), Ended> {
    let Ok(device) = host(system).device(bdf) else {
        let others: Vec<String> = all(system).iter().map(Bdf::to_string).collect();
        let there = match others.is_empty() {
            true => "none of this machine's functions is one that a rail drives".to_owned(),
            false => format!("rails could drive {}", others.join(", ")),
        };
        return Err(walk.broken(
            "device",
            format!("there is no PCI function {bdf}"),
            format!("the address is another one, or its virtual functions have not been made; {there}"),
            vec![Fix::hand("`lspci -Dnn` lists addresses and numbers")],
        ));
    };
    let numbers = format!("{:04x}:{:04x}", device.vendor, device.device);
    let Some(known) = known::find(device.vendor, device.device) else {
        return Err(walk.broken(
            "device",
            format!("{bdf} is {numbers}, which no rail of ours drives"),
            "it is another device than the drivers are made for",
            vec![Fix::hand(
                "use its interface by `udp:` or `xdp:`; `doorbell doctor` lists what can be used here",
            )],
        ));
    };
    if let Some(kind) = kind.filter(|kind| *kind != known.rail) {
        return Err(walk.broken(
            "device",
            format!("{bdf} is {numbers}, {}", known.name),
            format!("{kind} does not drive it, {} does", known.rail),
            vec![Fix::hand(format!("name it `{}:{bdf}`", known.rail))],
        ));
    }
    walk.ok("device", format!("{bdf} is {numbers}, {}", known.name));
    Ok((device, known))
}

/// A physical function is the kernel's; rails drive its virtual ones.
fn physical(
    walk: &mut Walk,
    device: &PciDevice,
    known: &known::Known,
    (most, virtuals): (u32, &[Bdf]),
    named: bool,
) -> Link {
    let bdf = device.bdf;
    if !virtuals.is_empty() {
        let names: Vec<String> = virtuals.iter().map(Bdf::to_string).collect();
        return Err(walk.end_without(
            "virtual",
            format!(
                "a physical function, which stays the kernel's; its virtual ones are {}",
                names.join(", ")
            ),
        ));
    }
    let fix = match (known.rail, device.interfaces.is_empty(), most) {
        ("usnic", ..) => Fix::hand(
            "virtual functions of a VIC are made in the server's management (CIMC, UCS Manager): a usNIC policy for this vNIC, \
             and a restart",
        ),
        (_, true, _) => bind(bdf, known.kernel),
        (_, _, 0) => Fix::hand("turn SR-IOV on in the firmware of the machine and of the adapter"),
        _ => Fix::run(
            format!("echo {} > {DEVICES}/{bdf}/sriov_numvfs", most.min(2)),
            format!("make two virtual functions; there can be {most}"),
        ),
    };
    if !named {
        // On a host that needs no such rail this is no fault.
        walk.note(
            "virtual",
            "a physical function without virtual ones, which rails could drive",
            vec![fix],
        );
        return Err(walk.end_without("rail", "there is no virtual function"));
    }
    Err(walk.broken(
        "virtual",
        "it is a physical function without virtual ones, and rails drive virtual ones",
        match device.interfaces.is_empty() {
            true => "the kernel's own driver, which makes them, does not have it",
            false => "none has been made since the start",
        },
        vec![fix],
    ))
}

/// The physical function that a virtual one lives on, where it is this machine's.
fn parent(walk: &mut Walk, system: &System, device: &PciDevice) -> Link {
    let Role::Virtual {
        physical,
        driver,
        interfaces,
        ..
    } = &device.role
    else {
        walk.not_applicable(
            "parent",
            "its physical function is not this machine's: a function that was handed to this guest, or one without any",
        );
        return Ok(());
    };
    let Some(interface) = interfaces.first() else {
        let numbers = host(system).device(*physical).ok();
        let kernel = numbers
            .and_then(|one| known::find(one.vendor, one.device))
            .map_or("igb", |known| known.kernel);
        return Err(walk.broken(
            "parent",
            format!(
                "its physical function {physical} has no interface (driver: {})",
                driver.as_deref().unwrap_or("none")
            ),
            "a virtual function requests its address and its link state from its physical one, which does not answer",
            vec![bind(*physical, kernel)],
        ));
    };
    let name = &interface.name;
    let state = |what: &str| system.text(&format!("{DEVICES}/{physical}/net/{name}/{what}"));
    let flags = state("flags").and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    if flags.is_some_and(|flags| flags & 1 == 0) {
        return Err(walk.broken(
            "parent",
            format!("its physical function {physical} ({name}) is down"),
            "a virtual function has a link only while its physical one is up",
            vec![Fix::run(
                format!("ip link set {name} up"),
                "set the physical function up",
            )],
        ));
    }
    if state("carrier").as_deref() == Some("0") || interface.is_up == Some(false) {
        return Err(walk.broken(
            "parent",
            format!("its physical function {physical} ({name}) has no link"),
            "the cable is out, or the other end is off",
            vec![Fix::hand(format!(
                "look at the cable and the port of the switch: `ethtool {name}`"
            ))],
        ));
    }
    let speed = interface
        .speed
        .map_or_else(String::new, |speed| format!(", {speed} Mbit/s"));
    walk.ok(
        "parent",
        format!("its physical function {physical} ({name}) is up{speed}"),
    );
    Ok(())
}

/// The steps to an open device, as its driver walks them.
fn vfio(walk: &mut Walk, system: &System, bdf: Bdf, memory: u64) -> Link {
    // The earlier steps have already reported the device itself.
    for step in doorbell_vfio::chain(&host(system), bdf, memory).skip(1) {
        if step.name == "memlock" {
            // As the driver sees it, and who set it.
            memlock::step(walk, system, memory)?;
        }
        match &step.verdict {
            Verdict::Passed(_) if step.name == "memlock" => {}
            Verdict::Passed(found) => walk.ok(step.name, format!("{}: {found}", step.about)),
            Verdict::Unknown(why) => walk.unknown(step.name, format!("{}: {why}", step.about), Vec::new()),
            Verdict::Failed(Error::NoIommu { group, .. }) => return Err(no_iommu(walk, system, bdf, *group)),
            Verdict::Failed(error) => {
                return Err(walk.broken(step.name, error.reason(), cause(error), vec![fix(error)]));
            }
        }
    }
    Ok(())
}

fn cause(error: &Error) -> &'static str {
    match error {
        Error::NotBound { driver: Some(_), .. } => "the kernel's own driver took it when it appeared",
        Error::NotBound { .. } => "it has not been bound to a driver",
        Error::NotViable { .. } => {
            "what one device of a group can reach, all can: the kernel hands over all of them, or none"
        }
        Error::NoFile { .. } => "the module is not loaded whole, or the container does not show its devices",
        Error::Forbidden { .. } => "device files of VFIO belong to root until their owner is changed",
        Error::Busy { .. } => "a group is one process's at a time",
        Error::WrongVersion | Error::NoType1 => "the kernel's part of VFIO is missing, or another one",
        Error::NotAttached { .. } => {
            "the kernel refuses the device, for what it reports or for its interrupts' isolation"
        }
        Error::Unreadable { .. } => "the device is off, in reset, or gone from its slot",
        Error::Memlock { .. } => "the kernel locks what a device may reach, and the limit is too small",
        _ => "the system refused it",
    }
}

/// Returns the fix; it is a command only if that changes no more than the device concerned.
fn fix(error: &Error) -> Fix {
    match error {
        Error::NotBound { .. }
        | Error::NotViable { parent: None, .. }
        | Error::NoFile { .. }
        | Error::Forbidden { .. } => Fix::quoted(&error.fix()),
        error => Fix::hand(error.fix()),
    }
}

/// Reports that no IOMMU restricts devices to the memory that they were given: the firmware shows none, or
/// the kernel was started without it. `group`: that of VFIO without an IOMMU, where the function is in one.
fn no_iommu(walk: &mut Walk, system: &System, bdf: Bdf, group: Option<u32>) -> Ended {
    const TABLES: &str = "/sys/firmware/acpi/tables";
    let line = system.text("/proc/cmdline").unwrap_or_default();
    let has = |word: &str| line.split_whitespace().any(|part| part == word);
    let shows = |table: &str| system.has(&format!("{TABLES}/{table}"));
    let is_amd = system.field("/proc/cpuinfo", "vendor_id").as_deref() == Some("AuthenticAMD");
    // The tables of the two makers (ACPI: DMAR, IVRS). Where no table is shown at all, the processor's maker
    // has to do.
    let is_shown = match system.has(TABLES) {
        true => shows("DMAR") || shows("IVRS"),
        false => true,
    };
    let is_amd = shows("IVRS") || is_amd && !shows("DMAR");
    let (word, denied, firmware) = match is_amd {
        true => ("amd_iommu=on", "amd_iommu=off", "AMD-Vi (IOMMU)"),
        false => ("intel_iommu=on", "intel_iommu=off", "VT-d"),
    };
    let denied = [denied, "iommu=off"].into_iter().find(|word| has(word));
    // Linux turns AMD's on by itself.
    let is_asked = denied.is_none() && (is_amd || has(word));
    let turn_on = Fix::hand(format!(
        "turn {firmware} on in the firmware's set-up, and restart; a virtual machine has to give its guest an IOMMU"
    ));
    let edit = match denied {
        Some(off) => format!("s/\\b{off}\\b/{word}/"),
        None => format!("s/^GRUB_CMDLINE_LINUX=\"/&{word} iommu=pt /"),
    };
    let boot = Fix::run(
        format!("sed -i '{edit}' /etc/default/grub && update-grub"),
        "turn it on at the next start",
    );
    let (cause, fixes) = match (is_shown, is_asked) {
        (true, false) => (
            match denied {
                Some(off) => format!("the kernel's command line has {off}"),
                None => format!("the kernel's command line has no {word}"),
            },
            vec![
                boot,
                Fix::hand(format!(
                    "restart; {firmware} has to be on in the firmware's set-up too"
                )),
            ],
        ),
        (true, true) => (
            "the kernel would use one, and could not: the firmware shows it none, or a faulty one".to_owned(),
            vec![
                turn_on,
                Fix::hand("`dmesg | grep -iE 'dmar|iommu|amd-vi'` has the kernel's reason"),
            ],
        ),
        (false, _) => (
            "the firmware shows the kernel no IOMMU".to_owned(),
            vec![turn_on, boot],
        ),
    };
    let saw = match group {
        None => format!("{bdf} is in no isolation group: no IOMMU is on"),
        Some(group) => format!(
            "no IOMMU is on: {bdf} is in group {group} of VFIO without one (`/dev/vfio/noiommu-{group}`), \
             by which it reaches all memory, and no rail uses it"
        ),
    };
    walk.broken("iommu", saw, cause, fixes)
}

/// The commands that give a function to a driver: those of `driver_override`
/// (Documentation/ABI/testing/sysfs-bus-pci).
fn bind(bdf: Bdf, driver: &str) -> Fix {
    Fix::run(
        format!(
            "modprobe {driver}; echo {driver} > {DEVICES}/{bdf}/driver_override; \
             [ ! -e {DEVICES}/{bdf}/driver ] || echo {bdf} > {DEVICES}/{bdf}/driver/unbind; \
             echo {bdf} > /sys/bus/pci/drivers_probe"
        ),
        format!("give {bdf} to {driver}"),
    )
}

/// The cores of this process against the node that the device hangs on.
fn near(walk: &mut Walk, system: &System, device: &PciDevice) {
    let Some(node) = device.numa_node else {
        return walk.not_applicable(
            "numa",
            "the machine has one node of memory, or does not report the device's",
        );
    };
    let there = list(
        &system
            .text(&format!("/sys/devices/system/node/node{node}/cpulist"))
            .unwrap_or_default(),
    );
    let ours = system.cores();
    if there.is_empty() || ours.iter().any(|core| there.contains(core)) {
        return walk.ok(
            "numa",
            format!("it hangs on node {node}, whose cores this process may use"),
        );
    }
    let topology = system.topology();
    let first = topology.cores().first();
    let distance = first.and_then(|core| topology.distance(core.node, node as usize));
    let far = distance.map_or_else(String::new, |distance| {
        format!(", at a distance of {distance} (10 is its own)")
    });
    walk.note(
        "numa",
        format!(
            "it hangs on node {node} (cores {}), and this process runs on cores {}{far}",
            listed(&there),
            listed(&ours)
        ),
        vec![Fix::run(
            format!("taskset -cp {} $$", listed(&there)),
            "run on the device's own node: each frame crosses between the sockets otherwise",
        )],
    );
}

#[cfg(test)]
mod tests;
