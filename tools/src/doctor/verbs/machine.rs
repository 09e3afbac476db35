//! What a rail of a port needs of the machine: the library, the kernel's modules, the device, its provider,
//! and its device file.

use std::fs::OpenOptions;
use std::io::ErrorKind;

use doorbell_fabric::error::RailError;
use doorbell_verbs::inspect::Fault;
use doorbell_verbs::name_error;

use super::{At, Ended, Fix, Link, Stack, Walk, fault};
use crate::doctor::system::System;

/// Where the kernel lists devices that programs can drive; there once `ib_uverbs` is loaded.
const CLASS: &str = "/sys/class/infiniband_verbs";
/// Where providers are named.
const PROVIDERS: &str = "/etc/libibverbs.d";
/// Handles that a rail needs, and objects: queues, memory, and address handles of a few peers.
const NEEDED: [(&str, u64); 2] = [("hca_handle", 1), ("hca_object", 16)];

/// The library is there, and has what is needed.
pub(super) fn library<S: Stack>(
    walk: &mut Walk,
    load: impl FnOnce() -> Result<S, Fault>,
) -> Result<S, Ended> {
    let stack = match load() {
        Ok(stack) => stack,
        Err(error) => {
            return Err(walk.broken(
                "library",
                error.reason,
                "rdma-core's library is not installed, is too old, or its file is damaged",
                vec![Fix::run(
                    "apt-get install libibverbs1 ibverbs-providers",
                    "install it with its providers (Fedora, RHEL: libibverbs)",
                )],
            ));
        }
    };
    let found = stack.library();
    walk.ok(
        "library",
        format!("{}, version {}", found.file.display(), found.version),
    );
    if !found.said.is_empty() {
        walk.note(
            "library-prints",
            found.said,
            vec![Fix::hand(
                "the library wrote this to standard error while it was loaded",
            )],
        );
    }
    Ok(stack)
}

/// The steps from the kernel's modules to the device file.
pub(super) fn steps(walk: &mut Walk, at: &At<'_>, stack: &impl Stack) -> Link {
    module(walk, at.system)?;
    device(walk, at)?;
    provider(walk, at, stack)?;
    namespace(walk, at.system);
    device_file(walk, at)?;
    group(walk, at)
}

fn module(walk: &mut Walk, system: &System) -> Link {
    if system.has(CLASS) {
        walk.ok(
            "module",
            "the kernel has ib_uverbs, by which programs drive devices",
        );
        return Ok(());
    }
    let mut fixes = vec![Fix::run(
        "modprobe ib_uverbs",
        "load it, and the driver of the card",
    )];
    fixes.extend(soft(system));
    if let Some(runner) = system.container() {
        fixes = vec![Fix::hand(format!(
            "load it on the host of this container ({runner}): `modprobe ib_uverbs`"
        ))];
    }
    Err(walk.broken(
        "module",
        format!("the kernel has no ib_uverbs ({CLASS} is not there)"),
        "its module is not loaded, or the kernel was built without InfiniBand support",
        fixes,
    ))
}

/// How soft-RoCE gets a device, for a machine without a card.
fn soft(system: &System) -> [Fix; 1] {
    let version = release(system);
    // Until then rxe takes its checksum from a module that it does not load.
    let first = if version != (0, 0) && version <= (6, 12) {
        "modprobe crc32_generic; "
    } else {
        ""
    };
    [Fix::hand(format!(
        "without a card, soft-RoCE makes a device of an interface: `{first}modprobe rdma_rxe; rdma link add rxe0 type rxe \
         netdev eth0`"
    ))]
}

