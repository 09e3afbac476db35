//! The rooms where `unsafe` lives. Every other file forbids it, and in a room each block has a comment on why
//! it is sound.

use super::Finding;
use crate::lexer::{Kind, Token};
use crate::workspace::{TargetKind, Workspace};

/// Folders in which every file is a room.
const FOLDERS: &[&str] = &[
    "ring/",
    "drivers/vfio/",
    "fabric/libfabric-sys/",
    "fabric/provider/",
];

/// Single files, or folders of that name when the room has outgrown one file.
const FILES: &[&str] = &[
    "fabric/src/memory",
    "fabric/src/map",
    "fabric/src/clock",
    "drivers/usnic/model/src/map",
    "drivers/usnic/model/src/sys",
    "engine/src/scope",
    "testing/src/alloc",
    "oob/src/pmix",
    "am/portals/abi/src/abi",
    "tools/peers/iceoryx2/src/loan",
];

/// Rooms of every driver, below its `src`.
const OF_DRIVERS: &[&str] = &["sys", "regs", "map"];

/// How many lines above an unsafe block its SAFETY comment may end.
const REACH: usize = 3;

/// Whether `unsafe` is allowed in this file.
fn is_room(file: &str) -> bool {
    FOLDERS.iter().any(|folder| file.starts_with(folder))
        || FILES.iter().any(|room| is_file_or_folder(file, room))
        || file
            .strip_prefix("drivers/")
            .and_then(|rest| rest.split_once("/src/"))
            .is_some_and(|(driver, rest)| {
                !driver.contains('/') && OF_DRIVERS.iter().any(|room| is_file_or_folder(rest, room))
            })
}

