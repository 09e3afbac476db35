//! Chains over made-up machines: each with one thing wrong.

use super::super::chain::{Is, Step, Verdict as Came};
use super::super::system::fake::Fake;
use super::*;

const VF: &str = "0000:01:10.0";
const PF: &str = "0000:01:00.0";

/// A machine where a virtual function of an 82576 is ready for a rail.
fn ready() -> Fake {
    let fake = Fake::new();
    let function = |address: &str, device: &str, group: &str, driver: &str| {
        let at = format!("{DEVICES}/{address}");
        fake.file(&format!("{at}/vendor"), "0x8086\n")
            .file(&format!("{at}/device"), &format!("{device}\n"))
            .file(&format!("{at}/class"), "0x020000\n")
            .file(&format!("{at}/numa_node"), "-1\n")
            .link(
                &format!("{at}/driver"),
                &format!("../../../bus/pci/drivers/{driver}"),
            )
            .folder(&format!("/sys/kernel/iommu_groups/{group}/devices/{address}"))
            .link(
                &format!("{at}/iommu_group"),
                &format!("../../../../kernel/iommu_groups/{group}"),
            );
    };
    function(PF, "0x10c9", "6", "igb");
    function(VF, "0x10ca", "7", "vfio-pci");
    fake.link(&format!("{DEVICES}/{VF}/physfn"), &format!("../{PF}"))
        .link(&format!("{DEVICES}/{PF}/virtfn0"), &format!("../{VF}"))
        .file(&format!("{DEVICES}/{PF}/sriov_totalvfs"), "7")
        .file(&format!("{DEVICES}/{PF}/net/eth1/flags"), "0x1003")
        .file(&format!("{DEVICES}/{PF}/net/eth1/carrier"), "1")
        .file(&format!("{DEVICES}/{PF}/net/eth1/operstate"), "up")
        .folder("/sys/bus/pci/drivers/vfio-pci")
        .file("/dev/vfio/vfio", "")
        .file("/dev/vfio/7", "");
    fake
}

fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

fn judged(fake: &Fake) -> Chain {
    chain(&fake.system(), bdf(VF), (None, true), &[])
}

/// The broken step, which is the last.
fn broken(fake: &Fake) -> Step {
    let chain = judged(fake);
    assert_eq!(chain.verdict, Came::Broken, "{chain:#?}");
    let last = chain.steps.into_iter().next_back().unwrap();
    assert_eq!(last.is, Is::Broken);
    last
}

fn command(step: &Step) -> &str {
    step.fixes[0].command.as_deref().unwrap()
}

/// A rail's own driver that reports no fault.
struct Works;

impl Live for Works {
    fn kind(&self) -> &'static str {
        "igbvf"
    }
    fn memory(&self) -> u64 {
        4 << 20
    }
    fn steps(&self, walk: &mut Walk, bdf: Bdf) -> Link {
        walk.proved("frame", format!("a frame came back through the rings of {bdf}"));
        Ok(())
    }
}

#[test]
fn a_function_that_is_ready_is_as_far_as_its_driver_goes() {
    let fake = ready();
    let seen = judged(&fake);
    assert_eq!(
        (seen.rail.as_str(), seen.verdict),
        ("igbvf:0000:01:10.0", Came::Untried),
        "{seen:#?}"
    );
    assert!(seen.steps.iter().all(|step| step.is != Is::Broken));
    let tried = chain(&fake.system(), bdf(VF), (Some("igbvf"), true), &[&Works]);
    assert_eq!(tried.verdict, Came::Usable, "{tried:#?}");
    assert_eq!(all(&fake.system()), [bdf(VF)]);
}

#[test]
fn what_is_not_there_or_not_ours_is_said_first() {
    let fake = ready();
    let none = chain(&fake.system(), bdf("0000:09:00.0"), (None, true), &[]);
    assert!(
        none.steps[0].saw.contains("no PCI function") && none.steps[0].cause.as_ref().unwrap().contains(VF)
    );
    fake.file(&format!("{DEVICES}/{VF}/device"), "0x1539");
    assert!(
        broken(&fake)
            .saw
            .contains("8086:1539, which no rail of ours drives")
    );
    fake.file(&format!("{DEVICES}/{VF}/device"), "0x10ca");
    let other = chain(&fake.system(), bdf(VF), (Some("usnic"), true), &[]);
    assert!(other.steps[0].fixes[0].what.contains("igbvf:0000:01:10.0"));
}

