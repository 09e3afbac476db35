//! The levels: which module of a crate sees which others.
//!
//! A module sees only modules of lower levels of its own crate, and names what it takes by the module
//! that it is in (`crate::error::Error`, never `crate::Error`). A module that is missing here, a row
//! without a module, or an arrow that does not point down is a finding. To add a module, add its row.
//! Tests see everything.

use super::Finding;
use crate::lexer::{Kind, Token};

/// The modules of one crate, from the lowest level up: a module sees those of earlier rows.
#[derive(Debug)]
struct Table {
    /// The folder of the crate, relative to the root.
    folder: &'static str,
    /// The modules of each level.
    levels: &'static [&'static [&'static str]],
}

const TABLES: &[Table] = &[
    Table {
        folder: "job",
        levels: &[
            // words, and what needs nothing else
            &["cores", "path_report", "types"],
            &["error"],
            &["config", "convert", "files", "notices", "random"],
            // the launcher, and the meeting of the ranks
            &["launcher", "meet"],
            &["acm", "ends", "rails", "spawn", "wait"],
            &["diagnose", "ranks"],
            &["binding"],
            &["connect", "control", "handle", "takeover"],
            &["counter_file"],
            // a job that was joined
            &["join", "lobby"],
        ],
    },
    Table {
        folder: "engine",
        levels: &[
            // the methods of every handle
            &["handle"],
            // the owner of rails and PML, and the requests that it has open
            &["progress"],
            &["ledger", "pieces", "shared_node"],
            &["world"],
            &["build", "raw", "request", "window"],
            // borrowed memory
            &["scope"],
            &["collect", "lend", "message"],
            &["control", "within"],
            &["one_sided", "spawn", "tagged"],
            // the three handles
            &["builder"],
            &["portals"],
            &["am"],
        ],
    },
];

impl Table {
    fn level(&self, module: &str) -> Option<usize> {
        self.levels.iter().position(|level| level.contains(&module))
    }

    fn modules(&self) -> impl Iterator<Item = &'static str> {
        self.levels.iter().flat_map(|level| level.iter().copied())
    }
}

/// The table of a source file, its module, and how deep the file lies: 1 for `src/x.rs` and `src/x/mod.rs`.
fn place(file: &str) -> Option<(&'static Table, &str, usize)> {
    let (table, path) = TABLES.iter().find_map(|table| {
        let rest = file.strip_prefix(table.folder)?.strip_prefix("/src/")?;
        Some((table, rest.strip_suffix(".rs")?))
    })?;
    let parts: Vec<&str> = path.strip_suffix("/mod").unwrap_or(path).split('/').collect();
    let name = parts.last()?;
    let is_test = |part: &&str| *part == "tests" || part.ends_with("_tests");
    if ["lib", "main"].contains(name) && parts.len() == 1 || parts.iter().any(is_test) {
        return None;
    }
    Some((table, parts[0], parts.len()))
}

/// Rows without a module, for crates that are there.
pub(super) fn rows(files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in TABLES {
        let root = format!("{}/src/", table.folder);
        if !files.iter().any(|file| file.starts_with(&root)) {
            continue;
        }
        for module in table.modules() {
            let forms = [format!("{root}{module}.rs"), format!("{root}{module}/mod.rs")];
            if !forms.iter().any(|form| files.contains(form)) {
                findings.push(Finding {
                    file: format!("{root}lib.rs"),
                    line: 1,
                    message: format!(
                        "the table of levels has a row for {module}, which is no module; remove it in \
                         tools/xtask/src/arrows/levels.rs"
                    ),
                });
            }
        }
    }
    findings
}

/// Arrows of one file that do not point down.
pub(super) fn file(file: &str, tokens: &[Token<'_>]) -> Vec<Finding> {
    let Some((table, module, depth)) = place(file) else {
        return Vec::new();
    };
    let finding = |line, message| Finding {
        file: file.to_owned(),
        line,
        message,
    };
    let Some(own) = table.level(module) else {
        let message = format!(
            "the module {module} of {} has no row in the table of levels; add it in \
             tools/xtask/src/arrows/levels.rs",
            table.folder
        );
        return vec![finding(1, message)];
    };
    let code: Vec<Token<'_>> = tokens
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .copied()
        .collect();
    let mut findings = Vec::new();
    for (line, target) in targets(without_tests(&code), depth) {
        if target == module {
            continue;
        }
        match table.level(target) {
            Some(level) if level < own => {}
            Some(level) => findings.push(finding(
                line,
                format!(
                    "{module} (level {own}) sees {target} (level {level}); turn the arrow around, or move the code to \
                     the level it belongs to (tools/xtask/src/arrows/levels.rs)"
                ),
            )),
            None => findings.push(finding(
                line,
                format!("{target} is no module of {}; name the module that it is in", table.folder),
            )),
        }
    }
    findings
}

/// The code before the file's own tests.
fn without_tests<'t, 's>(code: &'t [Token<'s>]) -> &'t [Token<'s>] {
    const TESTS: [&str; 10] = ["#", "[", "cfg", "(", "test", ")", "]", "mod", "tests", "{"];
    let is_tests = |window: &[Token<'_>]| window.iter().zip(TESTS).all(|(token, text)| token.is(text));
    let end = code.windows(TESTS.len()).position(is_tests);
    &code[..end.unwrap_or(code.len())]
}

/// What paths from the crate's root name first, with their lines: `crate::x`, each of `crate::{x, y::z}`,
/// and the same by as many `super` as lead to the root. A visibility (`pub(crate)`) is no path.
fn targets<'s>(code: &[Token<'s>], depth: usize) -> Vec<(usize, &'s str)> {
    let mut targets = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let begins = at == 0 || !code[at - 1].is(":");
        let Some(path) = begins.then(|| root(&code[at..], depth)).flatten() else {
            at += 1;
            continue;
        };
        at += path;
        match code.get(at) {
            Some(token) if token.is("{") => targets.extend(group(&code[at..])),
            Some(token) if token.kind == Kind::Word => targets.push((token.line, token.text)),
            _ => {}
        }
    }
    targets
}

