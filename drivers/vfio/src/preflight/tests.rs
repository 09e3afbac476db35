use super::*;
use crate::fake::Tree;
use crate::memlock::Memlock;
use vfio_ioctls::VfioError;

const VF: &str = "0000:01:10.0";

/// A machine whose files pass every step.
fn good() -> Tree {
    let tree = Tree::new();
    tree.igb_with_two_virtual_functions();
    tree.driver(VF, "vfio-pci");
    tree.file("dev/vfio/7", "");
    tree.file("dev/vfio/vfio", "");
    tree
}

fn walk(tree: &Tree) -> Vec<Step> {
    chain(&tree.host(), VF.parse().unwrap(), 4096).collect()
}

/// The error of the step with which the chain ends, which has this name.
fn broken(tree: &Tree, name: &str) -> Error {
    let mut steps = walk(tree);
    let last = steps.pop().unwrap();
    assert_eq!(last.name, name, "{last:?}");
    assert!(steps.iter().all(|step| !step.is_failed()));
    match last.verdict {
        Verdict::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_from_files_are_walked_and_those_from_a_kernel_stay_open() {
    let steps = walk(&good());
    let names: Vec<_> = steps.iter().map(|step| step.name).collect();
    assert_eq!(names, STEPS.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
    let of = |verdict: &Verdict| match verdict {
        Verdict::Passed(_) => 'h',
        Verdict::Failed(_) => 'b',
        Verdict::Unknown(_) => 'o',
    };
    let verdicts: String = steps.iter().map(|step| of(&step.verdict)).collect();
    assert_eq!(verdicts, "hhhhhhooo".to_owned() + "ho", "{steps:?}");
    let Verdict::Passed(found) = &steps[0].verdict else {
        unreachable!()
    };
    assert_eq!(
        found,
        "8086:10ca, virtual function 0 of 0000:01:00.0 (eth0: up, 1000 Mbit/s)"
    );
    assert!(
        chain(&good().host(), VF.parse().unwrap(), 1).finish().is_err(),
        "nothing to open"
    );
}

#[test]
fn a_device_that_is_not_there() {
    let tree = Tree::new();
    let error = broken(&tree, "device");
    assert!(error.fix().contains("sriov_numvfs"), "{error}");
}

#[test]
fn no_iommu() {
    let tree = good();
    tree.remove(&format!("sys/bus/pci/devices/{VF}/iommu_group"));
    let error = broken(&tree, "iommu");
    assert!(error.fix().contains("intel_iommu=on"), "{error}");
}

/// A group does not imply an IOMMU: VFIO creates one in its no-IOMMU mode.
#[test]
fn a_group_without_an_iommu_is_none() {
    for by_name in [true, false] {
        let tree = good();
        tree.remove("dev/vfio/7");
        if by_name {
            tree.file("sys/kernel/iommu_groups/7/name", "vfio-noiommu");
        } else {
            tree.file("dev/vfio/noiommu-7", "");
        }
        let error = broken(&tree, "iommu");
        assert!(
            error.code() == "no-iommu" && error.reason().contains("enable_unsafe_noiommu_mode"),
            "{error}"
        );
        assert!(!error.fix().contains("modprobe"), "{error}");
        assert!(
            tree.host()
                .device(VF.parse().unwrap())
                .unwrap()
                .unguarded()
                .is_some()
        );
    }
}

#[test]
fn a_group_of_type_identity_is_translated_for_programs() {
    let tree = good();
    for (kind, word) in [("identity", "of type identity"), ("DMA-FQ", "group 7")] {
        tree.file("sys/kernel/iommu_groups/7/type", kind);
        let steps = walk(&tree);
        let Verdict::Passed(found) = &steps[1].verdict else {
            panic!("{steps:?}")
        };
        assert!(found.contains(word), "{found}");
        assert_eq!(found.contains("identity"), kind == "identity", "{found}");
        assert!(
            tree.host()
                .device(VF.parse().unwrap())
                .unwrap()
                .unguarded()
                .is_none()
        );
    }
}

#[test]
fn a_device_with_a_kernel_driver_or_none() {
    let tree = good();
    tree.driver(VF, "igbvf");
    let error = broken(&tree, "driver");
    assert!(error.reason().contains("driver `igbvf`"), "{error}");
    let folder = format!("/sys/bus/pci/devices/{VF}");
    let in_order = [
        "modprobe vfio-pci; ",
        &format!("echo vfio-pci > {folder}/driver_override; "),
        &format!("echo {VF} > {folder}/driver/unbind; "),
        &format!("echo {VF} > /sys/bus/pci/drivers_probe"),
    ];
    assert_eq!(error.fix(), format!("`{}`", in_order.concat()));
    tree.remove(&format!("sys/bus/pci/devices/{VF}/driver"));
    let error = broken(&tree, "driver");
    assert!(
        error.reason().contains("no driver") && !error.fix().contains("unbind"),
        "{error}"
    );
    tree.driver(VF, "igb");
    tree.file(&format!("sys/bus/pci/devices/{VF}/net/eth9/operstate"), "up");
    assert!(
        broken(&tree, "driver")
            .fix()
            .contains("takes interface `eth9` away")
    );
}

#[test]
fn the_physical_function_in_the_group_stays_with_the_kernel() {
    let tree = good();
    tree.remove("sys/bus/pci/devices/0000:01:00.0/iommu_group");
    tree.group(7, "0000:01:00.0");
    let error = broken(&tree, "group");
    assert!(error.reason().contains("0000:01:00.0 (driver `igb`)"), "{error}");
    let fix = error.fix();
    assert!(
        fix.contains("Access Control Services") && !fix.contains("driver_override"),
        "{fix}"
    );
}

#[test]
fn another_device_in_the_group() {
    let tree = good();
    let other = "0000:02:00.0";
    tree.device(other, (0x8086, 0x1533, 0x020000));
    tree.group(7, other);
    tree.group(7, "0000:00:1c.0");
    let steps = walk(&tree);
    assert!(
        matches!(&steps[3].verdict, Verdict::Passed(found) if found.contains("with 2 others")),
        "{steps:?}"
    );
    tree.driver(other, "igb");
    let error = broken(&tree, "group");
    assert!(error.reason().contains("0000:02:00.0 (driver `igb`)"), "{error}");
    assert!(
        !error.reason().contains("00:1c.0"),
        "a port is no obstacle: {error}"
    );
    assert!(
        error.fix().contains(&format!("devices/{other}/driver/unbind")),
        "{error}"
    );
}

#[test]
fn missing_and_forbidden_files() {
    let tree = good();
    tree.remove("dev/vfio/vfio");
    assert!(broken(&tree, "container").fix().contains("modprobe vfio"));
    tree.remove("dev/vfio/7");
    let error = broken(&tree, "device-file");
    assert!(
        error.reason().contains("dev/vfio/7") && error.fix().contains("modprobe vfio-pci"),
        "{error}"
    );
    // Root may open all files, so the error is built by hand.
    let error = Error::Forbidden {
        path: "/dev/vfio/7".into(),
        owner: 0,
        group: 0,
        mode: 0o600,
        user: 1000,
    };
    assert!(
        error.reason().contains("user 0's") && error.reason().contains("mode 600"),
        "{error}"
    );
    assert!(error.fix().contains("chown 1000 /dev/vfio/7"), "{error}");
}

#[test]
fn a_device_with_a_file_of_its_own_is_opened_by_it_where_there_is_no_group() {
    let tree = good();
    tree.file(&format!("sys/bus/pci/devices/{VF}/vfio-dev/vfio3/dev"), "511:3");
    tree.file("dev/vfio/devices/vfio3", "");
    tree.file("dev/iommu", "");
    let files = |chain: Chain| -> Vec<String> {
        let holds = |step: Step| match step.verdict {
            Verdict::Passed(found) if found.contains("/dev/") => Some(found),
            _ => None,
        };
        chain.filter_map(holds).collect()
    };
    let of = |tree: &Tree| chain(&tree.host(), VF.parse().unwrap(), 1);
    assert!(
        files(of(&tree))[0].contains("/dev/vfio/7"),
        "the group comes first"
    );
    assert!(files(of(&tree).by(Backend::Cdev))[0].contains("/dev/vfio/devices/vfio3"));
    tree.remove("dev/vfio/7");
    let found = files(of(&tree));
    assert!(
        found[0].contains("devices/vfio3") && found[1].contains("/dev/iommu"),
        "{found:?}"
    );
    tree.remove("dev/iommu");
    assert!(broken(&tree, "container").fix().contains("iommufd"));
}

#[test]
fn memory_that_cannot_be_locked_ends_the_chain() {
    // No process may lock as much where it has a limit at all.
    let tree = good();
    let steps: Vec<_> = chain(&tree.host(), VF.parse().unwrap(), u64::MAX).collect();
    let last = steps.last().unwrap();
    match Memlock::now().limit {
        Some(_) => assert!(last.name == "memlock" && last.is_failed() && last.fix().is_some()),
        None => assert_eq!(last.name, "answers"),
    }
}

#[test]
fn a_kernels_refusal_names_the_refused_step() {
    let tree = good();
    let mut chain = chain(&tree.host(), VF.parse().unwrap(), 1);
    chain.by_ref().take(6).for_each(drop);
    let of = |error: VfioError| chain.state.not_opened(&error).unwrap();
    let errno = vmm_sys_util::errno::Error::new;
    let busy = std::io::Error::from_raw_os_error(libc::EBUSY);
    assert_eq!(of(VfioError::OpenGroup(busy, "7".into())).code(), "busy");
    assert_eq!(
        of(VfioError::VfioDeviceBindIommufd(errno(libc::EBUSY))).code(),
        "busy"
    );
    assert_eq!(
        of(VfioError::VfioDeviceBindIommufd(errno(libc::EINVAL))).code(),
        "busy"
    );
    let viable = of(VfioError::GroupViable);
    assert_eq!(viable.code(), "group-not-viable");
    assert!(viable.reason().contains("does not name"), "{viable}");
    let error = of(VfioError::ContainerSetIOMMU(errno(libc::EPERM)));
    assert!(
        error.reason().contains("set up the IOMMU") && error.fix().contains("interrupt"),
        "{error}"
    );
}