#[test]
fn a_physical_function_gets_the_command_that_makes_virtual_ones() {
    let fake = ready();
    let physical = |fake: &Fake| chain(&fake.system(), bdf(PF), (None, true), &[]);
    assert_eq!(physical(&fake).verdict, Came::NotApplicable);
    fake.without(&format!("{DEVICES}/{PF}/virtfn0"));
    let without = physical(&fake);
    let step = without.steps.last().unwrap();
    assert_eq!(command(step), format!("echo 2 > {DEVICES}/{PF}/sriov_numvfs"));
    fake.file(&format!("{DEVICES}/{PF}/sriov_totalvfs"), "0");
    assert!(
        physical(&fake).steps.last().unwrap().fixes[0]
            .what
            .contains("firmware")
    );
    // Where the rail was not named, it is not reported as broken.
    let unasked = chain(&fake.system(), bdf(PF), (None, false), &[]);
    assert_eq!(unasked.verdict, Came::NotApplicable);
}

#[test]
fn a_physical_function_that_is_down_breaks_its_virtual_ones() {
    let fake = ready();
    fake.file(&format!("{DEVICES}/{PF}/net/eth1/flags"), "0x1002");
    let step = broken(&fake);
    assert_eq!((step.step, command(&step)), ("parent", "ip link set eth1 up"));
    fake.file(&format!("{DEVICES}/{PF}/net/eth1/flags"), "0x1003")
        .file(&format!("{DEVICES}/{PF}/net/eth1/carrier"), "0");
    assert!(broken(&fake).saw.contains("has no link"));
    fake.without(&format!("{DEVICES}/{PF}/net"))
        .without(&format!("{DEVICES}/{PF}/driver"));
    assert!(command(&broken(&fake)).contains("echo igb >"));
    fake.without(&format!("{DEVICES}/{VF}/physfn"));
    assert_eq!(
        judged(&fake).steps[1].is,
        Is::NotApplicable,
        "a guest's function has no parent here"
    );
}

#[test]
fn without_an_iommu_the_command_line_is_named_or_the_firmware() {
    let fake = ready();
    fake.without(&format!("{DEVICES}/{VF}/iommu_group"))
        .file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1")
        .file("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n");
    let step = broken(&fake);
    assert!(
        step.step == "iommu" && command(&step).contains("intel_iommu=on"),
        "{step:?}"
    );
    fake.file("/proc/cmdline", "root=/dev/sda1 intel_iommu=on");
    assert!(broken(&fake).fixes[0].what.contains("VT-d"));
    fake.file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\n")
        .file("/proc/cmdline", "amd_iommu=off");
    let step = broken(&fake);
    assert_eq!(
        command(&step),
        "sed -i 's/\\bamd_iommu=off\\b/amd_iommu=on/' /etc/default/grub && update-grub"
    );
    assert!(
        step.cause.as_deref().unwrap().ends_with("has amd_iommu=off"),
        "{step:?}"
    );
    fake.file("/proc/cmdline", "root=/dev/sda1");
    assert!(broken(&fake).fixes[0].what.contains("firmware"));
    // What the firmware shows is surer than whose processor it is.
    fake.file("/sys/firmware/acpi/tables/DMAR", "");
    assert!(command(&broken(&fake)).contains("intel_iommu=on"));
    fake.without("/sys/firmware/acpi/tables/DMAR");
    let step = broken(&fake);
    assert!(
        step.cause.as_deref() == Some("the firmware shows the kernel no IOMMU"),
        "{step:?}"
    );
    assert!(step.fixes[0].command.is_none() && step.fixes[0].what.contains("firmware"));
}

