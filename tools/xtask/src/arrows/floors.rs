//! The floors: which folder is which crate, and what it may depend on.
//!
//! A crate sees only floors below its own, and of those only what its row names. A package of the workspace
//! that is missing here, or an arrow that no row allows, is a finding. To add a crate, add its row.

use std::path::Path;

use super::Finding;
use crate::workspace::{Dependency, Member, Workspace};

/// The crates that a crate may depend on.
#[derive(Debug, Clone, Copy)]
enum Sees {
    /// These folders only.
    Only(&'static [&'static str]),
    /// Every crate on a lower floor.
    Below,
    /// Every crate of the workspace.
    Everything,
}

/// One row of the table.
#[derive(Debug)]
struct Place {
    /// The folder, relative to the root.
    folder: &'static str,
    /// The package's name.
    package: &'static str,
    /// The floor, from 0.
    floor: u8,
    /// The crates that it may depend on.
    sees: Sees,
}

const fn place(floor: u8, folder: &'static str, package: &'static str, sees: Sees) -> Place {
    Place {
        folder,
        package,
        floor,
        sees,
    }
}

/// What most drivers see.
const DRIVER: Sees = Sees::Only(&["fabric", "ring"]);

/// What drivers see that put frames into UDP.
const SOCKETS: Sees = Sees::Only(&["fabric", "ring", "drivers/inet"]);

/// What drivers of cards see whose frames are UDP.
const CARD: Sees = Sees::Only(&["fabric", "drivers/inet", "drivers/packet", "drivers/vfio"]);

/// Tests and benches of every crate may use this driver: it needs no machine.
const SIMULATOR: &str = "drivers/sim";

/// Tests and benches of every crate may use this one, and nothing else may.
const TESTING: &str = "testing";

/// The table of floors. What each crate is for is in its own `Cargo.toml` and `README.md`.
const FLOORS: &[Place] = &[
    // 0: plain data structures and bindings, with no crate of ours below
    place(0, "ring", "doorbell-ring", Sees::Only(&[])),
    place(0, "hotel", "doorbell-hotel", Sees::Only(&[])),
    place(0, "fabric/libfabric-sys", "libfabric-sys", Sees::Only(&[])),
    // what is driven, written from the reference alone: it shares nothing with its driver
    place(0, "drivers/usnic/model", "doorbell-vic", Sees::Only(&[])),
    // what tests share; on the lowest floor, so that no test of a crate drags in the crate itself
    place(0, TESTING, "doorbell-testing", Sees::Only(&[])),
    // 1: the contracts, and matching for the crates that need it
    place(1, "fabric", "doorbell-fabric", Sees::Only(&["ring"])),
    place(1, "fabric/matching", "doorbell-matching", Sees::Only(&[])),
    // 2: drivers; each maps one kind of device queue onto the contracts
    place(2, SIMULATOR, "doorbell-sim", DRIVER),
    place(2, "drivers/shm", "doorbell-shm", DRIVER),
    // what those have in common that put frames into UDP
    place(2, "drivers/inet", "doorbell-inet", DRIVER),
    // the rail over a network card's queues, whichever card it is
    place(
        2,
        "drivers/packet",
        "doorbell-packet",
        Sees::Only(&["fabric", "drivers/inet"]),
    ),
    place(2, "drivers/udp", "doorbell-udp", SOCKETS),
    place(
        2,
        "drivers/xdp",
        "doorbell-xdp",
        Sees::Only(&["fabric", "ring", "drivers/inet", "drivers/packet"]),
    ),
    place(2, "drivers/portals", "doorbell-portals", DRIVER),
    place(
        2,
        "drivers/ofi",
        "doorbell-ofi",
        Sees::Only(&["fabric", "ring", "fabric/libfabric-sys"]),
    ),
    place(2, "drivers/vfio", "doorbell-vfio", DRIVER),
    place(2, "drivers/igbvf", "doorbell-igbvf", CARD),
    // queue pairs, and the kernel's neighbours of the addresses that they use
    place(2, "drivers/verbs", "doorbell-verbs", SOCKETS),
    place(2, "drivers/usnic", "doorbell-usnic", CARD),
    // 3: datagrams become messages
    place(3, "btl", "doorbell-btl", Sees::Only(&["fabric", "hotel", "ring"])),
    // and what every layer over several rails does alike
    place(3, "paths", "doorbell-paths", Sees::Only(&["fabric"])),
    // 4: protocols over any rail, and the control plane
    place(
        4,
        "pml",
        "doorbell-pml",
        Sees::Only(&["fabric", "fabric/matching", "paths"]),
    ),
    place(
        4,
        "am/portals",
        "doorbell-am-portals",
        Sees::Only(&["fabric", "fabric/matching", "paths"]),
    ),
    // the kernel's interfaces and routes are read in one place, for all crates
    place(4, "oob", "doorbell-oob", Sees::Only(&["fabric", "drivers/inet"])),
    // queue pairs and libibumad belong to a driver, since they take unsafe code
    place(
        4,
        "acm",
        "doorbell-acm",
        Sees::Only(&["fabric", "drivers/inet", "drivers/verbs"]),
    ),
    // 5: active messages, and what the benchmarks need apart
    place(
        5,
        "am",
        "doorbell-am",
        Sees::Only(&["fabric", "am/portals", "hotel", "ring"]),
    ),
    // 6: what composes all of these, for every handle on a job alike
    place(6, "job", "doorbell-job", Sees::Below),
    // 7: the handles
    place(7, "engine", "doorbell", Sees::Below),
    // 8: programs, benchmarks, and libraries for foreign front ends
    place(8, "tools", "doorbell-tools", Sees::Everything),
    place(8, "tools/lab", "doorbell-lab", Sees::Everything),
    // what the benchmarks and the count of instructions exercise, in a program of nothing else
    place(
        5,
        "bench/pair",
        "doorbell-pair",
        Sees::Only(&["btl", "fabric", "pml", "drivers/shm", "drivers/verbs"]),
    ),
    place(8, "bench", "doorbell-bench", Sees::Everything),
    place(8, "tools/xtask", "xtask", Sees::Everything),
    place(8, "tools/simulate", "doorbell-simulate", Sees::Everything),
    place(8, "fabric/provider", "doorbell-provider", Sees::Below),
    place(8, "am/portals/abi", "doorbell-portals-abi", Sees::Below),
];

