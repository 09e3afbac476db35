//! A guest from its start to its verdict.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::beside::{self, Folder};
use super::capture;
use super::first_root::{self, KernelFiles, Run};
use super::images::{Image, Images};
use super::measure::{self, Ratio};
use super::programs::{Finished, Programs};
use super::qemu::{self, Accelerator, Machine};
use super::scenarios::{Guest, SCENARIOS, Scenario};
use super::stop::Stop;
use super::verdict::{self, Check};
use crate::error::Error;

/// The time in which a kernel on a real processor starts its first process many times over.
const KVM_LIMIT: Duration = Duration::from_secs(15);

/// What one guest came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) scenario: String,
    pub(crate) guest: String,
    /// The kernel that ran in it.
    pub(crate) kernel: String,
    pub(crate) seconds: f64,
    pub(crate) checks: Vec<Check>,
    /// What could not be checked here, and why.
    #[serde(default)]
    pub(crate) skipped: Vec<String>,
    /// What it measured, compared.
    #[serde(default)]
    pub(crate) ratios: Vec<Ratio>,
    /// Why the guest as a whole failed, if it did.
    pub(crate) failure: Option<String>,
    /// What failed when it was booted the first time, where it was booted again for that.
    #[serde(default)]
    pub(crate) before: Vec<String>,
    /// The console, whole.
    pub(crate) console: PathBuf,
    /// The consoles of the machines that ran at the same time.
    #[serde(default)]
    pub(crate) others: Vec<PathBuf>,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Returns the checks that failed, with what each found.
    pub(crate) fn failures(&self) -> impl Iterator<Item = String> {
        let failed = |check: &Check| {
            let found = check.failure.as_deref()?;
            Some(format!("{}: {found}", check.what))
        };
        self.checks.iter().filter_map(failed).chain(self.failure.clone())
    }
}

/// The name of a file that a machine boots from, before the machine's own.
const FIRST_ROOT: &str = "first-root";

/// One of the machines that run at the same time.
struct Booted<'a> {
    /// Its name; the first has none.
    name: &'static str,
    devices: &'static [&'static str],
    run: Run<'a>,
}

/// Boots guests, and keeps what they need.
pub(super) struct Boots<'a> {
    /// The workspace's folder.
    pub(super) root: &'a Path,
    pub(super) programs: &'a Programs,
    pub(super) images: Images<'a>,
    /// The folder to which the first roots are written.
    pub(super) folder: PathBuf,
    pub(super) accelerator: Accelerator,
    /// The program that is tested.
    pub(super) tested: PathBuf,
    /// The folder of the examples that guests run.
    pub(super) examples: PathBuf,
    /// The libfabric provider and its clients, with their names in the guests that have them.
    pub(super) clients: Vec<(&'static str, PathBuf)>,
    /// Whether guests do less of what takes long.
    pub(super) short: bool,
    /// What scripts find set, over what the table sets.
    pub(super) set: &'a [(String, String)],
}