#[test]
fn a_group_of_vfio_without_an_iommu_is_no_iommu() {
    let fake = ready();
    fake.file("/sys/kernel/iommu_groups/7/name", "vfio-noiommu\n")
        .without("/dev/vfio/7")
        .file("/dev/vfio/noiommu-7", "")
        .file("/proc/cmdline", "root=/dev/sda1")
        .file("/proc/cpuinfo", "vendor_id\t: GenuineIntel\n");
    let step = broken(&fake);
    assert!(
        step.step == "iommu" && step.saw.contains("noiommu-7") && command(&step).contains("intel_iommu=on"),
        "{step:?}"
    );
    // The same for a VIC's function.
    fake.file(&format!("{DEVICES}/{VF}/vendor"), "0x1137")
        .file(&format!("{DEVICES}/{VF}/device"), "0x00cf");
    let step = broken(&fake);
    assert!(step.step == "iommu" && step.saw.contains("noiommu-7"), "{step:?}");
}

#[test]
fn a_foreign_device_of_the_group_is_named() {
    let fake = ready();
    let other = "0000:01:11.0";
    let at = format!("{DEVICES}/{other}");
    fake.file(&format!("{at}/vendor"), "0x8086")
        .file(&format!("{at}/device"), "0x1501")
        .file(&format!("{at}/class"), "0x010802")
        .folder(&format!("/sys/kernel/iommu_groups/7/devices/{other}"))
        .link(&format!("{at}/driver"), "../../../bus/pci/drivers/nvme");
    let step = broken(&fake);
    assert!(
        step.step == "group" && step.saw.contains("0000:01:11.0 (driver `nvme`)"),
        "{step:?}"
    );
    assert!(command(&step).contains("echo vfio-pci > /sys/bus/pci/devices/0000:01:11.0/driver_override"));
    fake.link(&format!("{at}/driver"), "../../../bus/pci/drivers/pcieport");
    assert_eq!(judged(&fake).verdict, Came::Untried);
}

#[test]
fn the_kernels_own_driver_has_to_let_go() {
    let fake = ready();
    fake.link(
        &format!("{DEVICES}/{VF}/driver"),
        "../../../bus/pci/drivers/igbvf",
    )
    .file(&format!("{DEVICES}/{VF}/net/eth2/operstate"), "up");
    let step = broken(&fake);
    assert!(
        step.step == "driver" && step.saw.contains("driver `igbvf`"),
        "{step:?}"
    );
    assert!(command(&step).contains("driver/unbind") && command(&step).ends_with("drivers_probe"));
    assert!(step.fixes[0].what.contains("eth2"), "{step:?}");
    fake.without(&format!("{DEVICES}/{VF}/driver"));
    assert!(broken(&fake).saw.contains("no driver"));
}

#[test]
fn files_and_limits_are_checked_before_anything_is_opened() {
    let fake = ready();
    fake.without("/dev/vfio/7");
    assert!(broken(&fake).step == "device-file" && broken(&fake).saw.contains("dev/vfio/7"));
    fake.file("/dev/vfio/7", "")
        .limits("65536", "65536")
        .file("/proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t0-1\n");
    let step = broken(&fake);
    assert!(
        step.step == "memlock" && step.saw.contains("16.0 MiB needed") && step.saw.contains("64 KiB"),
        "{step:?}"
    );
    // A driver knows what it takes.
    let told = chain(&fake.system(), bdf(VF), (None, true), &[&Works]);
    let step = told.steps.last().unwrap();
    assert!(
        step.step == "memlock" && step.saw.contains("4.0 MiB needed"),
        "{step:?}"
    );
}

#[test]
fn distance_is_advice() {
    let fake = ready();
    fake.file(&format!("{DEVICES}/{VF}/numa_node"), "1")
        .file("/sys/devices/system/node/node0/cpulist", "0-3")
        .file("/sys/devices/system/node/node0/distance", "10 21")
        .file("/sys/devices/system/node/node1/cpulist", "4-7");
    let seen = judged(&fake);
    let step = |name: &str| seen.steps.iter().find(|step| step.step == name).unwrap();
    assert!(
        step("numa").is == Is::Note && step("numa").saw.contains("a distance of 21"),
        "{:?}",
        step("numa")
    );
    assert_eq!(command(step("numa")), "taskset -cp 4-7 $$");
}