fn is_file_or_folder(file: &str, room: &str) -> bool {
    file.strip_prefix(room)
        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Whether some file beside or below the crate root `file` is a room, so that the root can deny but not
/// forbid.
fn crate_has_rooms(file: &str, files: &[String]) -> bool {
    let source = file
        .rsplit_once('/')
        .map_or(String::new(), |(folder, _)| format!("{folder}/"));
    files
        .iter()
        .any(|other| is_room(other) && other.starts_with(&source))
}

/// Whether `file` is the first file of a library or program.
pub(super) fn is_crate_root(workspace: &Workspace, file: &str) -> bool {
    let roots = workspace.members.iter().flat_map(|member| &member.targets);
    roots
        .filter(|target| matches!(target.kind, TargetKind::Library | TargetKind::Program))
        .any(|target| target.path == file)
}

/// A crate without rooms forbids `unsafe_code`; one with rooms denies it and allows it on those modules.
pub(super) fn crate_root(file: &str, tokens: &[Token<'_>], files: &[String]) -> Vec<Finding> {
    if FOLDERS.iter().any(|folder| file.starts_with(folder)) {
        return Vec::new();
    }
    let has = |level: &str| has_lint(tokens, level);
    let (good, wanted) = if crate_has_rooms(file, files) {
        (has("deny") || has("forbid"), "deny")
    } else {
        (has("forbid"), "forbid")
    };
    if good {
        return Vec::new();
    }
    let message = format!("this crate lacks #![{wanted}(unsafe_code)]; add it below the first comment");
    vec![Finding {
        file: file.to_owned(),
        line: 1,
        message,
    }]
}

/// Whether `#![level(..., unsafe_code, ...)]` is among the tokens.
fn has_lint(tokens: &[Token<'_>], level: &str) -> bool {
    let code: Vec<&Token<'_>> = tokens
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .collect();
    code.windows(5).enumerate().any(|(at, window)| {
        window
            .iter()
            .zip(["#", "!", "[", level, "("])
            .all(|(token, text)| token.is(text))
            && code[at + 5..]
                .iter()
                .take_while(|token| !token.is(")"))
                .any(|token| token.is("unsafe_code"))
    })
}

/// `unsafe` outside the rooms, and unsafe blocks without a comment on why they are sound.
pub(super) fn file(file: &str, tokens: &[Token<'_>]) -> Vec<Finding> {
    let room = is_room(file);
    let mut findings = Vec::new();
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.is("unsafe")) {
        let finding = |message: &str| Finding {
            file: file.to_owned(),
            line: token.line,
            message: message.to_owned(),
        };
        if !room {
            findings.push(finding(
                "unsafe stands outside its rooms; move it into one (tools/xtask/src/arrows/rooms.rs lists them) and \
                 call that safely",
            ));
        }
        let next = tokens[at + 1..].iter().find(|token| token.kind != Kind::Comment);
        let needs_reason = next.is_some_and(|next| next.is("{") || next.is("impl"));
        if needs_reason && !has_reason(&tokens[..at], token.line) {
            findings.push(finding(
                "no SAFETY comment ends within three lines above this unsafe; name the invariant and who keeps it",
            ));
        }
    }
    findings
}

/// Whether a run of comment lines that ends at most `REACH` lines above `line` has the word SAFETY.
fn has_reason(before: &[Token<'_>], line: usize) -> bool {
    let mut wanted_from = line.saturating_sub(REACH);
    for token in before.iter().rev() {
        let end = token.last_line();
        if token.kind != Kind::Comment {
            if end < wanted_from {
                return false;
            }
            continue;
        }
        if end < wanted_from {
            return false;
        }
        if token.text.contains("SAFETY:") {
            return true;
        }
        // A comment in reach brings the line above it into reach: the run is one comment.
        wanted_from = wanted_from.min(token.line.saturating_sub(1));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::tokens;

    const NONE: [usize; 0] = [];

    fn check(name: &str, source: &str) -> Vec<usize> {
        file(name, &tokens(source))
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn the_rooms_are_these() {
        for room in [
            "ring/src/spsc.rs",
            "ring/tests/loom_spsc.rs",
            "drivers/shm/src/sys.rs",
            "drivers/shm/src/map.rs",
            "drivers/usnic/src/regs.rs",
            "drivers/usnic/src/regs/wq.rs",
            "drivers/vfio/src/dma.rs",
            "fabric/src/memory.rs",
            "fabric/libfabric-sys/src/lib.rs",
            "fabric/provider/src/domain.rs",
            "engine/src/scope.rs",
            "testing/src/alloc.rs",
        ] {
            assert!(is_room(room), "{room}");
        }
        for other in [
            "drivers/shm/src/lib.rs",
            "drivers/shm/src/lane/sys.rs",
            "drivers/shm/src/mapping.rs",
            "drivers/shm/tests/map.rs",
            "fabric/src/lib.rs",
            "fabric/matching/src/map.rs",
            "engine/src/job.rs",
            "pml/src/memory.rs",
            "rings/src/lib.rs",
            "pml/tests/story.rs",
            "pml/tests/no_alloc.rs",
            "testing/tests/alloc.rs",
            "pml/src/alloc.rs",
        ] {
            assert!(!is_room(other), "{other}");
        }
    }

    #[test]
    fn unsafe_outside_a_room_is_found_and_its_shadows_are_not() {
        assert_eq!(check("pml/src/lib.rs", "fn f() {}\nunsafe fn g() {}\n"), [2]);
        assert_eq!(check("pml/src/lib.rs", "#[unsafe(no_mangle)] fn g() {}"), [1]);
        assert_eq!(
            check(
                "pml/src/lib.rs",
                "#![forbid(unsafe_code)] // unsafe\nconst S: &str = \"unsafe {\";"
            ),
            NONE
        );
        assert_eq!(check("ring/src/lib.rs", "unsafe fn g() {}\n"), NONE);
    }

    #[test]
    fn a_block_or_an_impl_needs_its_reason_within_reach() {
        let room = "ring/src/lib.rs";
        for good in [
            "// SAFETY: we own it\nunsafe { f() }",
            "// SAFETY: we own it\n#[inline]\nunsafe impl Send for X {}",
            "// SAFETY: a long story\n// that goes on\n// and on\n// and on\n// to the end\nlet x =\n    unsafe { f() };",
            "/* SAFETY: we own it */ unsafe { f() }",
            "unsafe fn f() {}",
            "unsafe extern \"C\" {}",
        ] {
            assert_eq!(check(room, good), NONE, "{good}");
        }
        for (bad, line) in [
            ("unsafe { f() }", 1),
            ("// we own it\nunsafe { f() }", 2),
            ("// SAFETY: too far\n\n\n\nunsafe { f() }", 5),
            (
                "// SAFETY: too far\na();\nb();\nc();\n// another matter\nunsafe { f() }",
                6,
            ),
            ("let s = \"SAFETY: in a string\";\nunsafe { f() }", 2),
            ("unsafe impl Send for X {}", 1),
            ("unsafe /* why */ { f() }", 1),
        ] {
            assert_eq!(check(room, bad), [line], "{bad}");
        }
    }

    #[test]
    fn a_crate_root_forbids_or_denies() {
        let files = [
            "engine/src/scope.rs",
            "drivers/shm/src/sys/mod.rs",
            "fabric/src/clock.rs",
            "pml/src/lib.rs",
        ];
        let files = files.map(str::to_owned);
        let root = |file: &str, source: &str| crate_root(file, &tokens(source), &files).len();
        assert_eq!(root("pml/src/lib.rs", "//! X\n#![forbid(unsafe_code)]"), 0);
        assert_eq!(root("pml/src/lib.rs", "#![forbid(missing_docs, unsafe_code)]"), 0);
        assert_eq!(root("pml/src/lib.rs", "#![deny(unsafe_code)]"), 1);
        assert_eq!(root("pml/src/lib.rs", "// #![forbid(unsafe_code)]"), 1);
        assert_eq!(root("drivers/sim/src/lib.rs", "#![deny(unsafe_code)]"), 1);
        assert_eq!(root("fabric/matching/src/lib.rs", "#![deny(unsafe_code)]"), 1);
        for denying in ["engine/src/lib.rs", "drivers/shm/src/lib.rs", "fabric/src/lib.rs"] {
            assert_eq!(root(denying, "#![deny(unsafe_code)]"), 0, "{denying}");
            assert_eq!(root(denying, ""), 1, "{denying}");
        }
        assert_eq!(root("ring/src/lib.rs", ""), 0);
    }
}