impl Boots<'_> {
    /// Runs one guest.
    pub(super) fn guest(&self, scenario: &Scenario, guest: &Guest) -> Result<Verdict, Stop> {
        let kernel = KernelFiles::of(&self.images.get(Image::Kernel(guest.kernel))?)?;
        let examples: Vec<_> = guest
            .programs
            .iter()
            .map(|name| (*name, self.examples.join(name)))
            .collect();
        let examples = examples.iter().map(|(name, path)| (*name, &**path));
        let clients = self.clients.iter().filter(|_| guest.clients);
        let clients = clients.map(|(name, path)| (*name, &**path));
        let tested: Vec<_> = [("doorbell", &*self.tested)]
            .into_iter()
            .chain(examples)
            .chain(clients)
            .collect();
        // If an option is set twice, the last one holds.
        let shortened = self.short.then_some(guest.shortened).into_iter().flatten();
        let settings: Vec<_> = guest.settings.iter().chain(shortened).copied().collect();
        let set: Vec<_> = self.set.iter().map(|(name, value)| (&**name, &**value)).collect();
        let run = |script, settings| Run {
            modules: guest.modules,
            script,
            settings,
            programs: &tested,
        };
        let begun = Instant::now();
        let name = format!("{}, {}", scenario.name, guest.name);
        let first = [&*settings, &set].concat();
        let mut machines = vec![Booted {
            name: "",
            devices: guest.devices,
            run: run(guest.script, &first),
        }];
        let others: Vec<Vec<_>> = guest
            .others
            .iter()
            .map(|other| [&settings, other.settings, &set].concat())
            .collect();
        machines.extend(guest.others.iter().zip(&others).map(|(other, settings)| Booted {
            name: other.name,
            devices: other.devices,
            run: run(other.script, settings),
        }));
        let said = self.boot(&name, guest, &kernel, &machines, self.accelerator)?;
        let (mut checks, mut failed, mut skipped) = (Vec::new(), None, Vec::new());
        for (machine, said) in machines.iter().zip(&said) {
            let mut own = verdict::checks(&said.text);
            let failure = failure(said.code, &own, &said.how(guest.limit));
            if machine.name.is_empty() {
                skipped = self.captures(guest, &said.text, &mut own)?;
            }
            checks.extend(own.into_iter().map(|check| check.of(machine.name)));
            failed = failed.or(failure.map(|failure| verdict::of(machine.name, failure)));
        }
        let ratios = said
            .first()
            .map(|said| measure::compare(guest.compared, &said.text));
        let mut consoles = said.into_iter().map(|said| said.log);
        Ok(Verdict {
            scenario: scenario.name.to_owned(),
            guest: guest.name.to_owned(),
            kernel: kernel.version,
            seconds: begun.elapsed().as_secs_f64(),
            checks,
            skipped,
            ratios: ratios.unwrap_or_default(),
            failure: failed,
            before: Vec::new(),
            console: consoles.next().unwrap_or_default(),
            others: consoles.collect(),
        })
    }

    /// Checks the captures that the guest brought out; returns those that could not be checked.
    fn captures(&self, guest: &Guest, console: &str, checks: &mut Vec<Check>) -> Result<Vec<String>, Stop> {
        let mut skipped = Vec::new();
        for name in guest.captures {
            let bytes = match verdict::file(console, name) {
                Ok(bytes) => bytes,
                Err(why) => {
                    checks.push(Check {
                        what: format!("{name}: it came out of the guest"),
                        failure: Some(why),
                    });
                    continue;
                }
            };
            let file = self.folder.join(name);
            std::fs::write(&file, bytes).map_err(Error::file("write", &file))?;
            match capture::judge(self.programs, self.root, name, &file)? {
                Some(check) => checks.push(check),
                None => skipped.push(format!("{name}: package tshark: not found")),
            }
        }
        Ok(skipped)
    }

    /// Whether a guest of this machine's own processor gets as far as a script. A processor that only seems
    /// to support it may hang for ever.
    pub(super) fn try_kvm(&mut self, guest: &Guest) -> Result<bool, Stop> {
        let kernel = KernelFiles::of(&self.images.get(Image::Kernel(guest.kernel))?)?;
        let run = Run {
            modules: &[],
            script: "exit 0\n",
            settings: &[],
            programs: &[],
        };
        let bare = Guest {
            devices: &[],
            others: &[],
            beside: &[],
            limit: KVM_LIMIT,
            ..*guest
        };
        let machine = Booted {
            name: "",
            devices: &[],
            run,
        };
        let said = self.boot("trying KVM", &bare, &kernel, &[machine], Accelerator::Kvm)?;
        let code = said.first().and_then(|said| said.code);
        let works = code.and_then(qemu::status) == Some(0);
        if works {
            self.accelerator = Accelerator::Kvm;
        }
        Ok(works)
    }

    /// Boots machines that run at the same time, the first of which leads; returns how each ended.
    fn boot(
        &self,
        name: &str,
        guest: &Guest,
        kernel: &KernelFiles,
        machines: &[Booted<'_>],
        accelerator: Accelerator,
    ) -> Result<Vec<Finished>, Stop> {
        let folder = Folder::new()?;
        let qemu = self.images.get(Image::Qemu(guest.qemu))?;
        let programs = self.images.get(Image::Guest(guest.set))?;
        let lab = self.tested.with_file_name("doorbell-lab");
        let mut commands = Vec::new();
        for booted in machines {
            let first_root = self.folder.join(format!("{FIRST_ROOT}{}.cpio", booted.name));
            first_root::write(&first_root, &programs, kernel, &booted.run)?;
            let devices: Vec<String> = booted
                .devices
                .iter()
                .map(|words| folder.in_words(words))
                .collect();
            let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
            let machine = Machine {
                accelerator,
                processors: guest.processors,
                memory_mib: guest.memory_mib,
                devices: &devices,
                kernel: &kernel.image,
                first_root: &first_root,
                append: guest.append,
            };
            let beside = if booted.name.is_empty() { guest.beside } else { &[] };
            let command = beside::with(beside, &folder, &lab, machine.command(&qemu));
            commands.push((file_name(&verdict::behind(name, booted.name)), command));
        }
        Ok(self.programs.together(name, commands, guest.limit)?)
    }

    /// Removes the files that the last machines booted from.
    pub(super) fn clean(&self) {
        let names = SCENARIOS.iter().flat_map(|scenario| scenario.guests);
        let others = names.flat_map(|guest| guest.others).map(|other| other.name);
        for name in others.chain([""]) {
            // It is made again for each guest; where it cannot be removed, it is overwritten.
            let _ = std::fs::remove_file(self.folder.join(format!("{FIRST_ROOT}{name}.cpio")));
        }
    }
}