fn of(folder: &str) -> Option<&'static Place> {
    FLOORS.iter().find(|place| place.folder == folder)
}

/// Whether the project has a crate, or a part of one, at the root under this name.
pub(super) fn is_top_folder(name: &str) -> bool {
    FLOORS
        .iter()
        .any(|place| place.folder.split('/').next() == Some(name))
}

/// Every wrong arrow, name and folder.
pub(super) fn check(workspace: &Workspace, files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &workspace.members {
        let manifest = workspace.root.join(&member.folder).join("Cargo.toml");
        let text = std::fs::read_to_string(manifest).unwrap_or_default();
        findings.extend(check_member(member, &text));
    }
    findings.extend(check_folders(workspace, files));
    findings
}

fn check_member(member: &Member, manifest: &str) -> Vec<Finding> {
    let folder = &member.folder;
    let finding = |line, message| Finding {
        file: format!("{folder}/Cargo.toml"),
        line,
        message,
    };
    let Some(place) = of(folder) else {
        let message = format!(
            "package {} stands in the folder {folder:?}, which has no row in the table of floors; move it, or add \
             its row in tools/xtask/src/arrows/floors.rs",
            member.package
        );
        return vec![finding(1, message)];
    };
    let mut findings = Vec::new();
    if member.package != place.package {
        let message = format!(
            "this package is called {}; name it {}",
            member.package, place.package
        );
        findings.push(finding(line_of(manifest, "name"), message));
    }
    for dependency in &member.depends {
        if !allowed(place, dependency) {
            let line = line_of_dependency(manifest, &dependency.folder);
            findings.push(finding(line, refusal(place, dependency)));
        }
    }
    findings
}