/// The length of a path's beginning that means the crate's root, with the `::` behind it.
fn root(code: &[Token<'_>], depth: usize) -> Option<usize> {
    let word = |at: usize, text: &str| code.get(at).is_some_and(|token| token.is(text));
    let followed = |at: usize| word(at, ":") && word(at + 1, ":");
    if word(0, "crate") {
        return followed(1).then_some(3);
    }
    let mut supers = 0;
    while word(3 * supers, "super") && followed(3 * supers + 1) {
        supers += 1;
    }
    (supers == depth).then_some(3 * supers)
}

/// The first word of each path of a group, from its `{` on.
fn group<'s>(code: &[Token<'s>]) -> Vec<(usize, &'s str)> {
    let (mut open, mut first, mut found) = (0, true, Vec::new());
    for token in code {
        match token.text {
            "{" => open += 1,
            "}" if open == 1 => break,
            "}" => open -= 1,
            "," => first |= open == 1,
            _ if first && token.kind == Kind::Word => {
                found.push((token.line, token.text));
                first = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::tokens;

    fn check(name: &str, source: &str) -> Vec<(usize, String)> {
        let found = file(name, &tokens(source));
        found
            .into_iter()
            .map(|finding| (finding.line, finding.message))
            .collect()
    }

    #[test]
    fn each_module_stands_once_and_tables_are_of_other_folders() {
        for (index, table) in TABLES.iter().enumerate() {
            let all: Vec<&str> = table.modules().collect();
            let mut once = all.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), all.len(), "{}", table.folder);
            assert!(TABLES[..index].iter().all(|other| other.folder != table.folder));
        }
    }

    #[test]
    fn arrows_down_and_within_a_module_are_allowed() {
        for (name, source) in [
            (
                "job/src/config/mod.rs",
                "use crate::error::Error;\nuse crate::config::value;",
            ),
            (
                "job/src/config/value.rs",
                "use super::nearest;\nuse super::super::error::Error;",
            ),
            (
                "job/src/join.rs",
                "pub(crate) fn f() {}\nuse crate::{connect::PeerPath, rails, types::{Tag, Source}};",
            ),
            ("job/src/join.rs", "use doorbell_oob::crate_like::lobby;"),
            ("job/src/lib.rs", "pub use crate::lobby::Member;"),
            ("job/src/config/tests.rs", "use crate::join::join;"),
            ("engine/src/lazy_tests.rs", "use crate::builder::raise_through;"),
            (
                "engine/src/world.rs",
                "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::am::Am;\n}",
            ),
            (
                "engine/src/world.rs",
                "// use crate::am::Am;\nconst S: &str = \"crate::am\";",
            ),
            ("engine/tests/it/am.rs", "use crate::am::Am;"),
            ("pml/src/send.rs", "use crate::anything::else_;"),
        ] {
            assert_eq!(check(name, source), [], "{name}: {source}");
        }
    }

    #[test]
    fn arrows_up_and_sideways_are_named_with_their_line() {
        for (name, source, line, target) in [
            (
                "job/src/config/mod.rs",
                "use a;\nuse crate::join::Joined;",
                2,
                "join",
            ),
            ("job/src/config/mod.rs", "use crate::random;", 1, "random"),
            (
                "job/src/error.rs",
                "fn f() {\n    crate::config::g()\n}",
                2,
                "config",
            ),
            (
                "job/src/types.rs",
                "use crate::{types::Tag,\n    error::Error};",
                2,
                "error",
            ),
            ("job/src/types.rs", "use super::error::Error;", 1, "error"),
            ("job/src/config/value.rs", "use super::super::rails;", 1, "rails"),
            ("engine/src/scope/mod.rs", "use crate::am::{Am, Setup};", 1, "am"),
            (
                "engine/src/scope.rs",
                "#[cfg(test)]\nmod fork_tests;\nuse crate::am::Am;",
                3,
                "am",
            ),
        ] {
            let found = check(name, source);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert_eq!(found[0].0, line, "{name}: {found:?}");
            assert!(
                found[0].1.contains(&format!(" sees {target} (level")),
                "{name}: {found:?}"
            );
        }
    }

    #[test]
    fn what_is_named_without_its_module_is_found() {
        let found = check("engine/src/scope.rs", "use crate::{Error, World};");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].1.starts_with("Error is no module of engine"),
            "{found:?}"
        );
    }

    #[test]
    fn modules_and_rows_belong_together() {
        let found = check("job/src/stray.rs", "");
        assert!(found[0].1.contains("stray of job has no row"), "{found:?}");

        let all = TABLES[0].modules().map(|module| format!("job/src/{module}.rs"));
        let mut files: Vec<String> = all.collect();
        assert_eq!(rows(&files), []);
        files.retain(|file| file != "job/src/cores.rs");
        let found = rows(&files);
        assert!(
            found.len() == 1 && found[0].message.contains("a row for cores"),
            "{found:?}"
        );
        files.push("job/src/cores/mod.rs".to_owned());
        assert_eq!(rows(&files), []);
        assert_eq!(rows(&["pml/src/lib.rs".to_owned()]), []);
    }
}