/// Returns the name of a file for a guest's console.
fn file_name(name: &str) -> String {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() || character == '.' {
            character
        } else {
            '-'
        }
    };
    name.replace(", ", "-").chars().map(plain).collect()
}

/// Returns what is wrong with a guest as a whole.
fn failure(code: Option<i32>, checks: &[Check], how: &str) -> Option<String> {
    let bad = checks.iter().any(|check| check.failure.is_some());
    match code.and_then(qemu::status) {
        Some(0) if checks.is_empty() => Some("it ended well without a single check".to_owned()),
        Some(0) => None,
        Some(_) if bad => None,
        Some(status) => Some(format!("its script ended with {status}, and no check failed")),
        None => Some(format!("it ended before its script did: QEMU {how}")),
    }
}

/// Whether trying KVM makes sense: the device is there, and a processor behind it that can do it.
pub(super) fn may_have_kvm() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(Path::new("/dev/kvm"));
    has_virtual_machines(&flags) && device.is_ok()
}

fn has_virtual_machines(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.any(|line| line.split_whitespace().any(|flag| ["vmx", "svm"].contains(&flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(failure: Option<&str>) -> Check {
        Check {
            what: "x".to_owned(),
            failure: failure.map(str::to_owned),
        }
    }

    #[test]
    fn a_guest_that_ends_early_or_proves_nothing_has_failed() {
        let ended = |status: i32| Some((status + 64) << 1 | 1);
        let good = [check(None)];
        assert_eq!(failure(ended(0), &good, ""), None);
        assert!(failure(ended(0), &[], "").is_some(), "no check");
        assert_eq!(
            failure(ended(1), &[check(None), check(Some("no"))], ""),
            None,
            "the check reports it"
        );
        assert!(failure(ended(2), &good, "").unwrap().contains('2'));
        assert!(
            failure(Some(0), &good, "ended with 0: panic")
                .unwrap()
                .contains("panic")
        );
        assert!(
            failure(Some(1), &good, "ended with 1: bad device")
                .unwrap()
                .contains("bad device")
        );
        assert!(
            failure(None, &good, "did not end")
                .unwrap()
                .contains("did not end")
        );
    }

    #[test]
    fn a_processor_without_virtual_machines_is_not_tried() {
        assert!(has_virtual_machines("processor: 0\nflags\t\t: fpu vmx sse\n"));
        assert!(has_virtual_machines("flags : svm\n"));
        assert!(!has_virtual_machines(
            "flags : fpu hypervisor\nmodel name : vmx\n"
        ));
    }

    #[test]
    fn consoles_have_plain_names() {
        assert_eq!(
            file_name("xdp-zero-copy, igb, Linux 6.12"),
            "xdp-zero-copy-igb-Linux-6.12"
        );
    }
}