fn allowed(from: &Place, dependency: &Dependency) -> bool {
    let Some(to) = of(&dependency.folder) else {
        return false;
    };
    if to.folder == TESTING {
        return dependency.only_in_tests;
    }
    let normal = match from.sees {
        Sees::Only(folders) => folders.contains(&to.folder),
        Sees::Below => to.floor < from.floor,
        Sees::Everything => true,
    };
    normal || dependency.only_in_tests && (to.floor < from.floor || to.folder == SIMULATOR)
}

fn refusal(from: &Place, dependency: &Dependency) -> String {
    let Some(to) = of(&dependency.folder) else {
        return format!(
            "{} depends on {:?}, which is no crate of this project; use the registry or a crate of the table",
            from.package, dependency.folder
        );
    };
    if to.folder == TESTING {
        return format!(
            "{} depends on {}, which is for tests; move it to [dev-dependencies]",
            from.package, to.package
        );
    }
    if dependency.only_in_tests {
        return format!(
            "tests of {} (floor {}) use {} (floor {}); they may use lower floors, {SIMULATOR} and {TESTING} only, so move the \
             test up",
            from.package, from.floor, to.package, to.floor
        );
    }
    let sees = match from.sees {
        Sees::Only([]) => "nothing of ours".to_owned(),
        Sees::Only(folders) => format!("only {}", folders.join(", ")),
        Sees::Below => format!("only floors below {}", from.floor),
        Sees::Everything => "everything".to_owned(),
    };
    format!(
        "{} (floor {}) depends on {} (floor {}) but sees {sees}; go through the contracts in fabric, or move the \
         code to the floor it belongs to",
        from.package, from.floor, to.package, to.floor
    )
}

/// The folder of the programs that measure peers.
const PEERS: &str = "tools/peers/";

/// Crates that cargo does not know, and drivers that the table does not.
fn check_folders(workspace: &Workspace, files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let finding = |message| Finding {
            file: file.clone(),
            line: 1,
            message,
        };
        if let Some(folder) = file.strip_suffix("/Cargo.toml") {
            // A fuzz crate is a workspace of its own beside the crate that it attacks (cargo-fuzz).
            let fuzzed = folder
                .strip_suffix("/fuzz")
                .is_some_and(|owner| of(owner).is_some());
            // So is each program that measures a peer: nothing of a peer is in our lock file.
            let measures = folder.starts_with(PEERS);
            if workspace.member(folder).is_none() && !fuzzed && !measures {
                let message =
                    format!("{folder} is no member of the workspace; add it to members in Cargo.toml");
                findings.push(finding(message));
            }
        }
        if let Some((driver, _)) = file
            .strip_prefix("drivers/")
            .and_then(|rest| rest.split_once('/'))
            && of(&format!("drivers/{driver}")).is_none()
        {
            let message =
                format!("no driver is called {driver}; add its row in the table of floors, or move it");
            findings.push(finding(message));
        }
    }
    findings
}

/// The line of the first key `key`, from 1; 1 when there is none.
fn line_of(manifest: &str, key: &str) -> usize {
    let is_key = |line: &str| {
        let rest = line.trim_start().strip_prefix(key).unwrap_or(" x");
        rest.trim_start().starts_with(['=', '.'])
    };
    manifest.lines().position(is_key).map_or(1, |index| index + 1)
}

