//! The C program that measures headers.
//!
//! It has one statement per line. A statement whose structure, field or constant these headers do not have
//! does not compile; the compiler names its line, and the program is compiled once more without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libfabric_sys::layout::table::{Measured, MeasuredField, Table};
use libfabric_sys::layout::{self, Structure};

use crate::error::Error;

/// The headers, as far as a release has them, in the order in which they are included.
const HEADERS: &[&str] = &[
    "fabric.h",
    "fi_errno.h",
    "fi_domain.h",
    "fi_endpoint.h",
    "fi_cm.h",
    "fi_eq.h",
    "fi_rma.h",
    "fi_tagged.h",
    "fi_atomic.h",
    "fi_collective.h",
    "fi_trigger.h",
    "fi_ext.h",
    "providers/fi_prov.h",
    "providers/fi_log.h",
    "fi_xpu.h",
    "fi_ext_usnic.h",
];

/// Where the extension of the provider usnic is in a source tree: it is installed only with that provider.
const USNIC: &str = "prov/usnic/src/fi_ext_usnic.h";

/// How often the program is compiled at most: each time, what did not compile is left out.
const ROUNDS: usize = 4;

/// A folder of headers.
#[derive(Debug)]
pub(super) struct Headers {
    /// The folder that has `rdma/fabric.h`.
    folder: PathBuf,
    /// The files to include.
    files: Vec<PathBuf>,
}

impl Headers {
    /// Finds the headers in a folder, or in its folder `include`.
    pub(super) fn find(folder: &Path) -> Result<Self, Error> {
        let folder = std::path::absolute(folder).map_err(Error::file("find", folder))?;
        let candidates = [folder.clone(), folder.join("include")];
        let has_headers = |candidate: &PathBuf| candidate.join("rdma/fabric.h").is_file();
        let Some(include) = candidates.into_iter().find(has_headers) else {
            let folder = folder.display();
            return Err(Error::Headers(format!(
                "{folder} has neither rdma/fabric.h nor include/rdma/fabric.h; give the folder of libfabric's headers \
                 (Debian: apt-get install libfabric-dev, then /usr/include)"
            )));
        };
        let tree = include.parent().unwrap_or(&include).join(USNIC);
        let installed = HEADERS.iter().map(|file| include.join("rdma").join(file));
        let files = installed.chain([tree]).filter(|file| file.is_file()).collect();
        Ok(Self {
            folder: include,
            files,
        })
    }