/// The kernel's version; zeros where it is not known.
pub(super) fn release(system: &System) -> (u32, u32) {
    let release = system.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn device(walk: &mut Walk, at: &At<'_>) -> Link {
    let devices = at.tree.devices();
    if devices.iter().any(|device| device == at.device) {
        let on = at.tree.interface(at.device, at.port);
        let on = on.map_or_else(String::new, |interface| format!(", on {interface}"));
        walk.ok("device", format!("the kernel has {}{on}", at.device));
        return Ok(());
    }
    if devices.is_empty() {
        let mut fixes = vec![Fix::hand(
            "load the driver of the card (mlx5_ib, irdma, bnxt_re, …); `lspci` shows whether it is there",
        )];
        fixes.extend(soft(at.system));
        return Err(walk.broken(
            "device",
            "the kernel has no RDMA device",
            elsewhere(at.system, "its driver is not loaded, or there is no card"),
            fixes,
        ));
    }
    let (reason, remedy) = match name_error(&at.tree, at.name) {
        Some(RailError::Unusable { reason, remedy, .. }) => (reason, remedy),
        _ => (
            format!("the kernel has no RDMA device {}", at.device),
            "`doorbell info` lists the devices".to_owned(),
        ),
    };
    let cause = elsewhere(
        at.system,
        "the device is named otherwise, or its driver is not loaded",
    );
    Err(walk.broken("device", reason, cause, vec![Fix::quoted(&remedy)]))
}

/// Whether devices belong to one network namespace each; `None` where the kernel does not report it.
fn is_exclusive(system: &System) -> Option<bool> {
    let mode = system.text("/sys/module/ib_core/parameters/netns_mode")?;
    Some(mode == "N" || mode == "0")
}

/// A cause, and that the device may be in another network namespace.
fn elsewhere(system: &System, cause: &str) -> String {
    match is_exclusive(system) {
        Some(true) => format!(
            "{cause}; or it is in another network namespace: the system is exclusive (`rdma system`), and \
             `rdma dev set DEVICE netns NAME` moves one"
        ),
        _ => cause.to_owned(),
    }
}

fn provider(walk: &mut Walk, at: &At<'_>, stack: &impl Stack) -> Link {
    let (listed, said) = match stack.devices() {
        Ok(listed) => listed,
        Err(error) => {
            return Err(fault(
                walk,
                "provider",
                &error,
                "the library lists no devices, which a container or a missing right may be the reason of",
            ));
        }
    };
    if listed.iter().any(|device| device == at.device) {
        walk.ok(
            "provider",
            format!("the library has a provider for {}", at.device),
        );
        return Ok(());
    }
    // mlx5_0 is driven by mlx5, rxe0 by rxe.
    let driver = at.device.split('_').next().unwrap_or(at.device);
    let driver = match driver == at.device {
        true => driver.trim_end_matches(|c: char| c.is_ascii_digit()),
        false => driver,
    };
    let file = format!("{PROVIDERS}/{driver}.driver");
    let said = match said.as_str() {
        "" => String::new(),
        said => format!("; the library prints: {said}"),
    };
    let cause = if at.system.has(&file) {
        format!("{file} names its provider, whose file cannot be loaded{said}")
    } else {
        format!("{PROVIDERS} has no file {driver}.driver, which would name its provider{said}")
    };
    Err(walk.broken(
        "provider",
        format!("the kernel has {}, and the library does not list it", at.device),
        cause,
        vec![
            Fix::run(
                "apt-get install --reinstall ibverbs-providers",
                "install the providers (Fedora, RHEL: libibverbs has them)",
            ),
            Fix::hand(format!(
                "a name that was changed by a rule of udev hides the driver: `rdma link show` has {}",
                at.device
            )),
        ],
    ))
}

/// Whether devices are shared among network namespaces, and whether this process is in one of its own.
fn namespace(walk: &mut Walk, system: &System) {
    let of = |process: &str| std::fs::read_link(system.path(&format!("/proc/{process}/ns/net"))).ok();
    let is_own = matches!((of("self"), of("1")), (Some(own), Some(first)) if own != first);
    match (is_exclusive(system), is_own) {
        (None, _) => walk.unknown(
            "namespace",
            "the kernel does not report whether devices are shared among network namespaces",
            vec![Fix::hand("`rdma system` shows it")],
        ),
        (Some(true), _) => walk.ok("namespace", "exclusive: a device is in one network namespace, and this one is in ours"),
        (Some(false), false) => walk.ok("namespace", "shared: devices are in every network namespace"),
        (Some(false), true) => walk.ok(
            "namespace",
            "shared, and this process is in a network namespace of its own: GIDs of interfaces elsewhere cannot be used",
        ),
    }
}

fn device_file(walk: &mut Walk, at: &At<'_>) -> Link {
    let number = at.tree.file_of(at.device).unwrap_or_default();
    let file = format!("/dev/infiniband/{number}");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open(at.system.path(&file));
    let error = match opened {
        Ok(_) => {
            walk.ok(
                "device-file",
                format!("{file} is there, and this user may open it"),
            );
            return Ok(());
        }
        Err(error) => error,
    };
    let (cause, fix) = match (error.kind(), at.system.container()) {
        (ErrorKind::NotFound, Some(runner)) => (
            format!("the container ({runner}) was started without it"),
            Fix::hand(format!("start the container with `--device={file} --ulimit memlock=-1`")),
        ),
        (ErrorKind::NotFound, None) => (
            "udev has not made it".to_owned(),
            Fix::run(
                "udevadm trigger --subsystem-match=infiniband_verbs",
                "have udev make it",
            ),
        ),
        (ErrorKind::PermissionDenied, _) => (
            "rdma-core's rules of udev are not installed, which give it to all users (mode 0666); the kernel alone gives it to \
             root, or a group of the container's devices forbids it"
                .to_owned(),
            Fix::run(format!("chmod 0666 {file}"), "as root, until the next start"),
        ),
        _ => (
            "the device is going, or its driver refuses".to_owned(),
            Fix::hand("look at the kernel's log: `dmesg`"),
        ),
    };
    Err(walk.broken(
        "device-file",
        format!("{file} cannot be opened: {error}"),
        cause,
        vec![fix],
    ))
}

/// The RDMA control groups: how many objects of the device this process may have, by its own group and by
/// each one above it.
fn group(walk: &mut Walk, at: &At<'_>) -> Link {
    let mut least = None;
    for folder in groups(at.system) {
        let Some(limits) = of_device(at, &format!("{folder}/rdma.max")) else {
            continue;
        };
        let used = of_device(at, &format!("{folder}/rdma.current")).unwrap_or_default();
        for (what, needed) in NEEDED {
            let Some(most) = value(&limits, what) else {
                continue;
            };
            let used = value(&used, what).unwrap_or(0);
            if most.saturating_sub(used) < needed {
                return Err(walk.broken(
                    "cgroup",
                    format!(
                        "{what} of {} is limited to {most}, of which {used} are used and {needed} are needed",
                        at.device
                    ),
                    format!("{folder}/rdma.max limits it"),
                    vec![Fix::run(
                        format!("echo '{} {what}=max' > {folder}/rdma.max", at.device),
                        "lift the limit, as root",
                    )],
                ));
            }
        }
        let is_limit = |limits: &String| NEEDED.iter().any(|(what, _)| value(limits, what).is_some());
        if least.as_ref().is_none_or(|least| !is_limit(least)) {
            least = Some(limits);
        }
    }
    match least {
        None => walk.ok("cgroup", "no RDMA control group limits it"),
        Some(limits) => walk.ok(
            "cgroup",
            format!("the RDMA control group leaves enough: {limits}"),
        ),
    }
    Ok(())
}

/// The folders of the control groups that limit this process, its own first: of the unified hierarchy, or of
/// the one for RDMA.
fn groups(system: &System) -> Vec<String> {
    let text = system.text("/proc/self/cgroup").unwrap_or_default();
    let of_rdma = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it = controllers.split(',').any(|controller| controller == "rdma");
        is_it.then(|| ("/sys/fs/cgroup/rdma", path.to_owned()))
    };
    let unified = || text.lines().find_map(|line| line.strip_prefix("0::"));
    let (root, own) = text
        .lines()
        .find_map(of_rdma)
        .or_else(|| Some(("/sys/fs/cgroup", unified()?.to_owned())))
        .unwrap_or(("/sys/fs/cgroup", String::new()));
    let own = own.trim_end_matches('/').to_owned();
    let above = std::iter::successors(Some(own.as_str()), |path| Some(path.rsplit_once('/')?.0));
    above.map(|path| format!("{root}{path}")).collect()
}

/// A device's line in a file of the control group, without its name.
fn of_device(at: &At<'_>, file: &str) -> Option<String> {
    let text = at.system.text(file)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(at.device)?.strip_prefix(' '));
    line.map(str::to_owned)
}

/// The number behind a name: `hca_handle=2`; `None` without a limit.
fn value(line: &str, name: &str) -> Option<u64> {
    let words = line.split_whitespace();
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next()?.parse().ok()
}