fn line_of_dependency(manifest: &str, folder: &str) -> usize {
    let name = of(folder).map(|place| place.package);
    let last = Path::new(folder).file_name().and_then(|name| name.to_str());
    name.into_iter()
        .chain(last)
        .map(|key| line_of(manifest, key))
        .find(|line| *line > 1)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_each_folder_once_and_points_down() {
        for (index, place) in FLOORS.iter().enumerate() {
            let twin = FLOORS[..index]
                .iter()
                .find(|other| other.folder == place.folder || other.package == place.package);
            assert!(twin.is_none(), "{} is there twice", place.folder);
            let Sees::Only(folders) = place.sees else { continue };
            for folder in folders {
                let to =
                    of(folder).unwrap_or_else(|| panic!("{} sees {folder}, which has no row", place.folder));
                // Modules that several drivers share are beside them.
                let shared = ["drivers/vfio", "drivers/inet", "drivers/packet"].contains(&to.folder)
                    && to.floor == place.floor;
                assert!(
                    to.floor < place.floor || shared,
                    "{} sees {folder} upwards",
                    place.folder
                );
            }
        }
    }

    fn member(folder: &str, package: &str, depends: &[(&str, bool)]) -> Member {
        let dependency = |(folder, only_in_tests): &(&str, bool)| Dependency {
            folder: (*folder).to_owned(),
            only_in_tests: *only_in_tests,
        };
        Member {
            package: package.to_owned(),
            folder: folder.to_owned(),
            depends: depends.iter().map(dependency).collect(),
            targets: Vec::new(),
        }
    }

    #[test]
    fn arrows_down_are_allowed_and_others_are_named_with_their_line() {
        let good = member(
            "pml",
            "doorbell-pml",
            &[("fabric", false), ("drivers/sim", true), ("ring", true)],
        );
        assert_eq!(check_member(&good, ""), []);

        let manifest = "[package]\nname = \"doorbell-pml\"\n[dependencies]\ndoorbell-shm.workspace = true\n";
        let bad = member("pml", "doorbell-pml", &[("drivers/shm", false)]);
        let findings = check_member(&bad, manifest);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(
            (findings[0].file.as_str(), findings[0].line),
            ("pml/Cargo.toml", 4)
        );
        assert!(
            findings[0].message.contains("only fabric, fabric/matching"),
            "{}",
            findings[0]
        );
    }

    #[test]
    fn a_lower_floor_that_the_row_does_not_name_is_refused() {
        let bad = member("drivers/sim", "doorbell-sim", &[("fabric/matching", false)]);
        assert_eq!(check_member(&bad, "").len(), 1);
    }

    #[test]
    fn tests_may_not_look_up_except_at_the_simulator() {
        let good = member("fabric", "doorbell-fabric", &[("drivers/sim", true)]);
        assert_eq!(check_member(&good, ""), []);
        for up in ["engine", "drivers/shm", "pml"] {
            let bad = member("fabric", "doorbell-fabric", &[(up, true)]);
            let findings = check_member(&bad, "");
            assert!(
                findings.len() == 1 && findings[0].message.contains("move the test up"),
                "{up}: {findings:?}"
            );
        }
    }

    #[test]
    fn what_tests_share_is_for_tests_alone() {
        for folder in ["ring", "tools"] {
            let package = of(folder).unwrap().package;
            assert_eq!(check_member(&member(folder, package, &[(TESTING, true)]), ""), []);
            let findings = check_member(&member(folder, package, &[(TESTING, false)]), "");
            assert!(
                findings.len() == 1 && findings[0].message.contains("which is for tests"),
                "{folder}: {findings:?}"
            );
        }
    }

    #[test]
    fn names_unknown_folders_and_paths_out_of_the_tree_are_found() {
        let misnamed = check_member(&member("ring", "rings", &[]), "[package]\nname = \"rings\"\n");
        assert_eq!((misnamed.len(), misnamed[0].line), (1, 2));
        assert_eq!(check_member(&member("rung", "doorbell-rung", &[]), "").len(), 1);
        let outside = check_member(
            &member("tools", "doorbell-tools", &[("/somewhere/else", false)]),
            "",
        );
        assert!(
            outside.len() == 1 && outside[0].message.contains("no crate of this project"),
            "{outside:?}"
        );
    }

    #[test]
    fn crates_that_cargo_does_not_know_and_unknown_drivers_are_found() {
        let workspace = Workspace {
            root: "/nowhere".into(),
            target: "/nowhere/target".into(),
            members: vec![member("ring", "doorbell-ring", &[])],
        };
        let files = [
            "ring/Cargo.toml",
            "ring/fuzz/Cargo.toml",
            "tools/peers/other/Cargo.toml",
            "hotel/Cargo.toml",
            "drivers/tape/src/lib.rs",
        ];
        let findings = check_folders(&workspace, &files.map(str::to_owned));
        let found: Vec<&str> = findings.iter().map(|finding| finding.file.as_str()).collect();
        assert_eq!(found, ["hotel/Cargo.toml", "drivers/tape/src/lib.rs"]);
    }
}