    /// Returns the folder that has `rdma/fabric.h`.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// What one statement of the program prints.
#[derive(Debug, Clone, Copy)]
enum Item {
    Release,
    Size(&'static Structure),
    Field(&'static Structure, &'static layout::Field),
    Constant(&'static str),
}

impl Item {
    /// Returns everything that is declared.
    fn all() -> Vec<Self> {
        let mut items = vec![Self::Release];
        for structure in layout::structures().chain(layout::tables()) {
            items.push(Self::Size(structure));
            items.extend(structure.fields.iter().map(|field| Self::Field(structure, field)));
        }
        items.extend(layout::constants().map(|constant| Self::Constant(constant.name)));
        items
    }

    /// Returns the two numbers that the statement prints, as expressions of C.
    fn expressions(self) -> [String; 2] {
        match self {
            Self::Release => ["FI_MAJOR_VERSION".to_owned(), "FI_MINOR_VERSION".to_owned()],
            Self::Size(structure) => [format!("sizeof(struct {})", structure.name), "0".to_owned()],
            Self::Field(structure, field) => {
                let (structure, name) = (structure.name, field.name);
                // An array without a length has no size either.
                let size = match field.size {
                    0 => "0".to_owned(),
                    _ => format!("sizeof(((struct {structure} *) 0)->{name})"),
                };
                [format!("offsetof(struct {structure}, {name})"), size]
            }
            Self::Constant(name) => [name.to_owned(), "0".to_owned()],
        }
    }
}

/// Measures headers, with the program and what comes of it in the folder `work`.
pub(super) fn measure(headers: &Headers, work: &Path) -> Result<Table, Error> {
    std::fs::create_dir_all(work).map_err(Error::file("create", work))?;
    // Headers of 1.4 to 1.15 include the configuration of the tree that they come from.
    let config = work.join("config.h");
    std::fs::write(&config, "").map_err(Error::file("write", config))?;
    let items = Item::all();
    let mut absent = BTreeSet::new();
    for _ in 0..ROUNDS {
        let (source, lines) = source(headers, &items, &absent);
        let output = compile(headers, work, &source)?;
        if output.status.success() {
            return run(work, &items);
        }
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let wrong: BTreeSet<usize> = wrong_lines(&errors)
            .filter_map(|line| lines.get(&line).copied())
            .collect();
        if wrong.is_empty() {
            return Err(refused(headers, &errors));
        }
        absent.extend(wrong);
    }
    Err(refused(headers, "the same lines fail again and again"))
}

fn refused(headers: &Headers, errors: &str) -> Error {
    let first = errors
        .lines()
        .find(|line| line.contains("error"))
        .unwrap_or(errors);
    Error::Headers(format!(
        "gcc cannot compile the headers in {}: {first}",
        headers.folder.display()
    ))
}

/// Returns the program without the items that are absent, and for each line of it the item.
fn source(headers: &Headers, items: &[Item], absent: &BTreeSet<usize>) -> (String, BTreeMap<usize, usize>) {
    let mut text =
        String::from("#include <stdio.h>\n#include <stddef.h>\n#include <stdbool.h>\n#include <stdlib.h>\n");
    for file in &headers.files {
        let _ = writeln!(text, "#include \"{}\"", file.display());
    }
    text.push_str("int main(void)\n{\n");
    let mut line = text.lines().count();
    let mut lines = BTreeMap::new();
    for (index, item) in items
        .iter()
        .enumerate()
        .filter(|(index, _)| !absent.contains(index))
    {
        let [first, second] = item.expressions();
        let _ = writeln!(
            text,
            "printf(\"{index} %llu %llu\\n\", (unsigned long long) ({first}), (unsigned long long) ({second}));"
        );
        line += 1;
        lines.insert(line, index);
    }
    text.push_str("return 0;\n}\n");
    (text, lines)
}

fn compile(headers: &Headers, work: &Path, source: &str) -> Result<Output, Error> {
    let file = work.join("probe.c");
    std::fs::write(&file, source).map_err(Error::file("write", file))?;
    let mut command = Command::new("gcc");
    command.current_dir(work).env("LC_ALL", "C");
    command
        .args(["-std=gnu11", "-w", "-fmax-errors=0", "-I"])
        .arg(&headers.folder);
    command.args(["-I", ".", "-o", "probe", "probe.c"]);
    command.output().map_err(start("gcc"))
}

fn start(program: &str) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |source| Error::Start {
        program: program.to_owned(),
        source,
    }
}

/// Returns the lines of the program that gcc names: `probe.c:17:3: error: ...`, or a note on a macro there.
fn wrong_lines(errors: &str) -> impl Iterator<Item = usize> {
    errors.lines().filter_map(|line| {
        let (number, rest) = line.strip_prefix("probe.c:")?.split_once(':')?;
        let is_place = rest.contains("error:") || rest.contains("note: in expansion");
        number.parse().ok().filter(|_| is_place)
    })
}

/// Runs the compiled program and makes a table of what it prints.
fn run(work: &Path, items: &[Item]) -> Result<Table, Error> {
    let program = work.join("probe");
    let output = Command::new(&program)
        .output()
        .map_err(start("the compiled probe"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers = text.lines().filter_map(|line| {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().ok());
        Some((
            usize::try_from(words.next()??).ok()?,
            words.next()??,
            words.next()??,
        ))
    });
    table(numbers, items)
        .ok_or_else(|| Error::Headers(format!("{} prints no release of libfabric", program.display())))
}

fn table(numbers: impl Iterator<Item = (usize, u64, u64)>, items: &[Item]) -> Option<Table> {
    let mut release = None;
    let mut structures: Vec<Measured> = Vec::new();
    let mut constants = Vec::new();
    for (index, first, second) in numbers {
        let size = |number: u64| usize::try_from(number).ok();
        match *items.get(index)? {
            Item::Release => release = format!("{first}.{second}").parse().ok(),
            Item::Size(structure) => structures.push(Measured {
                name: structure.name.to_owned(),
                kind: structure.kind,
                size: size(first)?,
                fields: Vec::new(),
            }),
            Item::Field(_, field) => structures.last_mut()?.fields.push(MeasuredField {
                name: field.name.to_owned(),
                offset: size(first)?,
                size: size(second)?,
            }),
            Item::Constant(name) => constants.push((name.to_owned(), first)),
        }
    }
    Some(Table {
        release: release?,
        structures,
        constants,
    })
}
